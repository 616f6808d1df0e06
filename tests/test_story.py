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

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(280)]


def launch(folder: Path, words: list[str], *, interrupt: bool) -> str:
    """Run `toolkit train`; interrupted, it gets a person's Ctrl-C after some steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        if interrupt:
            wait_for_steps(folder / "runs" / "my" / "metrics.jsonl", 4)
            os.killpg(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (75 if interrupt else 0), printed
    return printed


def wait_for_steps(metrics: Path, count: int) -> None:
    until = time.monotonic() + 100
    while not metrics.exists() or metrics.read_text().count('"train"') < count:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(40):
        text = DOCUMENT[150 * number :][:1500] or DOCUMENT
        (tmp_path / "texts" / f"{number:02d}.txt").write_text(f"Text {number}. {text}")
    printed: dict[str, str] = {}
    for language, block in FENCES:
        if language == "python":
            continue
        for line in block.splitlines():
            command, _, remark = line.partition("  # ")
            words = shlex.split(command)
            if words[1] == "train":
                printed[command] = launch(tmp_path, words, interrupt=remark == CTRL_C)
                continue
            done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            printed[command] = done.stdout
    check_the_run(tmp_path)
    check_the_writing(printed)


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


def check_the_writing(printed: dict[str, str]) -> None:
    """The run, its export and transformers write the same."""
    own, exported = (text for command, text in printed.items() if " generate " in command)
    (code,) = (block for language, block in FENCES if language == "python")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert own.startswith("To be")
    assert len(own) > len("To be\n")
    assert own == exported == done.stdout
