"""A model that is no GPT-2 under any strategy: gated convolutions, their output tied to the input.

    accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 2 \
        examples/own_model.py runs/own_model

All that is asked of a model: called with tokens and targets, it returns the sum of -log p. Weights
that are one parameter stay one, and `blocks` names the class that is sharded one by one.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from own_loop import train
from torch import nn


class Gate(nn.Module):
    """A causal convolution over the last four bytes, gated; [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, 2 * width, kernel_size=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the gate lets through."""
        earlier = F.pad(self.norm(x).transpose(1, 2), (3, 0))
        return x + F.glu(self.mix(earlier), dim=1).transpose(1, 2)


class ByteModel(nn.Module):
    """Bytes in, the sum of -log p of the bytes that follow out."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.gates = nn.ModuleList(Gate(width) for _ in range(depth))
        self.out = nn.Linear(width, 256, bias=False)
        self.out.weight = nn.init.normal_(self.bytes.weight, std=0.1)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[B, T] and [B, T] int64 -> a scalar."""
        x = self.bytes(tokens)
        for gate in self.gates:
            x = gate(x)
        return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten(), reduction="sum")


if __name__ == "__main__":
    torch.manual_seed(1)
    train(ByteModel(), Path(sys.argv[1]), blocks=[Gate])
