"""A training loop of one's own that any strategy runs, and any other resumes.

    accelerate launch --config_file configs/accelerate/fsdp2.yaml --num_processes 2 \
        examples/own_loop.py runs/own

It learns its own source, byte by byte.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from toolkit import Checkpoints, build_engine, join_launch, plan_batch, train_step
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes

TEXT = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
STEPS, SEQUENCES, LENGTH = 12, 8, 32


def global_batch(step: int) -> torch.Tensor:
    """Return the sequences of a step, [SEQUENCES, LENGTH + 1]: a function of the step alone."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(TEXT) - LENGTH, (SEQUENCES,), generator=generator)
    return torch.stack([TEXT[start : start + LENGTH + 1] for start in starts.tolist()])


def train(model: nn.Module, folder: Path, blocks: Sequence[type[nn.Module]] = ()) -> list[float]:
    """Train up to STEPS, a checkpoint every 6 steps; return the losses."""
    losses = []
    with join_launch() as (launched, device):
        size = launched.world_size
        plan = plan_batch(
            tokens_per_step=SEQUENCES * LENGTH, seq_len=LENGTH, micro_batch_size=2, world_size=size
        )
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        settings = {"accumulation": "replicated", "precision": "fp32", "grad_clip": 1.0}
        engine = build_engine(
            model, optimizer, launched=launched, plan=plan, block_classes=blocks, **settings
        )
        checkpoints = Checkpoints(folder / "checkpoints", engine)
        for step in range(checkpoints.resume(), STEPS):
            waves = global_batch(step).to(device).split(plan.micro_batch_size)
            own = [(w[:, :-1], w[:, 1:].contiguous()) for w in waves[launched.rank :: size]]
            result = train_step(engine, own, lr=1e-2)
            losses.append(engine.ranks.sum(result.loss_share).item())
            if launched.rank == 0:
                print(f"step {step + 1:>2} | loss {losses[-1]:.6f}", flush=True)
            if (step + 1) % 6 == 0:
                checkpoints.save(step + 1)
    return losses


if __name__ == "__main__":
    torch.manual_seed(1)
    train(GPT2(ModelSizes(2, 2, 32, vocab_size=256, block_size=LENGTH)), Path(sys.argv[1]))
