"""Sums that depend on the number of parameters alone: model states and checkpoints."""

from typing import Literal

Stage = Literal[0, 1, 2, 3]


def model_state_bytes(parameters: int, *, stage: Stage, ranks: int) -> int:
    """Return bytes of parameters, gradients and optimizer state of one rank under ZeRO.

    Mixed-precision Adam holds 2 bytes a parameter of weights, 2 of gradients and 12 of fp32 masters
    and moments: 16 where all is replicated. Stage 1 divides the 12 by the ranks, stage 2 also
    the gradients, stage 3 all (Rajbhandari et al. 2020, "ZeRO", section 5): 7.5e9 parameters on 64
    ranks are 120, 31.4, 16.6 and 1.9 GB.
    """
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    states = 12 * parameters / (ranks if stage >= 1 else 1)
    return round(weights + gradients + states)


def checkpoint_bytes(parameters: int, *, adam: bool) -> int:
    """Return the size of a checkpoint: fp32 parameters, with Adam both moments too.

    Each element is in it once, whatever the strategy. A rank writes what it alone holds and an
    equal share of what several hold (`EngineState.own_share`): each of N ranks
    one N-th, but for slices that do not divide evenly. The manifest and the files' headers, some
    kilobytes, are not counted.
    """
    return parameters * (12 if adam else 4)
