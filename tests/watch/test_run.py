"""The page of a recorded run: its figures against metrics, counted collectives and arithmetic."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.data.shard_files import write_llmc
from tests.watch.browser import opened
from tests.watch.counted_run import STEP
from toolkit.config import load_run_config
from toolkit.engines.strategies import Strategy
from toolkit.errors import UsageError
from toolkit.launch.processes import launch
from toolkit.watch.page import LARGEST_PAGE, write_page
from toolkit.watch.run import run_data

WIDTH, VOCABULARY, LENGTH, BLOCKS = 32, 512, 64, 2
PARAMETERS = (VOCABULARY + LENGTH + 2) * WIDTH + BLOCKS * (12 * WIDTH**2 + 13 * WIDTH)
MICRO_STEPS, MICRO_BATCH, RANKS = 2, 2, 2
EVIL = "<script>document.title='caught'"
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(290)]

Data = dict[str, Any]


def train(folder: Path, strategy: Strategy, *, ranks: int = RANKS) -> Path:
    """Train a few steps, recording two of them; return the run's folder."""
    words = [(7 * i * i + 3 * i) % 500 for i in range(6000)]
    write_llmc(folder / "train" / "shard_000000.bin", words)
    model = {"n_layer": BLOCKS, "n_head": 2, "n_embd": WIDTH}
    run = {
        "model": {**model, "block_size": LENGTH, "vocab_size": VOCABULARY},
        "data": {"train": str(folder / "train")},
        "batch": {
            "tokens_per_step": ranks * MICRO_STEPS * MICRO_BATCH * LENGTH,
            "micro_batch_size": MICRO_BATCH,
        },
        "output_dir": str(folder / "runs"),
        "run_name": "tiny",
        "training": {"steps": 4, "checkpoint_every": "never", "record": [3, 4]},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    script = ["--module", "tests.watch.counted_run", str(folder), "--config", str(file)]
    launch(strategy, ranks, script, timeout_s=200)
    return folder / "runs" / "tiny"


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("ddp"), "ddp")


def recorded(run: Path, rank: int) -> list[Data]:
    lines = (run / "record" / f"rank_{rank:05d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def metrics(run: Path) -> dict[int, Data]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record for record in records if record["kind"] == "train"}


def check_record(run: Path, ranks: int) -> None:
    """Compare with metrics.jsonl, with what was counted, and with the phases there must be."""
    reported = metrics(run)
    of_ranks = [recorded(run, rank) for rank in range(ranks)]
    for steps in zip(*of_ranks, strict=True):
        [number] = {step["step"] for step in steps}
        tokens = sum(count for step in steps for count, _ in step["losses"])
        assert tokens == ranks * MICRO_STEPS * MICRO_BATCH * LENGTH
        shares = [
            sum(float(np.float32(total) / np.float32(tokens)) for _, total in step["losses"])
            for step in steps
        ]
        assert sum(shares) == reported[number]["loss"] == steps[0]["loss"]
        assert {step["step_s"] for step in steps[:1]} == {reported[number]["step_s"]}
        for step in steps:
            assert step["phases"] == ["forward", "backward"] * MICRO_STEPS + ["optimizer"]
            assert step["marks"] == sorted(step["marks"])
            assert step["marks"][-1] < step["step_s"]
            for *_, phase, issued, over, waited in step["collectives"]:
                assert 0 <= issued <= over < step["step_s"]
                assert 0 <= waited <= over - issued + 1e-9
                assert -1 <= phase < len(step["phases"])
    for rank, steps in enumerate(of_ranks):
        counted = json.loads((run.parents[1] / f"counted_{rank}.json").read_text())
        [step] = [step for step in steps if step["step"] == STEP]
        assert [call[:3] for call in step["collectives"]] == counted


def check_against_program(data: Data) -> None:
    """Every tensor that was communicated, and all bytes held, are those of the step's program."""
    for step in data["steps"]:
        for rank in step["ranks"]:
            found: dict[str, list[int]] = {kind: [0, 0] for kind in data["predicted"]["traffic"]}
            for shape, *_ in rank["calls"]:
                kind, elements, width, _, _ = step["shapes"][shape]
                if elements > 1:
                    found[kind][0] += 1
                    found[kind][1] += elements * width
            assert found == data["predicted"]["traffic"]
            held = [
                dict(zip(data["predicted"]["parts"], each, strict=True)) for each in memory(data)
            ]
            assert rank["gradients"] == [each["gradients"] for each in held]


def memory(data: Data) -> list[list[int]]:
    found: list[list[int]] = data["predicted"]["memory"]
    return found


def test_a_record_is_what_the_run_reports_and_communicates(ddp: Path) -> None:
    check_record(ddp, RANKS)
    data = run_data(ddp)
    check_against_program(data)
    for step in data["steps"]:
        for rank in step["ranks"]:
            assert rank["parameters"] == 4 * PARAMETERS
            # Two moments, and the fp32 count of updates of each of the model's tensors.
            assert rank["optimizer"] == 8 * PARAMETERS + 4 * (12 * BLOCKS + 4)
            assert set(rank["gradients"]) == {4 * PARAMETERS}
            tensors = [step["shapes"][call[0]][:3] for call in rank["calls"]]
            assert tensors == [["all_reduce", 1, 8], ["all_reduce", PARAMETERS, 4]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "ranks"), [("fsdp2", 2), ("zero2", 2), ("zero3", 2), ("hsdp", 4), ("single", 1)]
)
def test_a_record_of_any_engine(strategy: Strategy, ranks: int, tmp_path: Path) -> None:
    run = train(tmp_path, strategy, ranks=ranks)
    check_record(run, ranks)
    check_against_program(run_data(run))


