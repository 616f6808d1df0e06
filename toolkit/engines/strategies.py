"""The eight strategies, the three accumulation modes, and which can be combined, by what call.

Pure: imports no torch, so that checks, estimates and the command line stay quick.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from toolkit.counted import counted
from toolkit.errors import UsageError

Strategy = Literal["single", "ddp", "fsdp2", "fsdp2_no_reshard", "hsdp", "zero1", "zero2", "zero3"]
Accumulation = Literal["replicated", "sharded", "deferred"]
Precision = Literal["fp32", "bf16", "fp16"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
ACCUMULATIONS: tuple[Accumulation, ...] = get_args(Accumulation)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

FSDP2_STRATEGIES: tuple[Strategy, ...] = ("fsdp2", "fsdp2_no_reshard", "hsdp")

SHARDS_ROWS = FSDP2_STRATEGIES
"""Each rank keeps rows of every tensor, padded until they divide."""

ALONE: Strategy = "single"
"""One process without a group."""

COPIES: Strategy = "ddp"
"""Its ranks hold whole copies that nothing but the mean of their gradients keeps equal. Processes
launched with it can become any other engine's (`toolkit.engines.become`)."""

TRACEABLE: tuple[Strategy, ...] = ("single", *FSDP2_STRATEGIES)
"""Their step runs on tensors without data, which DDP's reducer and DeepSpeed refuse."""

REPLICAS = 2
"""Replica groups of hybrid sharding on a single machine: the fewest there can be."""

# fp16 autocast and its loss scaling need kernels that PyTorch has for CUDA only.
DEVICE_PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "cuda": PRECISIONS,
    "cpu": ("fp32", "bf16"),
}


@dataclass(frozen=True)
class Support:
    """Whether a strategy can accumulate in a mode: `note` is the call it uses, or why it cannot."""

    possible: bool
    note: str


_ONE_PROCESS = Support(False, "one process has no other rank to reduce gradients with")
_NO_REPLICAS = Support(False, "only hybrid sharding has replica groups whose all-reduce can wait")
_FSDP_REPLICATED = Support(True, "set_requires_gradient_sync(False) before the last micro-step")
_FSDP_SHARDED = Support(True, "reduce-scatter at every micro-step (sync_each_batch)")
_ZERO_REPLICATED = Support(True, "engine.coalesce_grad_reduction() around the whole window")
_ZERO_SHARDED = Support(True, "the engine reduces to the owner at every micro-step by itself")

SUPPORT: dict[Strategy, dict[Accumulation, Support]] = {
    "single": {
        "replicated": Support(True, "nothing to communicate: gradients add up in place"),
        "sharded": _ONE_PROCESS,
        "deferred": _ONE_PROCESS,
    },
    "ddp": {
        "replicated": Support(True, "no_sync() before the last micro-step"),
        "sharded": Support(True, "all-reduce at every micro-step (sync_each_batch)"),
        "deferred": _NO_REPLICAS,
    },
    "fsdp2": {
        "replicated": _FSDP_REPLICATED,
        "sharded": _FSDP_SHARDED,
        "deferred": _NO_REPLICAS,
    },
    "fsdp2_no_reshard": {
        "replicated": _FSDP_REPLICATED,
        "sharded": _FSDP_SHARDED,
        "deferred": _NO_REPLICAS,
    },
    "hsdp": {
        "replicated": _FSDP_REPLICATED,
        "sharded": Support(True, "reduce-scatter and all-reduce at every micro-step"),
        "deferred": Support(True, "set_requires_all_reduce(False) before the last micro-step"),
    },
    "zero1": {
        "replicated": Support(True, "the engine reduces at the boundary only by itself"),
        "sharded": Support(False, "DeepSpeed's stage 1 reduces gradients only at the boundary"),
        "deferred": _NO_REPLICAS,
    },
    "zero2": {
        "replicated": _ZERO_REPLICATED,
        "sharded": _ZERO_SHARDED,
        "deferred": _NO_REPLICAS,
    },
    "zero3": {
        "replicated": _ZERO_REPLICATED,
        "sharded": _ZERO_SHARDED,
        "deferred": _NO_REPLICAS,
    },
}


def replicas_of(strategy: Strategy, *, machines: int = 1) -> int:
    """Return the replica groups of a strategy by default: for hybrid sharding one per machine."""
    return max(machines, REPLICAS) if strategy == "hsdp" else 1


