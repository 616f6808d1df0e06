"""Accumulation that a budget or the device decides, settled before a run begins."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.engines.mixture import Budget
from toolkit.engines.strategies import SUPPORT
from toolkit.errors import UsageError
from toolkit.memory.hardware import Gpu, find_gpu, with_unit
from toolkit.prediction.calibration import Here, NotCalibrated, find_calibration
from toolkit.prediction.devices import find_speed, widest_use
from toolkit.prediction.measure import cpu_name
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict
from toolkit.program.budget import Clock, choose
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import sent_bytes
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import estimate_peak, write_step


def spend_budget(config: RunConfig, launched: Launched) -> tuple[RunConfig, list[str]]:
    """Return the run with what its budget buys, and a sentence about it.

    A run whose configuration names a mode or units is returned as it is.
    """
    asked = config.accumulation
    if not isinstance(asked, Budget):
        return config, []
    gpu, holds = _device()
    settings = settings_of_run(
        config,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
        device="cuda" if gpu else "cpu",
        accumulation="replicated" if asked.bytes is None else None,
    )
    clock, unknown = None, ""
    try:
        clock = _find_clock(settings, gpu)
    except NotCalibrated as missing:
        unknown = f"; the time of a step is not predicted: {missing}"
    if asked.bytes is None:
        settings = replace(settings, accumulation=choose(settings, holds, clock))
    settled = config.model_copy(update={"accumulation": settings.accumulation})
    bought = _bought(settings, clock)
    return settled, [f"accumulation: {asked} is {settings.accumulation}: {bought}{unknown}"]


def _bought(settings: StepSettings, clock: Clock | None) -> str:
    """Return what a step holds, sends and takes, beside `sharded` where that is a choice."""
    steps = {"": settings}
    if SUPPORT[settings.strategy]["sharded"].possible:
        steps[" (sharded {})"] = replace(settings, accumulation="sharded")
    programs = {template: write_step(step) for template, step in steps.items()}
    figures = {
        "at its peak": lambda name: with_unit(estimate_peak(steps[name]).total),
        "of gradients held": lambda name: with_unit(read_held(programs[name]) or 0),
        "communicated per step": lambda name: with_unit(sent_bytes(programs[name])),
    }
    if clock is not None:
        figures["predicted per step"] = lambda name: f"{1e3 * clock(steps[name]):.4g} ms"
    return ", ".join(
        f"{figure('')} {what}" + "".join(name.format(figure(name)) for name in steps if name)
        for what, figure in figures.items()
    )


def _device() -> tuple[Gpu | None, Callable[[int], bool]]:
    """Return this rank's GPU, None on CPUs, and whether its memory holds a peak of so many bytes.

    The host's memory is shared by its ranks.
    """
    import torch

    from toolkit.training.memory import available_memory

    if not torch.cuda.is_available():
        host = available_memory(torch.device("cpu"))
        return None, lambda peak: peak <= host
    name = torch.cuda.get_device_name()
    size = available_memory(torch.device("cuda", 0))
    try:
        known = find_gpu(name)
    except UsageError:
        known = find_gpu(f"{size / 2**20:.0f}MiB")
    gpu = replace(known, memory_bytes=min(size, known.memory_bytes))
    return gpu, gpu.holds


def _find_clock(settings: StepSettings, gpu: Gpu | None) -> Clock:
    """Return what predicts a step with any accumulation, on a CPU where it was measured.

    Raises:
        NotCalibrated: nothing does; the message names what is missing.
    """
    per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpu is None:
        calibration = find_calibration(settings, Here(cpu_name(), version("torch"), per_machine))
        return lambda step: calibration.predict(write_step(step)).step_s
    if per_machine < settings.world_size:
        raise NotCalibrated("no calibration covers links between machines")
    try:
        speed = find_speed(gpu.name)
    except UsageError:
        raise NotCalibrated(f"the speed of {gpu.name} is not known") from None
    costs = speed.costs((speed.use or widest_use()).middle)

    def seconds(step: StepSettings) -> float:
        network = RingNetwork(step, step.world_size, speed.link_bytes_per_s, None)
        return predict(write_step(step), costs, network).step_s

    return seconds