def page_of(data: Data, out: Path) -> Path:
    write_page({"run": data}, out, title=f"Run {data['name']}")
    return out


def test_the_page_shows_the_runs_figures(
    ddp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers on screen against metrics.jsonl and arithmetic done here."""
    # Where no machine has been measured.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with opened(page_of(run_data(ddp), tmp_path / "page.html")) as page:
        for number in (3, 4):
            page.get_by_role("radio", name=str(number), exact=True).check(force=True)
            reported = metrics(ddp)[number]
            assert page.locator("#step-loss b").inner_text() == f"{reported['loss']:.4f}"
            assert page.locator("#step-s b").inner_text() == f"{1000 * reported['step_s']:.1f} ms"
            weighted = page.locator("#weighted").inner_text()
            assert weighted.count(f"{reported['loss']:.4f}".rstrip("0")) >= 2
            cells = page.locator('tr[data-kind="all_reduce"] td').all_inner_texts()
            payload = f"{4 * PARAMETERS:,} B"
            # Two ranks: a ring sends 2 (2 - 1)/2 of the payload.
            assert cells[:6] == ["all-reduce", "1", "1", payload, payload, payload]
        held = page.locator("#held-most b").inner_text()
        assert held == f"{4 * PARAMETERS / 1024:.4g} KiB"
        assert page.locator("#predicted-s b").inner_text() == "none"
        assert "no calibration covers 2 ranks" in page.locator("#predicted-s").inner_text()


def test_a_block_shows_the_formula_behind_its_bytes(ddp: Path, tmp_path: Path) -> None:
    with opened(page_of(run_data(ddp), tmp_path / "page.html")) as page:
        page.locator('rect.call[data-rank="1"][data-call="1"]').click(force=True)
        shown = page.locator("#detail").inner_text()
        assert "all-reduce, call 2 of rank 1, in backward 2" in shown
        assert f"{PARAMETERS:,} = all parameters: (V + T + 2) d + L (12 d² + 13 d)" in shown
        assert f"{PARAMETERS:,} × 4 B = {4 * PARAMETERS:,} B" in shown
        assert f"2 · 1/2 · {4 * PARAMETERS:,} B = {4 * PARAMETERS:,} B" in shown
        page.keyboard.press("ArrowLeft")
        assert "a number: targets of the step" in page.locator("#detail").inner_text()
        page.keyboard.press("ArrowUp")
        assert "call 1 of rank 0" in page.locator("#detail").inner_text()
        page.keyboard.press("End")
        assert "call 2 of rank 0" in page.locator("#detail").inner_text()
        page.get_by_role("radio", name="optimizer").check(force=True)
        assert page.locator("rect.O").count() == RANKS
        assert page.locator("rect.A").count() == 0


def test_memory_is_shown_beside_what_is_predicted(ddp: Path, tmp_path: Path) -> None:
    data = run_data(ddp)
    with opened(page_of(data, tmp_path / "page.html")) as page:
        for kind in ("measured", "predicted"):
            cells = page.locator(f'tr[data-at="backward 1"][data-kind="{kind}"] td')
            parameters, gradients = cells.all_inner_texts()[2:4]
            assert parameters == gradients == f"{4 * PARAMETERS / 1024:.4g} KiB"
        [rest] = page.locator('tr[data-at="backward 1"][data-kind="predicted"] td:last-child').all()
        parts = dict(zip(data["predicted"]["parts"], memory(data)[2], strict=True))
        kept = parts["activations"] + parts["loss"]
        assert rest.inner_text() == f"{kept / 1024:.4g} KiB"


def many_ranks(data: Data, ranks: int) -> Data:
    """The run as if its first rank had been many, each a little later than the one before it."""
    wide = json.loads(json.dumps(data))
    wide["ranks"] = ranks
    for step in wide["steps"]:
        one = step["ranks"][0]
        for shape in step["shapes"]:
            shape[3] = list(range(ranks))
        step["ranks"] = [
            {
                **one,
                "marks": [mark + 50 * rank for mark in one["marks"]],
                "losses": [[count - rank, total] for count, total in one["losses"]],
            }
            for rank in range(ranks)
        ]
    return wide


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_64_ranks_are_readable(ddp: Path, tmp_path: Path, width: int, scheme: str) -> None:
    out = page_of(many_ranks(run_data(ddp), 64), tmp_path / "page.html")
    assert out.stat().st_size < LARGEST_PAGE
    with opened(out, width=width, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        lanes = page.locator(".lane")
        assert lanes.count() == 64
        boxes = [lanes.nth(place).bounding_box() for place in (0, 1, 63)]
        assert boxes[1]["y"] - boxes[0]["y"] >= boxes[0]["height"] >= 24
        lanes.nth(63).locator("rect.call").nth(1).click(force=True)
        assert "call 2 of rank 63" in page.locator("#detail").inner_text()
        assert f"2 · 63/64 · {4 * PARAMETERS:,} B" in page.locator("#detail").inner_text()
        shot = page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert len(shot) > 20_000


def test_a_runs_name_is_text_and_never_markup(ddp: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(ddp, tmp_path / EVIL))
    with opened(page_of(run_data(run), tmp_path / "page.html")) as page:
        assert page.title() == f"Run {EVIL}"
        assert page.locator("h1").inner_text() == f"Run {EVIL}"


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def test_seconds_are_predicted_where_the_gpus_speed_is_known(ddp: Path, tmp_path: Path) -> None:
    """The same record as if eight H100 had made it, in bf16; then as if a GPU that nobody knows."""
    run = copied(ddp, tmp_path)
    config, environment = run / "config.yaml", run / "environment.json"
    config.write_text(config.read_text().replace("precision: fp32", "precision: bf16"))
    found = json.loads(environment.read_text())
    found["devices"] = {"type": "cuda", "names": ["NVIDIA H100 80GB HBM3"] * 8}
    environment.write_text(json.dumps(found))
    data = run_data(run)
    fastest, middle, slowest = data["predicted"]["seconds"]
    assert 0 < fastest < middle < slowest
    with opened(page_of(data, tmp_path / "page.html")) as page:
        assert page.locator("#predicted-s b").inner_text() == f"{1000 * middle:.1f} ms"
        assert "over nccl on NVIDIA H100" in page.locator("#page").inner_text()
    found["devices"]["names"] = ["NVIDIA T4"] * 8
    environment.write_text(json.dumps(found))
    assert "its speed is not known" in run_data(run)["predicted"]["why_not"]


def test_another_runs_record_is_refused(ddp: Path, tmp_path: Path) -> None:
    run = copied(ddp, tmp_path)
    file = run / "metrics.jsonl"
    loss = metrics(run)[3]["loss"]
    file.write_text(file.read_text().replace(str(loss), str(loss + 1)))
    with pytest.raises(UsageError, match=r"step 3 in record/ is not the one in metrics\.jsonl"):
        run_data(run)


def test_a_missing_rank_is_named(ddp: Path, tmp_path: Path) -> None:
    run = copied(ddp, tmp_path)
    (run / "record" / "rank_00001.jsonl").unlink()
    missing = re.escape(str(run / "record" / "rank_00001.jsonl"))
    with pytest.raises(UsageError, match=f"{missing} is missing; record some steps"):
        run_data(run)


def test_the_first_two_steps_are_not_recorded(run_file: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.record must be a first step"):
        load_run_config(run_file, ["training.record=[1,2]"])
