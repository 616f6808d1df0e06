"""What some steps did, rank by rank and phase by phase, for `toolkit watch RUN`.

Each rank appends a line per step to `record/rank_00000.jsonl` in the run's folder. Seconds count
from the update's own start on that rank: the clocks of several machines are not compared.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from toolkit.engines.clock import Mark, clock_of
from toolkit.engines.engine import Engine
from toolkit.engines.timed_collectives import Timed, TimedCollectives, exposed
from toolkit.errors import SaveError
from toolkit.memory.allocated import allocated
from toolkit.training.callback import Callback, Log, Phase, Progress
from toolkit.training.step import count_valid

FOLDER = "record"


class Record(Callback):
    """Records the updates from a first to a last step, on every rank.

    Args:
        folder: of the run.
        engine: whose step it is.
        steps: the first and the last, counted from 1; None records nothing.
        log: for the folder.
    """

    def __init__(
        self, folder: Path, engine: Engine, steps: tuple[int, ...] | None, log: Log
    ) -> None:
        self.file = folder / FOLDER / f"rank_{engine.rank:05d}.jsonl"
        self.engine = engine
        self.steps = steps
        self.log = log
        self._update: RecordedUpdate | None = None

    def is_due(self, step: int, done: int) -> bool:
        """Whether a step is recorded; the first two of a start are checked and measured."""
        first, last = self.steps or (0, 0)
        return first <= step <= last and done > 1

    @contextmanager
    def during_update(self, progress: Progress) -> Iterator[None]:
        """Record the update where it is to be."""
        if not self.is_due(progress.step + 1, progress.done):
            yield
            return
        self._update = RecordedUpdate(self.engine)
        with self._update.watching():
            yield

    def on_phase(self, phase: Phase) -> None:
        """Note where a phase begins."""
        if self._update is not None:
            self._update.enter(phase)

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Write what was recorded.

        Raises:
            SaveError: it cannot be written.
        """
        if self._update is None:
            return
        recorded = {
            "step": progress.step,
            "loss": progress.loss,
            "step_s": progress.seconds,
            **self._update.to_json(),
        }
        self._update = None
        first, last = self.steps or (0, 0)
        try:
            self.file.parent.mkdir(exist_ok=True)
            with self.file.open("w" if progress.step == first else "a") as file:
                file.write(json.dumps(recorded) + "\n")
        except OSError as error:
            raise SaveError(f"{self.file}: cannot be written: {error.strerror}") from None
        if progress.step == last:
            self.log(f"record     {self.file.parent}, for toolkit watch {self.file.parents[1]}")


class RecordedUpdate:
    """One update of one rank: when its phases began, and what was there then."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = clock_of(engine.device)
        self.collectives = TimedCollectives(self.clock)
        self.phases: list[str] = []
        self.marks: list[Mark] = []
        self.memory: list[tuple[int, int | None]] = []
        self.losses: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the update that is made inside."""
        self._mark()
        handle = self.engine.module.register_forward_hook(self._keep_loss)
        try:
            with self.collectives.watching():
                yield
        finally:
            handle.remove()
        self._mark()

    def enter(self, phase: Phase) -> None:
        """Begin a phase; after the optimizer comes the same batch again, where fp16 overflowed."""
        if "optimizer" in self.phases:
            self.phases, self.marks, self.memory, self.losses = [], [], [], []
            self.collectives.timed.clear()
            self.collectives.phase = -1
            self._mark()
        self.phases.append(phase)
        self.collectives.begin_phase()
        self._mark()

    def _mark(self) -> None:
        self.memory.append((self.engine.state.held_gradient_bytes(), allocated(self.engine.device)))
        self.marks.append(self.clock.now())

    def _keep_loss(self, _module: Any, inputs: tuple[Any, ...], loss: torch.Tensor) -> None:
        self.losses.append((count_valid([inputs]), loss.detach()))

    def to_json(self) -> dict[str, Any]:
        """Return what was recorded.

        Returns:
            `marks`: seconds at which the update, each of its `phases` and what follows begin;
            `gradient_bytes` and `allocated_bytes` at those; `parameter_bytes`, `optimizer_bytes`;
            `losses`: of each micro-step its targets, and the sum of their losses in nats;
            `collectives`: kind, elements, bytes of each, ranks, number of the phase (-1 before the
            first), when it was issued and over, and for how long it was waited for.
        """
        since = self.marks[0]
        parameters, optimizer = self.engine.state.held_bytes()
        return {
            "phases": self.phases,
            "marks": [self.clock.seconds(since, mark) for mark in self.marks],
            "gradient_bytes": [gradients for gradients, _ in self.memory],
            "allocated_bytes": [total for _, total in self.memory],
            "parameter_bytes": parameters,
            "optimizer_bytes": optimizer,
            "losses": [(int(count), float(total)) for count, total in self.losses],
            "collectives": list(self._collectives(since)),
        }

    def _collectives(self, since: Mark) -> Iterator[list[Any]]:
        for phase, found in groupby(self.collectives.timed, key=lambda each: each.phase):
            of_phase: list[Timed] = list(found)
            times = exposed(of_phase, since, self.clock)
            for each, when in zip(of_phase, times, strict=True):
                what = each.what
                yield [what.kind, what.elements, what.itemsize, list(what.ranks), phase, *when]
