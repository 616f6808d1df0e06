from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.runs.conftest import GIB, Make, evaluation, train
from toolkit.cli import app
from toolkit.errors import ToolkitError, UsageError
from toolkit.runs.compare import compare_runs
from toolkit.runs.record import read_run
from toolkit.training.run_folder import sole_user


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_all_runs_are_in_the_table_with_their_state(make: Make, tmp_path: Path) -> None:
    make("a", train(1, 6.0), train(2, 5.0), evaluation(2, 5.5))
    make("b", train(1, 6.0), is_done=False)
    make("c", train(1, 6.0), is_done=False)
    (tmp_path / "runs" / "notes").mkdir()
    with sole_user(tmp_path / "runs" / "b"):
        head, *rows = printed("runs", str(tmp_path / "runs")).splitlines()
    assert head.split() == [
        "run",
        "state",
        "step",
        "loss",
        "validation",
        "tokens/s",
        "strategy",
        "mode",
    ]
    states = [row.split()[1:] for row in rows]
    assert states == [
        ["done", "2/4", "5.000", "5.500", "100", "ddp", "on", "2", "replicated"],
        ["training", "1/4", "6.000", "-", "-", "ddp", "on", "2", "replicated"],
        ["killed", "1/4", "6.000", "-", "-", "ddp", "on", "2", "replicated"],
    ]


def test_two_runs_are_compared(make: Make) -> None:
    a = make("a", train(1, 6.0), train(2, 5.0), train(3, 4.0), evaluation(3, 4.5))
    b = make(
        "b",
        train(1, 6.0),
        train(2, 5.5, tokens_per_s=150.0, peak_memory_bytes=GIB // 4),
        train(3, 4.4, tokens_per_s=150.0, peak_memory_bytes=GIB),
        evaluation(3, 4.6),
        config={"seed": 1},
        strategy="fsdp2",
    )
    lines = printed("compare", str(a), str(b)).splitlines()
    assert lines[2:] == [
        "strategy ddp -> fsdp2",
        "seed     1337 -> 1",
        "loss            differs from step 2 on: 5.000000, 5.500000 (+1.00e-01); at step 3 "
        "4.000000, 4.400000 (+1.00e-01)",
        "grad_norm       differs from step 2 on: 10.000000, 11.000000 (+1.00e-01); at step 3 "
        "8.000000, 8.800000 (+1.00e-01)",
        "validation      at step 3 4.500000, 4.600000 (+2.22e-02)",
        "speed           100, 150 tokens/s: B has 1.50 times A's",
        "memory          0.500, 1.000 GiB at the peak: B has 2.00 times A's",
    ]


def test_a_run_is_the_same_as_itself(make: Make) -> None:
    run = read_run(make("a", train(1, 6.0), train(2, 5.0)))
    assert compare_runs(run, run)[2:5] == [
        "configuration   the same",
        "loss            the same in all 2 steps that both have",
        "grad_norm       the same in all 2 steps that both have",
    ]


def test_a_step_is_placed_by_tokens_and_hours(make: Make) -> None:
    run = read_run(make("a", train(1, 6.0), train(2, 5.0), evaluation(2, 5.5)))
    assert run.places("step") == [1, 2]
    assert run.places("tokens") == [512, 1024]
    assert run.places("hours") == pytest.approx([0.01, 0.02])
    assert run.places_of([0, 2], "hours") == [0.0, pytest.approx(0.02)]


@pytest.mark.parametrize("by", ["step", "tokens", "hours"])
def test_runs_are_drawn_over_each_other(make: Make, tmp_path: Path, by: str) -> None:
    from PIL import Image

    runs = [
        make(name, *(train(n, start / n) for n in range(1, 9)))
        for name, start in (("a", 6.0), ("b", 5.0))
    ]
    file = tmp_path / "both.png"
    assert printed("plot", *map(str, runs), "--by", by, "--out", str(file)) == f"{file}\n"
    colours = Image.open(file).convert("RGB").getcolors(10**6)
    assert colours is not None
    found = {colour for _, colour in colours}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= found


def test_one_run_is_drawn_beside_its_records(make: Make) -> None:
    run = make("a", train(1, 6.0), train(2, 5.0), evaluation(2, 5.5))
    printed("plot", str(run))
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_holds_all_it_needs(make: Make, tmp_path: Path) -> None:
    run = make("a", train(1, 6.0), train(2, 5.0, lr=0.0123), evaluation(2, 5.5))
    page = tmp_path / "run.html"
    printed("plot", str(run), "--out", str(page))
    text = page.read_text()
    assert '<script src="http' not in text
    assert "Plotly.newPlot" in text
    assert "a, validation" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plot", "nowhere"], "nowhere is no run"),
        (["plot", "{empty}"], "has no step to draw yet"),
        (["plot", "{run}", "--out", "no/where.png"], "no/where.png: No such file"),
        (["plot", "{run}", "--out", "plot.docx"], "plot.docx: "),
        (["compare", "{run}", "nowhere"], "nowhere is no run"),
        (["runs", "nowhere"], "nowhere: no such folder"),
        (["runs", "{run}/.."], ""),
    ],
)
def test_what_is_no_run_is_one_sentence(make: Make, words: list[str], says: str) -> None:
    places = {"run": make("a", train(1, 6.0)), "empty": make("b")}
    words = [word.format(**places) for word in words]
    if not says:
        assert "a " in printed(*words)
        return
    with pytest.raises(ToolkitError, match=says) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert isinstance(caught.value, UsageError)
    assert "\n" not in str(caught.value)
