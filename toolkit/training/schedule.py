"""The learning rate as a function of the optimizer step, and of nothing else."""

import math

from toolkit.config import OptimizerConfig


def lr_at(step: int, config: OptimizerConfig, *, steps: int) -> float:
    """Return the learning rate of an update.

    Linear warm-up over `warmup_steps` updates to `lr`, then half a cosine down to `min_lr` at
    update `steps`, and `min_lr` from there on (Radford et al. 2018, section 4.1; the floor as in
    Brown et al. 2020, appendix B).

    Args:
        step: updates done before this one, from 0.
        config: peak, floor and warm-up.
        steps: updates of the whole schedule.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if step >= steps:
        return config.min_lr
    progress = (step - config.warmup_steps) / (steps - config.warmup_steps)
    return config.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (config.lr - config.min_lr)


def is_due(step: int, every: int, *, last: int) -> bool:
    """Whether something done every so many steps, 0 for never, and after the last is due now."""
    return every > 0 and (step % every == 0 or step == last)
