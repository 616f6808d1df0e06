"""The seconds of a run's steps: measured by part, and compared with the prediction at the end."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from os import environ
from statistics import median

import torch

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.prediction.calibration import Here, NotCalibrated, find_calibration
from toolkit.prediction.measure import cpu_name
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log, Phase, Progress

PARTS = ("passes", "optimizer", "waiting", "loop")


class StepTimes(Callback):
    """Measures the steps of a start but the first, which is checked, and on a CPU the second, whose
    memory is measured.

    On a CPU one thread computes both passes and the update, and what passes on the clock without
    passing on its processor time is waiting: for other ranks, or for a core. What passes outside
    forward, backward and update is the loop. Work of a GPU is queued, so only whole steps are
    known.

    Attributes:
        step_s: median seconds of a step; None before one was measured.
        parts: median seconds of `PARTS` on this rank; None on a GPU.
        predicted_s: by the calibration of this machine; None where none covers it.
    """

    def __init__(self, run: Run, log: Log) -> None:
        self.run = run
        self.log = log
        self.predicted_s: float | None = None
        self._steps: list[float] = []
        self._parts: list[tuple[float, ...]] = []
        self._spent: dict[str, float] = {}
        self._since: tuple[str, float, float] | None = None

    @contextmanager
    def during_update(self, progress: Progress) -> Iterator[None]:
        """Begin and end the phases of an update."""
        self._spent = dict.fromkeys(PARTS, 0.0)
        self.on_phase("forward")
        yield
        self._end_phase()

    def on_phase(self, phase: Phase) -> None:
        """End one phase and begin another."""
        self._end_phase()
        part = "optimizer" if phase == "optimizer" else "passes"
        self._since = part, time.perf_counter(), time.thread_time()

    def _end_phase(self) -> None:
        if self._since is None:
            return
        part, started, busy = self._since
        busy_s = time.thread_time() - busy
        self._spent[part] += busy_s
        self._spent["waiting"] += max(0.0, time.perf_counter() - started - busy_s)
        self._since = None

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Keep a step's seconds."""
        if progress.done < (3 if self.run.engine.device.type == "cpu" else 2):
            return
        self._spent["loop"] = max(0.0, progress.seconds - sum(self._spent.values()))
        self._steps.append(progress.seconds)
        self._parts.append(tuple(self._spent[part] for part in PARTS))

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step."""
        return median(self._steps) if self._steps else None

    @property
    def parts(self) -> dict[str, float] | None:
        """Median seconds of each part."""
        if not self._parts or self.run.engine.device.type != "cpu":
            return None
        found = zip(*self._parts, strict=True)
        return {part: median(seconds) for part, seconds in zip(PARTS, found, strict=True)}

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Compare with the prediction."""
        if error is None and self.step_s is not None and self.run.engine.rank == 0:
            self.log(self._comparison(self.step_s))

    def _comparison(self, measured_s: float) -> str:
        found = f"measured {1e3 * measured_s:,.1f} ms a step (median of {len(self._steps)})"
        engine = self.run.engine
        settings = launched_step(self.run.config, engine.launched, engine.device.type)
        try:
            calibration = find_calibration(settings, here(engine.device))
        except NotCalibrated as missing:
            return f"time       {found}; not predicted: {missing}"
        self.predicted_s = calibration.predict(write_step(settings)).step_s
        return (
            f"time       predicted {1e3 * self.predicted_s:,.1f}, {found}, difference "
            f"{self.predicted_s / measured_s - 1:+.1%}; {calibration.source}"
        )


def here(device: torch.device) -> Here:
    """Return where this rank runs."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    ranks = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return Here(name, version("torch"), ranks)


def launched_step(config: RunConfig, launched: Launched, device_type: str) -> StepSettings:
    """Return the settings of the step that was launched."""
    return settings_of_run(
        config,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
        device="cuda" if device_type == "cuda" else "cpu",
    )
