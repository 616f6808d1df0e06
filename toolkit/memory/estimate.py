"""The closed-form estimate: one steady optimizer step walked in program order."""

from dataclasses import replace

from toolkit.backends.deepspeed_config import is_reduced_in_place
from toolkit.memory.ddp_walk import DdpWalk
from toolkit.memory.engine import EngineWalk
from toolkit.memory.fsdp2_walk import Fsdp2Walk
from toolkit.memory.ledger import Ledger, Peak
from toolkit.memory.model_walk import ModelWalk
from toolkit.memory.settings import StepSettings
from toolkit.memory.zero3_walk import Zero3Walk
from toolkit.memory.zero12_walk import Zero1Bf16Walk, Zero2InPlaceWalk, Zero12Walk

WALKED_MICRO_STEPS = 3
"""First, one in the middle and last: all others in between are the same."""


def walk_step(settings: StepSettings) -> Ledger:
    """Return the allocations of a step after the first, when the optimizer's state is there."""
    ledger = Ledger()
    engine = build_engine_walk(settings, ledger)
    engine.start()
    micro_steps = min(settings.grad_accum_steps, WALKED_MICRO_STEPS)
    tokens = 16 * settings.micro_batch_size * settings.seq_len
    ledger.add("other", tokens * settings.grad_accum_steps)
    for micro_step in range(micro_steps):
        engine.begin_micro_step(micro_step, is_last=micro_step == micro_steps - 1)
        model = ModelWalk(settings, ledger, engine)
        model.forward()
        model.backward()
    engine.step()
    return ledger


def estimate_peak(settings: StepSettings) -> Peak:
    """Return the peak of allocated bytes on one rank, with its parts and where it falls.

    With torch.compile it is the upper end of a range, whose lower end stands beside it.
    """
    peak = walk_step(settings).peak()
    if not settings.compile:
        return peak
    return replace(peak, least=walk_step(replace(settings, least_kept=True)).peak().total)


def build_engine_walk(settings: StepSettings, ledger: Ledger) -> EngineWalk:
    """Return the walk of the engine that the strategy runs on."""
    if settings.strategy == "single":
        return EngineWalk(settings, ledger)
    if settings.strategy == "ddp":
        return DdpWalk(settings, ledger)
    if settings.strategy == "zero3":
        return Zero3Walk(settings, ledger)
    if settings.strategy == "zero1" and settings.precision == "bf16":
        return Zero1Bf16Walk(settings, ledger)
    if _reduces_in_place(settings):
        return Zero2InPlaceWalk(settings, ledger)
    if settings.strategy in ("zero1", "zero2"):
        return Zero12Walk(settings, ledger)
    return Fsdp2Walk(settings, ledger)


def _reduces_in_place(settings: StepSettings) -> bool:
    """With its state on the host, DeepSpeed goes through the bucket whatever it is told."""
    return not settings.offload_optimizer and is_reduced_in_place(
        settings.strategy, settings.accumulation, settings.precision
    )
