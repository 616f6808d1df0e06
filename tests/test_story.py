"""The story of docs/use.md, from an empty folder to transformers, in its own order."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.shipped import ROOT

DOCUMENT = (ROOT / "docs" / "use.md").read_text()
FENCE = r"^<!-- not run: [^\n]*test_story[^\n]* -->\n```(\w+)\n(.*?)^```$"
FENCES = re.findall(FENCE, DOCUMENT, re.MULTILINE | re.DOTALL)
CTRL_C = "and press Ctrl-C"
STEPS = 12

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


class Checkout:
    """The story's commands from this checkout; all but `train` in this process."""

    python: Path | str = sys.executable
    train: tuple[Path | str, ...] = (sys.executable, "-m", "toolkit")
    path = str(ROOT)
    limit = 240  # seconds for each start of training

    def toolkit(self, *words: str) -> str:
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout


def launch(how: Checkout, folder: Path, words: list[str], *, interrupt: bool) -> str:
    """Run `toolkit train`; interrupted, it gets a person's Ctrl-C after some steps."""
    process = subprocess.Popen(
        list(map(str, [*how.train, *words])),
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": how.path,
            "HF_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(how.python).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if interrupt:
            wait_for_steps(folder / "runs" / "my" / "metrics.jsonl", 4, how.limit)
            os.killpg(process.pid, signal.SIGINT)
        printed, remarks = process.communicate(timeout=how.limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (75 if interrupt else 0), printed + remarks
    # What engines and libraries remark on does not concern whoever trains.
    own = ("error: stopped by", "DeepSpeed compiles an extension once")
    assert [line for line in remarks.splitlines() if not line.startswith(own)] == []
    return printed


def wait_for_steps(metrics: Path, count: int, limit: float) -> None:
    until = time.monotonic() + limit
    while not metrics.exists() or metrics.read_text().count('"train"') < count:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    follow(tmp_path, Checkout())


def follow(folder: Path, how: Checkout) -> None:
    """Run the document's commands in order, and look at what they left."""
    (folder / "texts").mkdir()
    for number in range(40):
        text = DOCUMENT[150 * number :][:1500] or DOCUMENT
        (folder / "texts" / f"{number:02d}.txt").write_text(f"Text {number}. {text}")
    printed: dict[str, str] = {}
    for language, block in FENCES:
        if language == "python":
            continue
        for line in block.splitlines():
            command, _, remark = line.partition("  # ")
            program, *words = shlex.split(command)
            assert program == "toolkit"
            if words[0] == "train":
                printed[command] = launch(how, folder, words, interrupt=remark == CTRL_C)
            else:
                printed[command] = how.toolkit(*words)
    check_the_run(folder)
    check_the_writing(printed, how.python)


def check_the_run(folder: Path) -> None:
    """Every step once, in order, half of it under each strategy, learning all the while."""
    records = [json.loads(line) for line in (folder / "runs/my/metrics.jsonl").open()]
    steps = [record["step"] for record in records if record["kind"] == "train"]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    assert losses[-1] < losses[0] - 1
    assert json.loads((folder / "runs/my/summary.json").read_text())["strategy"] == "zero2"
    assert (folder / "runs/my/plot.png").read_bytes().startswith(b"\x89PNG")
    assert "Plotly.newPlot" in (folder / "my.html").read_text()


def check_the_writing(printed: dict[str, str], python: Path | str) -> None:
    """The run, its export and transformers write the same."""
    own, exported = (text for command, text in printed.items() if " generate " in command)
    (code,) = (block for language, block in FENCES if language == "python")
    done = subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert own.startswith("To be")
    assert len(own) > len("To be\n")
    assert own == exported == done.stdout
