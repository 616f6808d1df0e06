"""Times the modules that a step's program is made of, by shape, on the device at hand.

Each module is timed in both passes, with nothing beside it but the other ranks, which do the same:
products of matrices of several shapes, attention, what goes element by element, the optimizer.
Whole micro-steps of small models follow; what they take beyond their modules is the launching.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from toolkit.model.gpt2 import GPT2
from toolkit.model.loss import cross_entropy_sum
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.machine_profile import MicroStep, WorkPoint
from toolkit.program.settings import Device, StepSettings
from toolkit.program.work import (
    Work,
    attention_work,
    linear_work,
    loss_work,
    pointwise_work,
    update_work,
)

REPEATS = 7
WIDTHS = {"cpu": (128, 384), "cuda": (1024, 4096)}
SEQ_LEN = {"cpu": 128, "cuda": 2048}
MICRO_BATCHES = {"cpu": (1, 8), "cuda": (2, 8)}
VOCABULARY = {"cpu": 4096, "cuda": 50304}
LAYERS = 4
HEAD_WIDTH = 32


@dataclass(frozen=True)
class Modules:
    """Modules of a GPT-2 of one shape, on one device."""

    settings: StepSettings
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """What products are computed in."""
        return torch.float32 if self.settings.width == 4 else torch.bfloat16

    def points(self) -> Iterator[WorkPoint]:
        """Yield both passes of each module, and the update."""
        step, d = self.settings, self.settings.sizes.n_embd
        for inputs, outputs in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
            layer = self._placed(nn.Linear(inputs, outputs))
            work = linear_work(step, inputs, outputs)
            yield from self._both(work, work.twice(), layer, self._tensor(inputs))
        work = attention_work(step)
        heads = step.sizes.n_head
        q, k, v = (
            self._tensor(d).view(step.micro_batch_size, -1, heads, d // heads).transpose(1, 2)
            for _ in range(3)
        )
        yield from self._both(work, work.twice(), _attend, q, k, v)
        one = pointwise_work(step, 1, 1, width=step.width)
        back = pointwise_work(step, 3, 1, width=step.width)
        yield from self._both(one, back, self._placed(nn.LayerNorm(d)), self._tensor(d))
        gelu, back = (pointwise_work(step, reads, 4, width=step.width) for reads in (4, 8))
        activate = nn.GELU(approximate="tanh")
        yield from self._both(gelu, back, activate, self._tensor(4 * d))
        yield from self._loss_points()
        yield self._update_point()

    def _loss_points(self) -> Iterator[WorkPoint]:
        step = self.settings
        logits = self._tensor(step.sizes.vocab_size)
        targets = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=self.device)
        forward, backward = (loss_work(step, backward=back) for back in (False, True))
        yield from self._both(forward, backward, lambda z: cross_entropy_sum(z, targets), logits)

    def _update_point(self) -> WorkPoint:
        elements = 12 * self.settings.sizes.n_embd**2
        weight = nn.Parameter(torch.zeros(elements, device=self.device))
        weight.grad = torch.zeros_like(weight)
        optimizer = torch.optim.AdamW([weight], fused=True)
        return _point(update_work(self.settings, elements), self._seconds(optimizer.step))

    def _both(
        self,
        forward: Work,
        backward: Work,
        call: Callable[..., torch.Tensor],
        *inputs: torch.Tensor,
    ) -> Iterator[WorkPoint]:
        """Yield the forward pass, and the backward pass of the graph that it made."""
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        yield _point(forward, self._seconds(lambda: call(*leaves)))
        output = call(*leaves)
        gradient = torch.ones_like(output)
        yield _point(backward, self._seconds(lambda: output.backward(gradient, retain_graph=True)))

    def micro_step(self) -> MicroStep:
        """Return both passes of the whole model."""
        step = self.settings
        model = self._placed(GPT2(step.sizes))
        tokens = torch.zeros(
            step.micro_batch_size, step.seq_len, dtype=torch.int64, device=self.device
        )
        forward_s = self._seconds(lambda: model(tokens, tokens))
        both_s = self._seconds(lambda: model(tokens, tokens).backward())
        return MicroStep(
            sizes=step.sizes,
            micro_batch_size=step.micro_batch_size,
            seq_len=step.seq_len,
            forward_s=forward_s,
            backward_s=max(0.0, both_s - forward_s),
        )

    def _tensor(self, width: int) -> torch.Tensor:
        shape = (self.settings.micro_batch_size, self.settings.seq_len, width)
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def _placed(self, module: nn.Module) -> nn.Module:
        return module.to(device=self.device, dtype=self.dtype)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the median seconds of a call that has been warmed up."""
        call()
        return median(self._once(call) for _ in range(REPEATS))

    def _once(self, call: Callable[[], object]) -> float:
        self._synchronize()
        started = time.perf_counter()
        call()
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure_work(device: torch.device) -> tuple[list[WorkPoint], list[MicroStep]]:
    """Return the modules of all shapes, and the whole micro-steps of the same models."""
    points: list[WorkPoint] = []
    micro_steps: list[MicroStep] = []
    for settings in _shapes(device):
        modules = Modules(settings, device)
        points += modules.points()
        micro_steps.append(modules.micro_step())
    return points, micro_steps


def _shapes(device: torch.device) -> Iterator[StepSettings]:
    kind: Device = "cuda" if device.type == "cuda" else "cpu"
    for width in WIDTHS[kind]:
        sizes = ModelSizes(
            n_layer=LAYERS,
            n_head=width // HEAD_WIDTH,
            n_embd=width,
            vocab_size=VOCABULARY[kind],
            block_size=SEQ_LEN[kind],
        )
        one = StepSettings(
            sizes=sizes,
            strategy="single",
            accumulation="replicated",
            world_size=1,
            seq_len=SEQ_LEN[kind],
            precision="fp32" if kind == "cpu" else "bf16",
            device=kind,
        )
        for sequences in MICRO_BATCHES[kind]:
            yield replace(one, micro_batch_size=sequences)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _point(work: Work, seconds: float) -> WorkPoint:
    return WorkPoint(kind=work.kind, flops=work.flops, bytes=work.moved, seconds=seconds)
