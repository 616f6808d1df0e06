"""A training run of a few steps, and the global batches that all cases and the reference share."""

from dataclasses import dataclass, replace

import torch

from toolkit.batching import BatchPlan, plan_batch
from toolkit.config import OptimizerConfig
from toolkit.engines.mixture import Mixture
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.model.loss import IGNORE_INDEX
from toolkit.model.sizes import PADDED_VOCAB_SIZE, Loss, ModelSizes
from toolkit.program.settings import StepSettings

TINY = ModelSizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=32)
"""Small enough for many launches on a laptop; every kind of parameter is there."""

SEQUENCES_PER_STEP = 16
"""Divides by 4 ranks x 4 micro-steps, so that all plans share one reference."""

MASKED_SHARE = 0.3
"""Of the targets, unevenly spread, so that micro-batches have unequal numbers of valid ones."""

VARIANT_STEPS = 3
"""The fewest that have a checked, a clipped and a counted step; drift is the plain cases' part."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training run of a few steps.

    Attributes:
        steps: optimizer updates, through a warm-up of two and a cosine decay.
        grad_clip: with the default some of the first steps are clipped and some are not.
        lr: the learning rate after the warm-up; None: GPT-2's usual one for AdamW, a large one for
            SGD.
        dropout: draws differ by rank, so nothing but the ranks' agreement can be compared.
        incomplete_window: the last step has one micro-step less.
        whole_vocabulary: the model has GPT-2's, whatever else it is: tensors as large as a real
            run's, whose sums are as long.
    """

    accumulation: Accumulation | Mixture
    grad_accum_steps: int
    precision: Precision = "fp32"
    reduce: Reduce | None = None
    optimizer: str = "sgd"
    steps: int = 5
    seed: int = 1
    grad_clip: float = 0.55
    lr: float | None = None
    dropout: float = 0.0
    loss: Loss = "plain"
    activation_checkpointing: bool = False
    compile: bool = False
    incomplete_window: bool = False
    whole_vocabulary: bool = False

    def model(self, sizes: ModelSizes) -> ModelSizes:
        """Return the sizes of this case's model, from those that all cases share."""
        return replace(sizes, vocab_size=PADDED_VOCAB_SIZE) if self.whole_vocabulary else sizes

    def plan(self, world_size: int, *, seq_len: int) -> BatchPlan:
        """Return how the shared global batch is cut for this case.

        Raises:
            UsageError: it does not divide.
        """
        return plan_batch(
            tokens_per_step=SEQUENCES_PER_STEP * seq_len,
            seq_len=seq_len,
            micro_batch_size=SEQUENCES_PER_STEP // (self.grad_accum_steps * world_size),
            world_size=world_size,
        )

    def step_settings(
        self, step: int, sizes: ModelSizes, strategy: Strategy, *, world_size: int, replicas: int
    ) -> StepSettings:
        """Return what the program of one of the steps depends on."""
        plan = self.plan(world_size, seq_len=sizes.block_size)
        return StepSettings(
            sizes=sizes,
            strategy=strategy,
            accumulation=self.accumulation,
            world_size=world_size,
            replicas=replicas,
            micro_batch_size=plan.micro_batch_size,
            seq_len=plan.seq_len,
            grad_accum_steps=self.micro_steps(step),
            precision=self.precision,
            reduce=self.reduce,
            activation_checkpointing=self.activation_checkpointing,
            loss=self.loss,
            compile=self.compile,
        )

    def optimizer_config(self) -> OptimizerConfig:
        """Return the optimizer both sides build."""
        lr = self.lr or (0.1 if self.optimizer == "sgd" else 1e-3)
        return OptimizerConfig.model_validate(
            {
                "name": self.optimizer,
                "lr": lr,
                "min_lr": lr / 10,
                "warmup_steps": 2,
                "weight_decay": 0.1,
                "grad_clip": self.grad_clip,
            }
        )

    def micro_steps(self, step: int) -> int:
        """Return the micro-steps of a step."""
        last = step == self.steps - 1
        return self.grad_accum_steps - (self.incomplete_window and last)

    @property
    def variant(self) -> str:
        """What sets this case apart from the plain ones, in a word or two."""
        words = {
            "unclipped": not self.grad_clip,
            "dropout": self.dropout > 0,
            "chunked loss": self.loss == "chunked",
            "checkpointing": self.activation_checkpointing,
            "compiled": self.compile,
            "incomplete window": self.incomplete_window,
            "whole vocabulary": self.whole_vocabulary,
            f"send {self.reduce}": self.reduce is not None,
        }
        return ", ".join(word for word, holds in words.items() if holds)


def global_batch(step: int, case: Case, sizes: ModelSizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and targets of a step, each [sequences, block_size] int64.

    There are SEQUENCES_PER_STEP of them, and fewer in a window that is cut short.
    """
    generator = torch.Generator().manual_seed(case.seed * 1_000_003 + step)
    shape = (SEQUENCES_PER_STEP, sizes.block_size + 1)
    tokens = torch.randint(sizes.vocab_size, shape, generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    # The share rises from none in the first sequence to twice the mean in the last.
    share = torch.linspace(0, 2 * MASKED_SHARE, SEQUENCES_PER_STEP).unsqueeze(1)
    targets[torch.rand(targets.shape, generator=generator) < share] = IGNORE_INDEX
    present = SEQUENCES_PER_STEP * case.micro_steps(step) // case.grad_accum_steps
    return inputs[:present], targets[:present]
