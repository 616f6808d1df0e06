"""What was asked against what is effective, read off the wrapped model and the running first step.

Engines fall back in silence: an unlaunched world trains copies, a misspelt stage becomes the
default, a tied head comes apart. Each of these is an error here, not a line in a log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from toolkit.engines.build import TORCH_DTYPES, sum_dtype
from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.engine import Engine
from toolkit.engines.exchange import Exchange
from toolkit.engines.mixture import stays_gathered
from toolkit.engines.strategies import FSDP2_STRATEGIES, Precision, frees_after_forward
from toolkit.engines.torch_internals import (
    mixed_precision,
    reduce_scatter_of,
    reshards_after_forward,
)
from toolkit.engines.traffic import REDUCING, Reductions
from toolkit.errors import UsageError


@dataclass(frozen=True)
class Fact:
    """One thing that was asked, beside what was found."""

    name: str
    asked: Any
    found: Any

    def describe(self) -> str:
        """Return what was found, as a person would write it."""
        return _words(self.found)


def _words(value: Any) -> str:
    values = value if isinstance(value, set) else {value}
    return ", ".join(sorted(str(one).removeprefix("torch.") for one in values)) or "none"


def check_effective(
    engine: Engine, *, precision: Precision, tied: tuple[str, str] | None = None
) -> list[Fact]:
    """Compare the wrapped model with what was asked; return all facts compared.

    Args:
        engine: freshly built.
        precision: the run's.
        tied: two dotted names that must be one parameter, if the model has any.

    Raises:
        UsageError: every fact that differs, asked beside found.
    """
    facts = [
        Fact("world size", engine.world_size, engine.accelerator.num_processes),
        Fact("wrapper", _wrapper(engine), type(engine.model).__name__),
        *([Fact("tied weights", "one parameter", _tie(engine.module, *tied))] if tied else []),
        Fact("optimizer's parameters", "the model's", _optimizer_parameters(engine)),
        Fact("Accelerate's own divisor of the loss", 1, _divisor(engine)),
        Fact("fp32 matrix products", "highest", torch.get_float32_matmul_precision()),
        *_strategy_facts(engine, precision),
    ]
    _raise_differences(facts)
    return facts


def _wrapper(engine: Engine) -> str:
    """Return the class that the launched strategy makes of the model's own."""
    strategy = engine.launched.strategy
    if strategy.startswith("zero"):
        return "DeepSpeedEngine"
    if strategy == "ddp":
        return "DistributedDataParallel"
    plain = next(c for c in type(engine.module).__mro__ if not issubclass(c, FSDPModule))
    return f"FSDP{plain.__name__}" if strategy in FSDP2_STRATEGIES else plain.__name__


def _divisor(engine: Engine) -> int:
    """What `accelerator.backward` divides by; under DeepSpeed it is not used."""
    if engine.launched.strategy.startswith("zero"):
        return 1
    return int(engine.accelerator.gradient_accumulation_steps)


def _raise_differences(facts: list[Fact]) -> None:
    differences = [
        f"{fact.name}: asked {_words(fact.asked)}, found {_words(fact.found)}"
        for fact in facts
        if fact.asked != fact.found
    ]
    if differences:
        raise UsageError("what was asked is not effective: " + "; ".join(differences))


def _tie(module: nn.Module, first: str, second: str) -> str:
    one = module.get_parameter(first) is module.get_parameter(second)
    return "one parameter" if one else f"{first} and {second} are two"


def _optimizer_parameters(engine: Engine) -> str:
    held = {id(parameter) for parameter in engine.state.updated_parameters()}
    missing = [name for name, p in engine.module.named_parameters() if id(p) not in held]
    return f"without {missing[0]}" if missing else "the model's"


def _strategy_facts(engine: Engine, precision: Precision) -> list[Fact]:
    if engine.launched.strategy.startswith("zero"):
        return _zero_facts(engine, precision)
    masters = [Fact("parameter dtypes", {torch.float32}, _dtypes(engine))]
    if engine.launched.strategy in ("single", "ddp"):
        return masters
    return masters + _fsdp2_facts(engine, precision)


def _dtypes(engine: Engine) -> set[torch.dtype]:
    return {parameter.dtype for _, parameter in engine.module.named_parameters()}


def _fsdp2_facts(engine: Engine, precision: Precision) -> list[Fact]:
    from toolkit.engines.fsdp2 import Fsdp2Engine, units_of

    fsdp2, strategy = cast(Fsdp2Engine, engine), engine.launched.strategy
    blocks = fsdp2.blocks
    wrapped = [block for block in blocks if isinstance(block, FSDPModule)]
    policy = mixed_precision(engine.model)
    shards = engine.world_size // engine.launched.replicas
    sizes = [_shard_excess(parameter, shards) for _, parameter in engine.module.named_parameters()]
    reshards = {number for number, block in enumerate(wrapped) if reshards_after_forward(block)}
    exchanges = {fsdp2.name_of(u): reduce_scatter_of(u) for u in units_of(engine.module)}
    exchanging = {u: each.sent for u, each in exchanges.items() if isinstance(each, Exchange)}
    asked_to = {
        number
        for number in range(len(blocks))
        if frees_after_forward(strategy)
        and not stays_gathered(strategy, engine.accumulation, number)
    }
    return [
        Fact("sharded blocks", len(blocks), len(wrapped)),
        Fact("parameters sharded beyond their share", 0, sum(excess != 0 for excess in sizes)),
        Fact("blocks that reshard after forward", asked_to, reshards),
        Fact("compute dtype", TORCH_DTYPES[precision], policy.param_dtype or torch.float32),
        Fact("reduction dtype", sum_dtype(engine.reduce), policy.reduce_dtype or torch.float32),
        Fact("units that exchange", set(fsdp2.exchanging.items()), set(exchanging.items())),
    ]


