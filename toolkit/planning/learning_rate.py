"""The learning rate of a recipe at another number of tokens per step.

With k times the recipe's tokens per step, AdamW's rate is multiplied by the root of k (Malladi et
al. 2022, arXiv:2205.10287: the rule that follows from the stochastic differential
equation of Adam, which also changes betas and epsilon; they are kept here), SGD's by k (Goyal et
al. 2017, arXiv:1706.02677, section 2.1). Warm-up takes as many tokens as in the recipe.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from toolkit.config import RunConfig
from toolkit.training.schedule import lr_at

CAVEATS = (
    "both rules hold while the gradient's noise outweighs it, below the critical batch (McCandlish "
    "et al. 2018, arXiv:1812.06162); above it no rate makes up for larger steps",
    "Shallue et al. 2019 (JMLR 20) found no rule that holds for all models: try rates around it",
)
_WIDTH, _HEIGHT = 60, 8


@dataclass(frozen=True)
class ScaledRate:
    """What a recipe's optimizer becomes at a run's tokens per step.

    Attributes:
        run: with the recipe's learning rate.
        recipe_tokens: tokens per step that the rate was chosen for.
    """

    run: RunConfig
    recipe_tokens: int

    @property
    def ratio(self) -> float:
        """Tokens per step, in those of the recipe."""
        return self.run.batch.tokens_per_step / self.recipe_tokens

    @property
    def factor(self) -> float:
        """By which the learning rate is multiplied."""
        return sqrt(self.ratio) if self.run.optimizer.name == "adamw" else self.ratio

    def overrides(self) -> list[str]:
        """Return what changes in the run; a warm-up stays at least a step long."""
        optimizer = self.run.optimizer
        warmup = optimizer.warmup_steps and max(1, round(optimizer.warmup_steps / self.ratio))
        return [
            f"optimizer.lr={optimizer.lr * self.factor:.6g}",
            f"optimizer.min_lr={optimizer.min_lr * self.factor:.6g}",
            f"optimizer.warmup_steps={warmup}",
        ]

    def describe(self) -> Iterator[str]:
        """Yield the rule, what changes, and what the rule does not promise."""
        name = self.run.optimizer.name
        rule = "square-root rule" if name == "adamw" else "linear rule"
        yield (
            f"{rule} of {name}: {self.run.batch.tokens_per_step:,} tokens per step are "
            f"{self.ratio:.4g} x the recipe's {self.recipe_tokens:,}, so the learning rate is "
            f"multiplied by {self.factor:.4g}: {' '.join(self.overrides())}"
        )
        yield from CAVEATS


def draw_schedule(run: RunConfig) -> Iterator[str]:
    """Yield the learning rate over a run's steps as lines of text."""
    steps, optimizer = run.training.steps, run.optimizer
    width = min(_WIDTH, steps)
    rates = [lr_at(column * steps // width, optimizer, steps=steps) for column in range(width)]
    for row in range(_HEIGHT, 0, -1):
        level = optimizer.lr * (row - 0.5) / _HEIGHT
        label = f"{optimizer.lr * row / _HEIGHT:9.2e}" if row in (_HEIGHT, _HEIGHT // 2) else ""
        yield f"{label:>9} |" + "".join("#" if rate >= level else " " for rate in rates).rstrip()
    yield f"{0:>9} +" + "-" * width
    yield f"{'':>9}  step 0 to {steps:,}, {steps * run.batch.tokens_per_step:,} tokens"
    yield (
        f"warm-up {optimizer.warmup_steps:,} steps, "
        f"{optimizer.warmup_steps * run.batch.tokens_per_step:,} tokens, to {optimizer.lr:.3g}; "
        f"then half a cosine to {optimizer.min_lr:.3g}"
    )
