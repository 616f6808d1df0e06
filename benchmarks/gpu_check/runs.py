"""Whole runs on the device: saved asynchronously and resumed bit-equal, and one that hangs."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu_check import hanging
from benchmarks.gpu_check.scale import Scale
from toolkit.errors import HangError
from toolkit.shipped import ROOT
from toolkit.training.run_folder import read_last_start

STEPS = 6
HANG_AFTER_S = 10.0


def resume(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield whether a run that was stopped half-way ends in the bits of one that was not."""
    prepare(scale, folder)
    for name, changes in (("deterministic", ["training.deterministic=true"]), ("default", [])):
        unbroken = _final_state(scale, folder, [*changes, f"run_name={name}-unbroken"])
        broken = [*changes, f"run_name={name}-broken"]
        _train(scale, folder, [*broken, f"training.stop_at={STEPS // 2}"])
        equal = _final_state(scale, folder, broken) == unbroken
        must = name == "deterministic" or scale.device == "cpu"
        wrong = {"problem": "the resumed run ended in other bits"} if must and not equal else {}
        yield {"run": name, "bit_equal": equal, **wrong}


def hang(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield how a run ended whose device never came to the end of a step."""
    if not (folder / "run.yaml").exists():
        prepare(scale, folder)
    words = [f"training.timeout_s={HANG_AFTER_S:g}", "run_name=hang"]
    command = [sys.executable, "-m", hanging.__name__, str(folder / "run.yaml"), *words]
    code = _run(command, scale).returncode
    ended = read_last_start(folder / "runs" / "hang") or {}
    wrong = code != HangError.exit_code
    problem = {"problem": f"exit code {code}, not {HangError.exit_code}"} if wrong else {}
    yield {"run": "hang", "exit": code, "reason": ended.get("reason"), **problem}


def prepare(scale: Scale, folder: Path) -> None:
    """Write a configuration, and shards of the project's own documents."""
    documents = [str(path) for path in sorted((ROOT / "docs").glob("*.md"))]
    words = ["data", "prepare", *documents, "--out", str(folder / "data"), "--val-fraction", "0.1"]
    _run([sys.executable, "-m", "toolkit", *words], scale).check_returncode()
    training = {"steps": STEPS, "checkpoint_every": STEPS // 2, "async_save": True}
    config = {
        **scale.run,
        "data": {"train": str(folder / "data" / "train")},
        "output_dir": str(folder / "runs"),
        "training": training,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))


def _final_state(scale: Scale, folder: Path, words: Sequence[str]) -> list[str]:
    """Train to the end; return the hashes of the last checkpoint's tensors."""
    _train(scale, folder, words)
    name = words[-1].removeprefix("run_name=")
    last = folder / "runs" / name / "checkpoints" / f"step_{STEPS:08d}"
    files = sorted(last.glob("rank_*.safetensors"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def _train(scale: Scale, folder: Path, words: Sequence[str]) -> None:
    train = ["train", "--strategy", "single", "--config", str(folder / "run.yaml"), *words]
    _run([sys.executable, "-m", "toolkit", *train], scale).check_returncode()


def _run(command: Sequence[str], scale: Scale) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=scale.timeout_s
    )
