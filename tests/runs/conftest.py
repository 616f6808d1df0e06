import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import RunConfig, dump_run_config
from toolkit.training.run_folder import finish_start

Make = Callable[..., Path]
GIB = 2**30


def train(step: int, loss: float, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "loss": loss,
        "grad_norm": 2 * loss,
        "lr": 1e-3,
        "tokens": 512 * step,
        "tokens_per_s": 100.0,
        "step_s": 36.0,
        "peak_memory_bytes": GIB // 2,
        **changes,
    }


def evaluation(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "loss": loss, "tokens": 480}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a maker of run folders with these records."""

    def make(
        name: str,
        *records: dict[str, Any],
        config: dict[str, Any] | None = None,
        strategy: str = "ddp",
        is_done: bool = True,
    ) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        values = {"run_name": name, "training": {"steps": 4}, **(config or {})}
        (folder / "config.yaml").write_text(dump_run_config(RunConfig.model_validate(values)))
        (folder / "launch.yaml").write_text(f"strategy: {strategy}\nworld_size: 2\n")
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / "metrics.jsonl").write_text("".join(lines))
        if is_done:
            finish_start(folder, {"exit": 0, "reason": "done"})
        return folder

    return make
