"""One steady optimizer step of an engine, written down in program order."""

from dataclasses import replace

from toolkit.engines.deepspeed_config import is_reduced_in_place
from toolkit.engines.strategies import Strategy
from toolkit.program.ddp import DdpWalk
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Program
from toolkit.program.fsdp2 import Fsdp2Walk
from toolkit.program.model import ModelWalk
from toolkit.program.readers.peak import Peak, read_peak
from toolkit.program.settings import StepSettings
from toolkit.program.zero2_in_place import InPlaceWalk
from toolkit.program.zero3 import Zero3Walk
from toolkit.program.zero12 import Zero1Bf16Walk, Zero12Walk

WALKED_MICRO_STEPS = 3
"""First, one in the middle and last: all others in between are the same."""

_WALKS: dict[Strategy, type[EngineWalk]] = {
    "single": EngineWalk,
    "ddp": DdpWalk,
    "fsdp2": Fsdp2Walk,
    "fsdp2_no_reshard": Fsdp2Walk,
    "hsdp": Fsdp2Walk,
    "zero1": Zero12Walk,
    "zero2": Zero12Walk,
    "zero3": Zero3Walk,
}


def write_step(settings: StepSettings) -> Program:
    """Return the program of a step after the first two, when engine and optimizer have settled."""
    program = Program()
    engine = build_engine_walk(settings, program)
    engine.start()
    micro_steps = min(settings.grad_accum_steps, WALKED_MICRO_STEPS)
    tokens = 16 * settings.micro_batch_size * settings.seq_len
    program.alloc("other", tokens * settings.grad_accum_steps)
    for micro_step in range(micro_steps):
        is_last = micro_step == micro_steps - 1
        is_middle = micro_step > 0 and not is_last
        times = settings.grad_accum_steps - micro_steps + 1 if is_middle else 1
        program.begin("micro-step", times=times)
        engine.begin_micro_step(micro_step, is_last=is_last)
        model = ModelWalk(settings, program, engine)
        model.forward()
        model.backward()
    program.begin("update")
    engine.step()
    return program


def estimate_peak(settings: StepSettings) -> Peak:
    """Return the peak of allocated bytes on one rank, with its parts and where it falls.

    With torch.compile it is the upper end of a range, whose lower end stands beside it.
    """
    peak = read_peak(write_step(settings))
    if not settings.compile:
        return peak
    return replace(peak, least=read_peak(write_step(replace(settings, least_kept=True))).total)


def build_engine_walk(settings: StepSettings, program: Program) -> EngineWalk:
    """Return the walk of the engine that the strategy runs on."""
    strategy, precision = settings.strategy, settings.precision
    walk = _WALKS[strategy]
    if strategy == "zero1" and precision == "bf16":
        walk = Zero1Bf16Walk
    in_place = is_reduced_in_place(strategy, settings.accumulation, precision)
    # With its state on the host, DeepSpeed goes through the bucket whatever the setting.
    if in_place and not settings.offload_optimizer:
        walk = InPlaceWalk
    return walk(settings, program)
