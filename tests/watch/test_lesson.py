"""The lesson: its recording against arithmetic done here, its page against the recording."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.watch.browser import opened
from toolkit import cli
from toolkit.engines.strategies import ACCUMULATIONS
from toolkit.errors import UsageError
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak
from toolkit.watch.dials import SIZES, build_dials
from toolkit.watch.lesson import CUT_BATCH, LR, Case, plan_cases
from toolkit.watch.page import write_page
from toolkit.watch.record import record_cases

BASE = Case(strategy="ddp", accumulation="replicated", gpus=4, grad_accum_steps=2)
ENGINES = ("ddp", "fsdp2", "fsdp2_no_reshard", "hsdp", "zero1", "zero2", "zero3")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(290)]

Recording = dict[str, Any]


def page_of(recordings: list[Recording], out: Path, **more: Any) -> Path:
    write_page({"recordings": recordings, "start": 0, **more}, out, title="t")
    return out


@pytest.fixture(scope="module")
def quick() -> list[Recording]:
    """Four ranks: DDP in both modes and without averaging, both weightings."""
    cases, _ = plan_cases(BASE, strategies=("ddp",), accumulations=("replicated", "sharded"))
    kept = [case for case in cases if case.scenario != "cut"]
    return record_cases(kept, timeout_s=200)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Recording], Path]:
    """What the command records where it is asked for nothing in particular."""
    out = tmp_path_factory.mktemp("watch") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["toolkit", "watch", "--out", str(out)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code
    [data] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', out.read_text()
    )
    return json.loads(data)["recordings"], out


def by_hand(case: Case, batch: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each micro-step's gradient by rank, and the mean's, [ranks, micro-steps, weights]."""
    x = np.array(
        [
            [case.micro_batch(batch, m, rank) for m in range(case.grad_accum_steps)]
            for rank in range(case.gpus)
        ]
    )
    own = (weights - x).sum(axis=2) * case.gpus / case.samples
    return own, (weights - x).reshape(-1, case.weights).sum(axis=0) / case.samples


def check_first_batch(recording: Recording, case: Case) -> None:
    weights = case.first_weights()
    own, mean = by_hand(case, 0, weights)
    frames = recording["batches"][0]["frames"]
    for frame in frames:
        for rank, found in enumerate(frame["ranks"]):
            if frame["phase"] == "forward":
                x = case.micro_batch(0, frame["micro_step"], rank)
                assert found["seen"] == weights.tolist()
                assert found["losses"] == (0.5 * ((weights - x) ** 2).sum(axis=1)).tolist()
            if frame["phase"] == "backward":
                assert found["own"] == own[rank, frame["micro_step"]].tolist()
    for found in frames[-1]["ranks"]:
        kept = [w for w in found["weights"] if w is not None] or found["master"]
        assert kept
        for after, before, gradient in zip(found["weights"], weights, mean, strict=True):
            assert after is None or after == pytest.approx(before - LR * gradient, rel=1e-6)
    held = {
        (index, value)
        for found in frames[-2]["ranks"]
        for part in found["gradient"][-1:]
        for index, value in enumerate(part)
        if value is not None
    }
    assert {index for index, _ in held} == set(range(case.weights))
    assert all(value == pytest.approx(mean[index], rel=1e-6) for index, value in held)


def test_the_first_batch_is_what_it_is_by_hand(quick: list[Recording]) -> None:
    for recording in quick[:2]:
        check_first_batch(recording, BASE)


def test_every_batch_reduces_the_same_bytes(quick: list[Recording]) -> None:
    """A reduction is all four weights of 4 bytes: one per update, or one per micro-step."""
    for recording, reductions in zip(quick[:3], (1, 2, 0), strict=True):
        for batch in recording["batches"]:
            for rank in range(BASE.gpus):
                calls = [
                    call for frame in batch["frames"] for call in frame["ranks"][rank]["calls"]
                ]
                # DDP also broadcasts the layout of its buckets once, in the second batch.
                large = [call for call in calls if call[2] > 1 and call[0] != "other"]
                assert large == [["all_reduce", 16, 4, [0, 1, 2, 3]]] * reductions


def test_copies_drift_only_without_averaging(quick: list[Recording]) -> None:
    assert [quick[0]["drift"], quick[1]["drift"]] == [[0.0] * BASE.batches] * 2
    apart = quick[2]
    assert not apart["case"]["averages"]
    own, _ = by_hand(BASE, 0, BASE.first_weights())
    sums = own.sum(axis=1)
    assert apart["drift"][0] == pytest.approx(LR * (sums.max(0) - sums.min(0)).max(), rel=1e-5)
    assert min(apart["drift"]) > 0


