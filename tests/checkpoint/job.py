"""Starts of one small run that are killed, stopped and started again."""

import json
import subprocess
from pathlib import Path
from typing import Any

from toolkit.checkpoint.store import CheckpointStore, find_damage

ROOT = Path(__file__).parents[2]
STEPS = 6
KILLED = -9


class Job:
    """Starts of one run on real files, each in a process of its own."""

    def __init__(self, folder: Path, server: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self.server = server

    def start(
        self, name: str, *overrides: str, fault: str = "", kill_after_s: float | None = None
    ) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        order = {
            "arguments": [
                "--config",
                str(self.folder / "run.yaml"),
                f"run_name={name}",
                *overrides,
            ],
            "environment": {"FAULT": fault},
            "log": str(self.folder / f"{name}.log"),
            "kill_after_s": kill_after_s,
        }
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        code: int = json.loads(self.server.stdout.readline())
        return code

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def store(self, name: str) -> CheckpointStore:
        return CheckpointStore(self.run(name) / "checkpoints")

    def steps(self, name: str) -> list[int]:
        return [int(path.name.removeprefix("step_")) for path in self.store(name).committed()]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def curve(self, name: str) -> list[tuple[Any, ...]]:
        lines = (self.run(name) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [(r["step"], r["loss"], r["grad_norm"], r["tokens"]) for r in records]

    def records(self, name: str) -> list[tuple[str, int, Any]]:
        lines = (self.run(name) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [(r["kind"], r["step"], r.get("loss", r.get("text"))) for r in records]

    def end_state(self, name: str) -> bytes:
        newest = self.store(name).committed()[-1]
        assert list(find_damage(newest)) == []
        return (newest / "rank_00000.safetensors").read_bytes()


def assert_ends_as(job: Job, name: str, straight: str) -> None:
    assert job.curve(name) == job.curve(straight)
    assert job.end_state(name) == job.end_state(straight)
    left = {path.name for path in job.store(name).folder.iterdir()}
    # What the very last pruning left is cleared away by the next saving.
    assert left - {"step_00000002.deleted"} == {"step_00000004", "step_00000006"}
