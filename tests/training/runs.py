"""One start of the tiny run in this process, and what it left in its folder."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.store import CheckpointStore
from toolkit.config import RunConfig
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.memory.advice import estimate_run
from toolkit.training.build import build_run
from toolkit.training.callback import Callback, Phase, Progress
from toolkit.training.callbacks import build_loop
from toolkit.training.run_folder import run_folder
from toolkit.training.stop import StopRequest
from toolkit.training.summary import Summary

Start = Callable[..., "TinyRun"]


class TinyRun:
    """A run that is built and resumed; `fit` trains it."""

    def __init__(
        self,
        config: RunConfig,
        log: Callable[[str], None],
        *,
        strict: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        forget_engine()
        launched = read_launch({})
        self.folder = run_folder(config)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = build_run(config, launched, self.folder)
        self.estimate = estimate_run(config, launched, device_type="cpu")
        self.stop = StopRequest()
        self.loop, self.report = build_loop(
            self.run,
            self.folder,
            log,
            estimate=self.estimate,
            stop=self.stop,
            strict=strict,
            others=callbacks,
        )
        self.store = CheckpointStore(self.folder / "checkpoints")

    def fit(self) -> None:
        self.loop.fit()

    def change(self, **keys: object) -> None:
        """Change keys of the configuration for the loop alone."""
        self.loop.run = replace(self.run, config=self.run.config.model_copy(update=keys))

    @property
    def engine(self) -> Engine:
        return self.run.engine

    @property
    def progress(self) -> Progress:
        return self.loop.progress

    @property
    def counted(self) -> tuple[int, int, int]:
        return self.progress.step, self.progress.data_step, self.progress.updates

    @property
    def summary(self) -> Summary:
        summary = Summary()
        self.report.complete(summary)
        return summary

    @property
    def committed(self) -> list[str]:
        return [path.name for path in self.store.committed()]

    def records(self, kind: str = "train") -> list[dict[str, Any]]:
        return records(self.folder, kind)

    def column(self, key: str) -> list[Any]:
        return [record[key] for record in self.records()]

    def curve(self) -> list[tuple[Any, ...]]:
        keys = ("step", "loss", "grad_norm", "lr", "tokens")
        return [tuple(record[key] for key in keys) for record in self.records()]

    def bits(self) -> list[torch.Tensor]:
        return [
            parameter.detach().clone() for _, parameter in self.engine.module.named_parameters()
        ]

    def poison(self, *data_steps: int, factor: float = float("nan")) -> None:
        """Multiply the gradient in the batches with these numbers."""
        self.engine.module.get_parameter("transformer.ln_f.weight").register_hook(
            lambda gradient: (
                gradient * factor if self.progress.data_step in data_steps else gradient
            )
        )


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def summary(run_file: Path, name: str = "summary.json") -> dict[str, Any]:
    """Read how the run of a file stands, or with `last_start.json` how its last start ended."""
    found: dict[str, Any] = json.loads((folder_of(run_file) / name).read_text())
    return found


def folder_of(run_file: Path) -> Path:
    return run_file.parent / "runs" / run_file.stem


UNFORESEEN = ValueError("unforeseen")


class Failure(Callback):
    """Fails in an update of this start, after some; notes each time whether a file is there."""

    def __init__(self, error: Exception, *, after: int = 0, exists: Path = Path()) -> None:
        self.error = error
        self.after = after
        self.path = exists
        self.existed: list[bool] = []

    def on_phase(self, phase: Phase) -> None:
        if phase == "optimizer":
            self.existed.append(self.path.exists())
            if len(self.existed) > self.after:
                raise self.error
