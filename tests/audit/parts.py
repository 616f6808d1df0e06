"""What the scripts of the museum share: a small model and each rank's own batches."""

import os
from collections.abc import Iterator

import torch
from torch import nn

VOCABULARY = 40


class Model(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.inner(self.embedding(tokens))))


def batches(seed: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and targets, each [4, 8], of this rank for ever."""
    seed = int(os.environ.get("RANK", "0")) if seed is None else seed
    generator = torch.Generator().manual_seed(100 + seed)
    while True:
        tokens = torch.randint(VOCABULARY, (4, 9), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:].clone()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