def replica_groups(*, groups: int, shards: int, world_size: int, machines: int) -> int:
    """Return the replica groups of hybrid sharding that a launch asks for.

    Args:
        groups: Accelerate's `dp_replicate_size`; 1, its default, leaves it open.
        shards: ranks in a group, Accelerate's `dp_shard_size`; 1 leaves it open. Where both are
            open there is one group per machine, and `REPLICAS` on a single one.
        world_size: ranks of all machines together.
        machines: how many machines the ranks are on.

    Raises:
        UsageError: so many ranks cannot form these groups, or there is one group alone.
    """
    if groups > 1 and shards > 1 and groups * shards != world_size:
        raise UsageError(
            f"parallelism_config_dp_replicate_size {groups} x parallelism_config_dp_shard_size "
            f"{shards} = {groups * shards}, but num_processes is {world_size}; set one of the two, "
            "the other follows"
        )
    processes = counted(world_size, "process", "processes")
    if world_size % shards:
        raise UsageError(f"{processes} cannot form equal replica groups of {shards}")
    if groups == 1:
        groups = world_size // shards if shards > 1 else replicas_of("hsdp", machines=machines)
    if world_size % groups:
        raise UsageError(f"{processes} cannot form {groups} equal replica groups")
    if groups == world_size:
        raise UsageError(
            f"{groups} replica groups on {world_size} processes leave nothing to shard over; "
            f"use ddp, or at least {2 * groups} processes"
        )
    if groups == 1:
        raise UsageError(
            f"one replica group of {shards} processes is plain sharding; use fsdp2, or smaller "
            "groups"
        )
    return groups


def is_plain_sharding(*, groups: int, shards: int, world_size: int) -> bool:
    """Whether a mesh, sizes as in `replica_groups`, is one group of all ranks, without replicas."""
    return groups == 1 < shards == world_size


def has_hybrid_groups(world_size: int) -> bool:
    """Whether the ranks of one machine make up replica groups, each of at least two shards."""
    return world_size % REPLICAS == 0 and world_size > REPLICAS


def supported_pairs() -> list[tuple[Strategy, Accumulation]]:
    """Return every strategy and accumulation mode that can be combined, in table order."""
    return [
        (strategy, accumulation)
        for strategy, modes in SUPPORT.items()
        for accumulation, support in modes.items()
        if support.possible
    ]


def possible_accumulations(strategy: Strategy) -> list[Accumulation]:
    """Return the modes that a strategy can accumulate in, in table order."""
    return [mode for mode, support in SUPPORT[strategy].items() if support.possible]


def check_accumulation(strategy: Strategy, accumulation: Accumulation) -> None:
    """Refuse an accumulation mode that the strategy cannot keep to.

    Raises:
        UsageError: names the pair, the reason and the modes that the strategy has.
    """
    support = SUPPORT[strategy][accumulation]
    if not support.possible:
        possible = possible_accumulations(strategy)
        raise UsageError(
            f"accumulation '{accumulation}' is impossible with strategy '{strategy}': "
            f"{support.note}; possible here: {', '.join(possible)}"
        )


def check_precision(precision: Precision, device_type: str) -> None:
    """Refuse a precision that the device cannot train in.

    Args:
        precision: what the run asks for.
        device_type: `torch.device.type`, such as "cuda" or "cpu"; unknown devices get fp32 only.

    Raises:
        UsageError: names the device, the precision and the ones the device has.
    """
    allowed = DEVICE_PRECISIONS.get(device_type, ("fp32",))
    if precision not in allowed:
        raise UsageError(
            f"precision '{precision}' is not available on device '{device_type}'; "
            f"available there: {', '.join(allowed)}"
        )


def frees_after_forward(strategy: Strategy) -> bool:
    """Return whether a unit's gathered parameters are freed between its two passes."""
    return strategy != "fsdp2_no_reshard"


def missing_engine(strategy: Strategy) -> str | None:
    """Return what a strategy needs that is not installed, or None; DeepSpeed is an extra."""
    if not strategy.startswith("zero") or find_spec("deepspeed") is not None:
        return None
    return (
        f"strategy '{strategy}' needs DeepSpeed, which is not installed; "
        "pip install scaling-toolkit[deepspeed]"
    )


def check_installed(strategy: Strategy) -> None:
    """Refuse a strategy whose engine is not installed.

    Raises:
        UsageError: names the strategy and what to install.
    """
    if missing := missing_engine(strategy):
        raise UsageError(missing)


def impossible_on(strategy: Strategy, world_size: int) -> str | None:
    """Return why a strategy cannot run on so many processes of one machine here, or None."""
    if strategy == ALONE and world_size > 1:
        return "it is one process"
    if strategy == "hsdp" and not has_hybrid_groups(world_size):
        return f"{world_size} processes form no {REPLICAS} equal groups of at least two"
    return missing_engine(strategy)
