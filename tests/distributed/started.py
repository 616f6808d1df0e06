"""Launches of the main job that are meant to end badly, and what they leave."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests import faulty
from toolkit.engines.strategies import Strategy
from toolkit.shipped import ROOT, find_launch_file


class Ended:
    """How a launch ended: its printed lines and its code."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        try:
            self.printed, _ = process.communicate(timeout=110)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.code = process.returncode


def start(
    folder: Path,
    strategy: Strategy,
    ranks: int,
    name: str,
    *overrides: str,
    fault: str = "",
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("accelerate")), "launch", *options]
    command += ["--config_file", str(find_launch_file(strategy)), "--num_processes", str(ranks)]
    words = ["--config", str(folder / "run.yaml"), f"run_name={name}", *overrides]
    settings = {"FAULT": fault, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, faulty.__file__, *words],
        env={**os.environ, **settings, "HF_HOME": str(folder), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextmanager
def toolkit_train(
    folder: Path, strategy: Strategy, ranks: int, name: str, *overrides: str
) -> Iterator["subprocess.Popen[str]"]:
    """`toolkit train` that has begun to train, and nothing of it once the block is over.

    It leads a process group that its launcher and ranks are not in.
    """
    words = [str(Path(sys.executable).with_name("toolkit")), "train", "--strategy", strategy]
    words += ["--num-processes", str(ranks)]
    words += ["--config", str(folder / "run.yaml"), f"run_name={name}", *overrides]
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words,
        env={**os.environ, **settings, "HF_HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: has_begun(folder, name), limit_s=90)
        yield process
    finally:
        for left in left_over(folder, name):
            left.kill()
        process.communicate()


def has_begun(folder: Path, name: str) -> bool:
    """Whether a run has some steps behind it."""
    path = folder / "runs" / name / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") > 2


def run(*arguments: Any, **settings: Any) -> Ended:
    return Ended(start(*arguments, **settings))


def left_over(folder: Path, name: str) -> list[psutil.Process]:
    words = {str(folder / "run.yaml"), f"run_name={name}"}
    return [p for p in psutil.process_iter(["cmdline"]) if words <= {*(p.info["cmdline"] or [])}]


def wait_until(condition: Callable[[], bool], *, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
