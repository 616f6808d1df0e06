"""What the scripts of the museum that use transformers' Trainer share."""

import torch
from parts import Model, batches, loss_of
from torch import nn
from torch.utils.data import Dataset


class Texts(Dataset):
    """96 examples, or with `padded` such that more and more targets do not count."""

    def __init__(self, padded: bool = False) -> None:
        found = [next(draw) for draw in [batches(0)] for _ in range(24)]
        self.tokens = torch.cat([tokens for tokens, _ in found])
        self.targets = torch.cat([targets for _, targets in found])
        for number, targets in enumerate(self.targets):
            targets[: number % 7 if padded else 0] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"tokens": self.tokens[number], "labels": self.targets[number]}


class WithLoss(nn.Module):
    """A model that returns its mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": loss_of(self.model(tokens), labels)}