@pytest.mark.long
def test_copies_stay_equal_for_a_thousand_batches() -> None:
    case = Case(strategy="ddp", accumulation="replicated", gpus=4, grad_accum_steps=2, batches=1000)
    [recording] = record_cases([case], timeout_s=280)
    assert recording["drift"] == [0.0] * 1000


def test_a_mean_of_means_weighs_tokens_unequally(quick: list[Recording]) -> None:
    per_token, of_means = quick[3:]
    assert per_token["batches"][0]["loss"] == (100 * 2.0 + 300 * 1.0) / 400 == 1.25
    assert of_means["batches"][0]["loss"] == (2.0 + 1.0) / 2 == 1.5


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    wrong = Case(strategy="ddp", accumulation="replicated", gpus=3, grad_accum_steps=1)
    with pytest.raises(UsageError, match=r"--batch 8 does not divide by 3 GPUs x 1 micro-steps"):
        plan_cases(wrong, strategies=("ddp",), accumulations=ACCUMULATIONS)


def test_off_without_copies_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["toolkit", "watch", "--strategy", "fsdp2", "--no-averaging"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "only ddp has copies that can drift apart" in capsys.readouterr().err


def test_the_command_opens_the_page_where_it_is_asked_to(
    quick: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the processes, which the recordings at hand stand for."""
    out = tmp_path / "page.html"
    words = ["--strategy", "ddp", "--mean-of-means", "--out", str(out)]
    monkeypatch.setattr("toolkit.watch.record.record_cases", lambda cases, timeout_s: quick)
    monkeypatch.setattr(sys, "argv", ["toolkit", "watch", *words])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    with opened(out) as page:
        assert page.locator("#loss b").inner_text() == "1.5"
        assert page.locator("tr.now").count() == 1


def shown(value: float | None) -> str:
    """Return a number as the page has it."""
    if value is None:
        return "–"
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return ("0" if text == "-0" else text).replace("-", "−")


def check_cells(page: Any, frame: dict[str, Any]) -> None:
    """Compare what each rank's panel shows of weights with the recording."""
    for rank, found in enumerate(frame["ranks"]):
        panel = page.locator(".rank").nth(rank)
        cells = panel.locator('tr[data-part="weights"] td').all_inner_texts()
        assert cells == [shown(value) for value in found["weights"]]
        if frame["phase"] == "backward" and panel.locator('tr[data-part="own"]').count():
            cells = panel.locator('tr[data-part="own"] td').all_inner_texts()
            assert cells == [shown(value) for value in found["own"]]


def walk(page: Any, recording: Recording) -> list[str]:
    """Walk through every phase by the arrow key; return the names of the phases."""
    page.keyboard.press("Home")
    names = []
    frames = [frame for batch in recording["batches"] for frame in batch["frames"]]
    total = int(re.findall(r"of (\d+)", page.locator(".controls").inner_text())[0])
    at = 0
    for _ in range(total):
        names.append(page.locator('[aria-current="step"]').inner_text())
        if names[-1].startswith("Reduce"):
            at -= 1
        elif not is_pending(frames[at]):
            check_cells(page, frames[at])
        at += 1
        page.keyboard.press("ArrowRight")
    return names


def is_pending(frame: dict[str, Any]) -> bool:
    kinds = {call[0] for call in frame["ranks"][0]["calls"] if call[2] > 1}
    return frame["phase"] == "backward" and bool(kinds & {"all_reduce", "reduce_scatter"})


def test_every_phase_switch_and_key(quick: list[Recording], tmp_path: Path) -> None:
    with opened(page_of(quick, tmp_path / "page.html")) as page:
        phases = ["Read", "Forward 1", "Backward 1", "Forward 2", "Backward 2", "Reduce 2"]
        assert walk(page, quick[0]) == [*phases, "Update"] * 2
        page.keyboard.press("Home")
        page.get_by_role("button", name="next phase").click()
        assert page.locator('[aria-current="step"]').inner_text() == "Forward 1"
        page.keyboard.press("ArrowLeft")
        assert page.locator('[aria-current="step"]').inner_text() == "Read"
        page.get_by_role("radio", name="sharded").check(force=True)
        assert "Reduce 1" in walk(page, quick[1])
        page.keyboard.press("End")
        assert page.locator("#drift b").inner_text() == "0.000"
        page.get_by_role("radio", name="off").check(force=True)
        assert page.locator("#drift b").inner_text() == f"{quick[2]['drift'][1]:.3f}" != "0.000"
        page.get_by_role("radio", name="tokens weigh alike?").check(force=True)
        assert page.locator("#loss b").inner_text() == "1.25"
        page.get_by_role("radio", name="the mean of means").check(force=True)
        assert page.locator("#loss b").inner_text() == "1.5"
        page.locator("body").press("Space")
        page.get_by_role("button", name="stop the film").click()


def test_the_working_is_what_a_reader_computes(quick: list[Recording], tmp_path: Path) -> None:
    """Each equation of the page, evaluated here."""
    equations = 0
    with opened(page_of(quick, tmp_path / "page.html")) as page:
        for _ in range(7):
            for line in page.locator(".working li").all_inner_texts():
                for left, right in re.findall(r"(?:^|: |; )([^:;=]+) = (−?[\d.]+)", line):
                    text = left.replace("−", "-").replace("·", "*").replace("½", "0.5")
                    text = text.replace("²", "**2").replace("[", "(").replace("]", ")")
                    assert eval(text) == pytest.approx(float(right.replace("−", "-")), abs=2e-4)
                    equations += 1
            page.keyboard.press("ArrowRight")
    assert equations >= 4 * 5


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_nothing_is_cut_off(
    quick: list[Recording], tmp_path: Path, width: int, scheme: str
) -> None:
    out = page_of(quick, tmp_path / "page.html")
    settings = {"color_scheme": scheme, "reduced_motion": "reduce"}
    with opened(out, width=width, **settings) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "getComputedStyle(document.querySelector('td')).transitionDuration"
        ) in (
            "0s",
            "",
        )


def test_a_name_is_text_and_never_markup(quick: list[Recording], tmp_path: Path) -> None:
    evil = "<script>document.title='caught'</script>"
    named = json.loads(json.dumps(quick[:1]))
    named[0]["case"]["strategy"] = evil
    with opened(page_of(named, tmp_path / "page.html")) as page:
        assert page.title() == "t"
        assert evil in page.locator(".switches").inner_text()


@pytest.mark.long
def test_every_engine_makes_the_same_update(everything: tuple[list[Recording], Path]) -> None:
    recordings, out = everything
    assert out.stat().st_size < 1_000_000
    lesson = [r for r in recordings if r["case"]["scenario"] == "lesson" and r["case"]["averages"]]
    assert {r["case"]["strategy"] for r in lesson} == set(ENGINES)
    for recording in lesson:
        check_update(recording)
    one, eight = (r for r in recordings if r["case"]["scenario"] == "cut")
    assert [one["case"]["gpus"], eight["case"]["gpus"]] == [1, 8]
    assert one["case"]["samples"] == CUT_BATCH
    first, second = (r["batches"][0]["frames"][-1]["ranks"][0]["weights"] for r in (one, eight))
    assert first == second


def check_update(recording: Recording) -> None:
    weights = BASE.first_weights()
    _, mean = by_hand(BASE, 0, weights)
    seen = set()
    for found in recording["batches"][0]["frames"][-1]["ranks"]:
        for index, after in enumerate(found["weights"]):
            if after is not None:
                assert after == pytest.approx(weights[index] - LR * mean[index], rel=1e-6)
                seen.add(index)
    assert seen == set(range(BASE.weights))


@pytest.mark.long
def test_every_recording_is_walked_through(everything: tuple[list[Recording], Path]) -> None:
    recordings, _ = everything
    for place, recording in enumerate(recordings):
        out = everything[1].with_name(f"{place}.html")
        with opened(page_of([recording], out)) as page:
            assert walk(page, recording)[-1] == "Update"


def test_the_dials_show_the_estimators_figures(quick: list[Recording], tmp_path: Path) -> None:
    settings = StepSettings(
        sizes=SIZES,
        strategy="ddp",
        accumulation="replicated",
        world_size=4,
        micro_batch_size=4,
        grad_accum_steps=4,
    )
    gib = estimate_peak(settings).total / 1024**3
    dials = build_dials(["ddp"], ["replicated", "sharded"])
    with opened(page_of(quick[:1], tmp_path / "page.html", dials=dials)) as page:
        assert page.locator("#tokens strong").inner_text() == "65,536 tokens per update"
        cells = page.locator("tr.now td").all_inner_texts()
        assert cells[:4] == ["4", "4", "4", f"{gib:.4g} GiB"]
        page.get_by_role("slider").first.press("ArrowRight")
        assert page.locator("tr.now td").first.inner_text() == "16"
        assert page.locator("#tokens strong").inner_text() == "262,144 tokens per update"
