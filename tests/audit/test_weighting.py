"""What a loss weighs the same, as read off its graph, against the gradient that comes of it."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from toolkit.audit.loss_graph import read_loss
from toolkit.audit.weighting import describe_weighting

COUNTS = (2, 6)
"""Targets of two micro-batches."""

LOSSES = {
    "by micro-batch": lambda loss, targets: loss(targets, "mean") / len(COUNTS),
    "by token": lambda loss, targets: loss(targets, "sum") / sum(COUNTS),
    "otherwise": lambda loss, targets: loss(targets, "sum") * len(targets),
}
SAME = {
    "by micro-batch": lambda loss, targets: loss(targets, "sum") / len(targets) / 2,
    "by token": lambda loss, targets: loss(targets, "mean") * (len(targets) / sum(COUNTS)),
}


@pytest.mark.parametrize(("words", "of"), [*LOSSES.items(), *SAME.items()])
def test_words_and_gradient_agree(words: str, of) -> None:
    logits = torch.zeros(sum(COUNTS), 5, dtype=torch.float64, requires_grad=True)
    found, start = [], 0
    for count in COUNTS:
        part = logits[start : start + count]

        def loss(targets: torch.Tensor, reduction: str, part=part) -> torch.Tensor:
            return cross_entropy(part, targets, reduction=reduction)

        micro_step = of(loss, torch.zeros(count, dtype=torch.long))
        found.append(read_loss(micro_step).resolve())
        micro_step.backward()
        start += count
    assert describe_weighting(found) == words
    assert logits.grad is not None
    target = logits.grad.norm(dim=1)  # each target's share
    batch = torch.stack([part.sum() for part in target.split(COUNTS)])
    assert (target.max() == pytest.approx(float(target.min()))) == (words == "by token")
    assert (batch.max() == pytest.approx(float(batch.min()))) == (words == "by micro-batch")


def test_equal_numbers_weigh_alike_and_what_is_not_read_is_unknown() -> None:
    loss = {"scale": 0.5, "kind": "mean", "valid": 8.0}
    assert describe_weighting([loss, loss]) == "alike"
    assert describe_weighting([loss, None]) == "unknown"
    assert describe_weighting([loss, {**loss, "valid": None}]) == "unknown"
    assert describe_weighting([]) == "unknown"
