"""From tokens per optimizer step to micro-batches, micro-steps and ranks.

    tokens_per_step = micro_batch_size x seq_len x grad_accum_steps x world_size

A run states the left side, so its meaning is the same on every number of ranks over all machines;
`grad_accum_steps` is what is derived. One wave is one micro-step on all ranks.
"""

from dataclasses import dataclass, replace

from toolkit.counted import counted
from toolkit.errors import UsageError

_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How one optimizer step is cut; `plan_batch` builds it and checks that nothing is left over.

    `seq_len` is in tokens, `micro_batch_size` in sequences per rank and micro-step, `world_size`
    counts the ranks of all machines together.
    """

    tokens_per_step: int
    seq_len: int
    micro_batch_size: int
    world_size: int

    @property
    def sequences_per_step(self) -> int:
        """Sequences in the global batch."""
        return self.tokens_per_step // self.seq_len

    @property
    def tokens_per_micro_step(self) -> int:
        """Tokens in one forward and backward on one rank."""
        return self.micro_batch_size * self.seq_len

    @property
    def tokens_per_wave(self) -> int:
        """Tokens that all ranks work on at the same time."""
        return self.tokens_per_micro_step * self.world_size

    @property
    def grad_accum_steps(self) -> int:
        """Micro-steps per optimizer step on each rank, which is also the number of waves."""
        return self.tokens_per_step // self.tokens_per_wave

    def factors(self) -> str:
        """Return what the tokens of a step are the product of."""
        return (
            f"{counted(self.micro_batch_size, 'sequence')}"
            f" x {self.seq_len:,} tokens"
            f" x {counted(self.grad_accum_steps, 'micro-step')}"
            f" x {counted(self.world_size, 'rank')}"
        )

    def describe(self) -> str:
        """Return the line printed at the start of a run."""
        return (
            f"{self.tokens_per_step:,} tokens per step = {self.factors()}"
            f" ({counted(self.grad_accum_steps, 'wave')}"
            f" of {self.tokens_per_wave:,} tokens)"
        )


def plan_batch(
    *, tokens_per_step: int, seq_len: int, micro_batch_size: int, world_size: int
) -> BatchPlan:
    """Return the plan of one optimizer step.

    Raises:
        UsageError: a number is below 1, or the step is not a whole number of waves; the message
            shows the product, the nearest `tokens_per_step` and the micro-batches that fit.
    """
    plan = BatchPlan(
        tokens_per_step=tokens_per_step,
        seq_len=seq_len,
        micro_batch_size=micro_batch_size,
        world_size=world_size,
    )
    for name, value in vars(plan).items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    if tokens_per_step % plan.tokens_per_wave:
        raise UsageError(_misfit(plan))
    return plan


def _misfit(plan: BatchPlan) -> str:
    """Explain why the step is not a whole number of waves, and which numbers nearby would be."""
    nearest = _nearest_multiples(plan.tokens_per_step, plan.tokens_per_wave)
    products = [
        replace(plan, tokens_per_step=tokens).factors() + f" = {tokens:,}" for tokens in nearest
    ]
    return (
        f"batch.tokens_per_step {plan.tokens_per_step:,} cannot be cut into whole micro-steps: "
        f"{'; '.join(products)}, not {plan.tokens_per_step:,}; "
        f"set batch.tokens_per_step to {_choice(nearest)}, or {_fitting_micro_batches(plan)}"
    )


def _nearest_multiples(number: int, unit: int) -> list[int]:
    """The multiples on both sides of a number, or the smallest one above it."""
    below = number // unit * unit
    return [below, below + unit] if below else [unit]


def _choice(numbers: list[int]) -> str:
    smallest = " (the smallest that fits)" if len(numbers) == 1 else ""
    return " or ".join(f"{number:,}" for number in numbers) + smallest


def _fitting_micro_batches(plan: BatchPlan) -> str:
    """Name the micro-batch sizes that fit, the ones nearest to what was asked first."""
    unit = plan.seq_len * plan.world_size
    per_rank, remainder = divmod(plan.tokens_per_step, unit)
    asked = plan.micro_batch_size
    if remainder:
        smaller = _choice(_nearest_multiples(plan.tokens_per_step, unit))
        return (
            (f"with batch.micro_batch_size 1 to {smaller}, or " if asked > 1 else "")
            + f"choose another world_size or seq_len (no batch.micro_batch_size fits: "
            f"{plan.tokens_per_step:,} is no multiple of {plan.seq_len:,} tokens x "
            f"{counted(plan.world_size, 'rank')})"
        )
    # Sizes far above the one asked for would hardly fit in memory, so they need not be tried.
    fitting = [size for size in range(1, min(per_rank, 4 * asked) + 1) if per_rank % size == 0]
    nearest = sorted(sorted(fitting, key=lambda size: abs(size - asked))[:_SHOWN])
    return f"batch.micro_batch_size to one of {', '.join(map(str, nearest))}"
