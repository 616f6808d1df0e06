"""A trace of some steps by PyTorch's profiler, to be looked at in Perfetto."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from toolkit.engines.engine import Engine
from toolkit.errors import SaveError
from toolkit.training.callback import Callback, Log, Progress

_LARGEST = 10


class Profile(Callback):
    """Profiles the updates from a first to a last step, on every rank.

    Each rank writes `rank_00000.json.gz`, which https://ui.perfetto.dev opens, and
    `rank_00000.txt`, a table of the ten largest operations by their own time.

    Args:
        folder: to write to; made when there is something to write.
        engine: whose rank and device these are.
        steps: the first and the last, counted from 1; None profiles nothing.
        log: for the folder.
    """

    def __init__(
        self, folder: Path, engine: Engine, steps: tuple[int, ...] | None, log: Log
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.steps = steps
        self.log = log
        self._profiler: Any = None

    @contextmanager
    def during_update(self, progress: Progress) -> Iterator[None]:
        """Record a step that is to be; the first two of a start are checked and measured.

        Raises:
            SaveError: what was recorded cannot be written.
        """
        if self.steps is None:
            yield
            return
        step = progress.step + 1
        first, last = self.steps
        if self._profiler is None and first <= step <= last and progress.done > 1:
            self._profiler = profile(activities=self._activities())
            self._profiler.start()
        yield
        if self._profiler is not None and step >= last:
            self._profiler.stop()
            self._write(self._profiler)
            self._profiler = None

    def _activities(self) -> list[ProfilerActivity]:
        on_gpu = [ProfilerActivity.CUDA] if self.engine.device.type == "cuda" else []
        return [ProfilerActivity.CPU, *on_gpu]

    def _write(self, profiler: Any) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        own_time = f"self_{self.engine.device.type}_time_total"
        table = profiler.key_averages().table(sort_by=own_time, row_limit=_LARGEST)
        trace = self.folder / f"rank_{self.engine.rank:05d}.json.gz"
        try:
            self.folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(trace))
            trace.with_name(f"rank_{self.engine.rank:05d}.txt").write_text(table)
        except (OSError, RuntimeError) as error:
            raise SaveError(f"{self.folder}: the profile cannot be written: {error}") from None
        self.log(f"profile    {trace.parent}, for https://ui.perfetto.dev")
