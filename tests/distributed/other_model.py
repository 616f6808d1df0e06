"""Models that are no GPT-2 under the launched engine: no `tie_weights`, no `Block`, tied or not."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from toolkit.batching import plan_batch
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.build import build_engine
from toolkit.engines.effective import check_effective, check_first_step
from toolkit.engines.launched import Launched
from toolkit.engines.strategies import Accumulation, possible_accumulations
from toolkit.model.loss import cross_entropy_sum
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

WORDS, WIDTH, DEPTH = 96, 16, 3
STEPS, SEQUENCES, PLACES, MICRO_STEPS = 3, 8, 12, 2
LR, CLIP = 1e-2, 0.5
TIE = ("words.weight", "out.weight")


class Layer(nn.Module):
    """A gated causal convolution over the last three places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Conv1d(WIDTH, 2 * WIDTH, kernel_size=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        earlier = F.pad(self.norm(x).transpose(1, 2), (2, 0))
        return x + F.glu(self.mix(earlier), dim=1).transpose(1, 2)


class Convolutional(nn.Module):
    """Embedding, layers, head: the convention is `model(tokens, targets)`, a sum of losses."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.out.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return cross_entropy_sum(self.out(x), targets)


def other_models(launched: Launched) -> Iterator[dict[str, Any]]:
    """Train models that are no GPT-2, and say how far they end from plain PyTorch."""
    for tied in (False, True):
        exact = _plain_trajectory(tied=tied)
        modes = possible_accumulations(launched.strategy)
        for mode in modes[:1] if tied else modes:
            found = _trajectory(launched, mode, tied=tied)
            yield {
                "tied": tied,
                "accumulation": mode,
                "losses": largest(found["losses"], exact["losses"]),
                "grad_norms": largest(found["grad_norms"], exact["grad_norms"]),
                "parameters": largest(found["parameters"], exact["parameters"]),
                "facts": found["facts"],
            }


def largest(found: list[float], exact: list[float]) -> float:
    pairs = torch.tensor([found, exact], dtype=torch.float64)
    return float((pairs[0] - pairs[1]).abs().max() / pairs[1].abs().max())


def _model(*, tied: bool) -> Convolutional:
    torch.manual_seed(4)
    return Convolutional(tied=tied)


def _batch(step: int) -> MicroBatch:
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(WORDS, (SEQUENCES, PLACES + 1), generator=generator)
    return words[:, :-1], words[:, 1:].contiguous()


def _plain_trajectory(*, tied: bool) -> dict[str, list[float]]:
    model = _model(tied=tied).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = _batch(step)
        loss = model(tokens, targets) / targets.numel()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "grad_norms": norms, "parameters": flat(model.parameters())}


def flat(tensors: Any) -> list[float]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def _trajectory(launched: Launched, mode: Accumulation, *, tied: bool) -> dict[str, Any]:
    forget_engine()
    model = _model(tied=tied)
    plan = plan_batch(
        tokens_per_step=SEQUENCES * PLACES,
        seq_len=PLACES,
        micro_batch_size=SEQUENCES // (MICRO_STEPS * launched.world_size),
        world_size=launched.world_size,
    )
    engine = build_engine(
        model,
        torch.optim.AdamW(model.parameters(), lr=LR),
        launched=launched,
        plan=plan,
        accumulation=mode,
        precision="fp32",
        grad_clip=CLIP,
    )
    facts = check_effective(engine, precision="fp32", tied=TIE if tied else None)
    # When an engine reduces does not depend on the model; how much does.
    case = Case(accumulation=mode, grad_accum_steps=MICRO_STEPS)
    reductions = worker.reductions_of(case, TINY, launched)._replace(earlier_bytes=None)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = (part.chunk(MICRO_STEPS * launched.world_size) for part in _batch(step))
        own = list(zip(tokens, targets, strict=True))[launched.rank :: launched.world_size]
        watch = check_first_step(engine, reductions)
        with watch if step == 0 else nullcontext():
            result = train_step(engine, own, lr=LR)
        losses.append(engine.ranks.sum(result.loss_share).item())
        norms.append(float(result.grad_norm))
    parameters = flat(engine.state.full_parameter(p) for _, p in engine.module.named_parameters())
    described = {fact.name: fact.describe() for fact in facts}
    return {"losses": losses, "grad_norms": norms, "parameters": parameters, "facts": described}
