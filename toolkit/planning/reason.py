"""Why the best configuration is the best, in a sentence with numbers."""

from toolkit.memory.hardware import Gpu, in_gib
from toolkit.prediction.search import Answer, PlanRow


def describe(row: PlanRow) -> str:
    """Return a configuration's name."""
    step = row.settings
    groups = f" in {step.replicas} replica groups" if step.replicas > 1 else ""
    checkpointing = ", checkpointing" if step.activation_checkpointing else ""
    return (
        f"{step.strategy} {step.accumulation}{groups}, micro-batch {step.micro_batch_size}, "
        f"{step.loss} loss{checkpointing}"
    )


def reason_for(answer: Answer, gpu: Gpu) -> str:
    """Return what the best gains over the best of another strategy, or what is nearest to fit."""
    best = answer.best
    if best is None:
        least = answer.rows[0]
        return (
            f"nothing fits {gpu.name}: the least is {describe(least)} with "
            f"{in_gib(least.peak)} GiB of {in_gib(gpu.memory_bytes)}; take more GPUs or larger "
            "ones (offload is not offered)"
        )
    hidden = 1 - best.exposed_s / best.communication_s if best.communication_s else 1.0
    sentence = (
        f"at the middle of its range {describe(best)} hides about {hidden:.0%} of its "
        f"communication; it takes {in_gib(best.peak)} of {in_gib(gpu.memory_bytes)} GiB"
    )
    others = [row for row in answer.best_per_strategy()[1:] if row.fits]
    if not others:
        return f"{sentence}; no other strategy fits"
    second = others[0]
    slower = second.middle_s / best.middle_s - 1
    return f"{sentence}; the next strategy is {describe(second)}, about {slower:.0%} slower"
