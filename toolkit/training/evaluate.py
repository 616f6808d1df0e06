"""Mean loss over validation data, on all ranks together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.engines.engine import Engine
from toolkit.model.loss import IGNORE_INDEX


@dataclass(frozen=True)
class Evaluation:
    """The token-weighted mean loss in nats, and the number of tokens it is over."""

    loss: float
    tokens: int


def evaluate(
    engine: Engine,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    look: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Sum losses and targets over every batch of every rank, then divide once.

    Args:
        engine: every rank must call this, since a sharded forward pass is a collective.
        batches: this rank's inputs and targets, each [B, T] int64; as many on every rank.
        look: called after each batch; what it raises ends the evaluation.
    """
    totals = torch.zeros(2, dtype=torch.float64, device=engine.device)
    with engine.evaluating():
        for batch in batches:
            tokens, targets = (torch.from_numpy(part).to(engine.device) for part in batch)
            totals[0] += engine.model(tokens, targets)
            totals[1] += (targets != IGNORE_INDEX).sum()
            look()
    loss, tokens_seen = engine.ranks.sum(totals).tolist()
    return Evaluation(loss=loss / max(tokens_seen, 1.0), tokens=int(tokens_seen))
