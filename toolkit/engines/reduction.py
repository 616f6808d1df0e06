"""What gradients are sent as when they are reduced, and what they are summed in. Imports no torch.

    fp32           sent and summed in fp32
    bf16           sent and summed in bf16, half the bytes: each partial sum is rounded
    bf16-fp32sum   sent in bf16 and summed in fp32 by the rank that owns the part

FSDP2's backward pass in bf16 leaves a micro-step's gradient in bf16, so that `bf16-fp32sum` loses
nothing where each micro-step is reduced. A sum over micro-steps that was held in fp32 it rounds
once.
"""

from typing import Literal, get_args

from toolkit.engines.strategies import FSDP2_STRATEGIES, Accumulation, Precision, Strategy
from toolkit.errors import UsageError

Reduce = Literal["fp32", "bf16", "bf16-fp32sum"]
REDUCTIONS: tuple[Reduce, ...] = get_args(Reduce)


def possible_reductions(strategy: Strategy, precision: Precision) -> list[Reduce]:
    """Return what a strategy can reduce in."""
    if strategy == "single" or precision == "fp16":
        return ["fp32"]
    if strategy in FSDP2_STRATEGIES:
        return list(REDUCTIONS)
    return ["fp32", "bf16"] if strategy == "ddp" else ["fp32"]


def check_reduce(strategy: Strategy, precision: Precision, reduce: Reduce | None) -> None:
    """Refuse a reduction that the strategy has no way to make.

    Raises:
        UsageError: names the strategy, the precision and what is possible.
    """
    possible = possible_reductions(strategy, precision)
    if reduce not in (None, *possible):
        raise UsageError(
            f"reduce '{reduce}' is impossible with strategy '{strategy}' in {precision}; "
            f"possible here: {', '.join(possible)}"
        )


def reduction_of(
    strategy: Strategy, precision: Precision, asked: Reduce | None, mode: Accumulation
) -> Reduce:
    """Return how gradients in one mode are reduced; unless asked, by half the bytes if exact."""
    if asked is not None:
        return asked
    is_exact = strategy in FSDP2_STRATEGIES and precision == "bf16" and mode != "replicated"
    return "bf16-fp32sum" if is_exact else "fp32"


def sum_width(asked: Reduce | None) -> int:
    """Bytes per element of what FSDP2 sums up, which is also what it holds whole gradients in."""
    return 2 if asked == "bf16" else 4
