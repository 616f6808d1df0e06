"""One optimizer update: micro-batches, loss, backward, clip, step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toolkit.engines.engine import Engine
from toolkit.model.loss import IGNORE_INDEX
from toolkit.training.callback import Callback, Phase

MicroBatch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class StepResult:
    """Scalars in fp64, still on the device.

    Attributes:
        loss_share: this rank's part of the mean over all valid targets of the global batch, before
            the update; the parts of all ranks add up to it.
        grad_norm: global L2 norm of the gradient before clipping, the same on every rank.
    """

    loss_share: torch.Tensor
    grad_norm: torch.Tensor


def train_step(
    engine: Engine,
    micro_batches: Sequence[MicroBatch],
    *,
    lr: float,
    callbacks: Sequence[Callback] = (),
) -> StepResult:
    """Update the parameters once from this rank's part of the global batch.

    Args:
        engine: the wrapped model and optimizer.
        micro_batches: tokens and targets, each [micro_batch_size, seq_len], on the device.
        lr: the learning rate of this update.
        callbacks: whose `on_phase` is called.
    """
    engine.set_lr(lr)
    targets_in_step = engine.ranks.begin_sum(count_valid(micro_batches))
    loss_share = torch.zeros((), dtype=torch.float64, device=engine.device)
    for tokens, targets in engine.accumulate(micro_batches):
        _enter("forward", callbacks)
        # A sum over this micro-batch divided by all targets of the step: shares add up to the mean.
        share = engine.model(tokens, targets) / targets_in_step().clamp_min(1)
        _enter("backward", callbacks)
        engine.backward(share)
        loss_share += share.detach()
    _enter("optimizer", callbacks)
    return StepResult(loss_share, grad_norm=engine.clip_and_step())


def _enter(phase: Phase, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.on_phase(phase)


def count_valid(micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
    """Return the number of targets that count, as a scalar int64 tensor."""
    return torch.stack([(targets != IGNORE_INDEX).sum() for _, targets in micro_batches]).sum()