def _shard_excess(parameter: nn.Parameter, shards: int) -> int:
    """Elements held locally beyond (or short of) this rank's slice of dimension 0."""
    sharded = cast(DTensor, parameter)
    mesh_dim = next(i for i, p in enumerate(sharded.placements) if isinstance(p, Shard))
    index = sharded.device_mesh.get_local_rank(mesh_dim)
    if sharded.device_mesh.size(mesh_dim) != shards:
        return -1
    rows = sharded.shape[0]
    per_rank = -(-rows // shards)
    mine = max(0, min(rows, (index + 1) * per_rank) - index * per_rank)
    return sharded.to_local().numel() - mine * sharded.numel() // rows


def _zero_facts(engine: Engine, precision: Precision) -> list[Fact]:
    from toolkit.engines.deepspeed_internals import whole_size
    from toolkit.engines.zero import ZeroState

    model: Any = engine.model
    masters = cast(ZeroState, engine.state).masters
    stage = int(engine.launched.strategy.removeprefix("zero"))
    _, accumulation = model.get_data_types()
    held = sum(master.numel() for master in masters)
    parameters = sum(whole_size(p) for _, p in engine.module.named_parameters())
    share = held * engine.world_size / parameters
    return [
        Fact("ZeRO stage", stage, int(model.zero_optimization_stage())),
        Fact("gradient clipping", engine.grad_clip, model.gradient_clipping()),
        Fact("compute dtype", {TORCH_DTYPES[precision]}, _dtypes(engine)),
        Fact("master dtype", {torch.float32}, {master.dtype for master in masters}),
        Fact("accumulation dtype", {torch.float32}, {accumulation, *_window_dtypes(engine)}),
        # Flat partitions are padded so that they divide evenly, by far less than this.
        Fact("fp32 masters held", "1/world size", "1/world size" if 1 <= share < 1.5 else share),
    ]


def _window_dtypes(engine: Engine) -> set[torch.dtype]:
    """Dtypes of gradients that wait on the parameters themselves until the end of the window."""
    if engine.launched.strategy == "zero1" or engine.accumulation != "replicated":
        return set()
    return {getattr(p, "grad_dtype", p.dtype) for _, p in engine.module.named_parameters()}


@contextmanager
def check_first_step(engine: Engine, reductions: Reductions) -> Iterator[None]:
    """Watch one update and compare what it did with what was asked.

    Args:
        engine: freshly built.
        reductions: when it should reduce gradients, by what.

    Raises:
        UsageError: gradients were not communicated at the micro-steps where the accumulation mode
            shows it, the optimizer's state is not fp32, or parameters did not move.
    """
    before = _fingerprints(engine)
    with CollectiveCounter(lambda: engine.at_boundary) as counter:
        yield
    after = _fingerprints(engine)
    still = sum(after[name] == before[name] for name in before)
    facts = [
        Fact("optimizer state dtypes", set(), _state_dtypes(engine) - {torch.float32}),
        # A norm's weight near 1 can lie still under a tiny learning rate; most others cannot.
        Fact("most parameters moved", True, engine.step_was_skipped or 2 * still < len(before)),
    ]
    if engine.world_size > 1:
        facts += _reduction_facts(engine, counter, reductions)
    _raise_differences(facts)


def _fingerprints(engine: Engine) -> dict[str, int]:
    """Sum of each parameter's bits, read as integers: any update changes it."""
    return {
        name: int(
            engine.state.full_parameter(p).contiguous().view(torch.int32).sum(dtype=torch.int64)
        )
        for name, p in engine.module.named_parameters()
    }


def _state_dtypes(engine: Engine) -> set[torch.dtype]:
    """Dtypes of the optimizer's moments; a step count is no moment."""
    states = engine.optimizer.state.values()
    moments = [t for state in states for name, t in state.items() if name.startswith("exp_avg")]
    return {moment.dtype for moment in moments}


def _reduction_facts(engine: Engine, counter: CollectiveCounter, asked: Reductions) -> list[Fact]:
    """Kinds of gradient reduction on both sides of the window's boundary."""
    # A loss or a vector of norms is no gradient.
    above = len(list(engine.module.named_parameters()))
    found: dict[bool, set[str]] = {False: set(), True: set()}
    earlier_bytes = 0
    for call in counter.seen:
        if call.kind in REDUCING and call.elements > above:
            found[call.at_boundary].add(call.kind)
            earlier_bytes += 0 if call.at_boundary else call.elements * call.itemsize
    facts = [
        Fact("gradient reductions before the last micro-step", set(asked.earlier), found[False]),
        Fact("gradient reductions at the last micro-step", set(asked.at_boundary), found[True]),
    ]
    if asked.earlier_bytes is not None:
        name = "bytes reduced before the last micro-step"
        facts.append(Fact(name, asked.earlier_bytes, earlier_bytes))
    return facts
