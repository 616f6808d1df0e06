"""The three dials and the number of GPUs: whichever is missing follows from the others."""

from toolkit.batching import BatchPlan, plan_batch
from toolkit.errors import UsageError


def solve_batch(
    *,
    tokens_per_step: int | None,
    seq_len: int,
    micro_batch_size: int | None,
    grad_accum_steps: int | None,
    gpus: int | None,
) -> BatchPlan:
    """Return the plan in which at most one number was missing.

    tokens_per_step = micro_batch_size x seq_len x grad_accum_steps x gpus

    Raises:
        UsageError: more than one is missing, or the product does not come out.
    """
    dials = {
        "--micro-batch-size": micro_batch_size,
        "--grad-accum-steps": grad_accum_steps,
        "--gpus": gpus,
    }
    missing = [name for name, value in dials.items() if value is None]
    if len(missing) + (tokens_per_step is None) > 1:
        names = ["--tokens-per-step"] if tokens_per_step is None else []
        raise UsageError(f"of {', '.join([*names, *missing])} only one can be solved for")
    known = seq_len
    for value in dials.values():
        known *= value or 1
    if tokens_per_step is None:
        tokens_per_step = known
    solved, rest = divmod(tokens_per_step, known)
    if rest or (not missing and solved != 1):
        nearest = known if not missing else max(1, round(tokens_per_step / known)) * known
        factors = [*(value for value in dials.values() if value), seq_len]
        raise UsageError(
            f"{tokens_per_step:,} tokens per step do not come out of "
            f"{' x '.join(f'{value:,}' for value in factors)} = {known:,}; "
            f"the nearest that works is --tokens-per-step {nearest}"
        )
    return plan_batch(
        tokens_per_step=tokens_per_step,
        seq_len=seq_len,
        micro_batch_size=micro_batch_size or solved,
        world_size=gpus or solved,
    )
