"""The lesson's problem: a few weights, a loss of 0.5 |w - x|^2, w := w - 0.1 g, and who reads what.

Samples and first weights are multiples of one half, so that sums of them can be checked by hand.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from toolkit.config import OptimizerConfig
from toolkit.data.order import micro_batch_slots
from toolkit.engines.strategies import (
    ALONE,
    COPIES,
    Accumulation,
    Strategy,
    impossible_on,
    supported_pairs,
)
from toolkit.errors import UsageError

LR = 0.1
Scenario = Literal["lesson", "weighting", "cut", "moments"]
TOKENS = ((100, 2.0), (300, 1.0))
"""Of the two kinds of micro-batch of `weighting`: tokens, and the loss of each at weights of 0."""
CUT_BATCH = 256
CUT_GPUS = (1, 8)
"""One batch, on one GPU and cut over eight."""
LIMITS = {"gpus": (2, 8), "weights": (3, 8), "batch": (1, 64), "grad-accum": (1, 8)}
"""What a page shows legibly, and stays below 1 MB with. DeepSpeed pads two weights to more."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recording: what is done, by whom, and how many batches of it.

    Attributes:
        samples: of a global batch.
        weights: of the model.
        batches: updates; the copies' drift is kept of each.
        shown: the first batches, of which every phase is kept.
        averages: whether ranks average their gradients, as the engine does by itself.
        mean_of_means: whether micro-batches weigh alike, however many tokens they have.
    """

    scenario: Scenario = "lesson"
    strategy: Strategy
    accumulation: Accumulation
    gpus: int
    grad_accum_steps: int = 1
    samples: int = 8
    weights: int = 4
    batches: int = 20
    shown: int = 2
    averages: bool = True
    mean_of_means: bool = False

    @property
    def micro_batch_size(self) -> int:
        """Samples of one micro-step on one rank."""
        return self.samples // (self.gpus * self.grad_accum_steps)

    def optimizer(self) -> OptimizerConfig:
        """Return plain SGD, or AdamW for its moments, at a fixed rate without decay or clipping."""
        name = "adamw" if self.scenario == "moments" else "sgd"
        settings = {"name": name, "lr": LR, "min_lr": LR, "weight_decay": 0, "grad_clip": 0}
        return OptimizerConfig.model_validate(settings)

    def first_weights(self) -> np.ndarray:
        """Return the weights that all ranks start from, [weights] fp32."""
        if self.scenario == "weighting":
            return np.zeros(self.weights, dtype=np.float32)
        return _halves(1, self.weights, seed=0)[0]

    def micro_batch(self, batch: int, micro_step: int, rank: int) -> np.ndarray:
        """Return the samples of a micro-step, [samples, weights] fp32."""
        if self.scenario == "weighting":
            return _tokens((micro_step * self.gpus + rank) % 2, self.weights)
        slots = micro_batch_slots(
            micro_step, micro_batch_size=self.micro_batch_size, world_size=self.gpus, rank=rank
        )
        return _halves(self.samples, self.weights, seed=1 + batch)[slots]

    def to_json(self) -> dict[str, Any]:
        """Return the page's sentences on the recording."""
        return {**asdict(self), "lr": LR}


def _halves(count: int, weights: int, *, seed: int) -> np.ndarray:
    drawn = np.random.default_rng([seed, weights]).integers(-8, 9, size=(count, weights)) / 2
    return drawn.astype(np.float32)


def _tokens(kind: int, weights: int) -> np.ndarray:
    """Return so many equal tokens that 0.5 |x|^2 is 2.0 of x = (2, 0, ...) and 1.0 of (1, 1, ...).

    With these losses at weights of 0 the mean over tokens is (100 x 2 + 300 x 1) / 400 = 1.25, and
    the mean of the two means is 1.5.
    """
    token = np.zeros(weights, dtype=np.float32)
    token[: kind + 1] = 2.0 - kind
    return np.tile(token, (TOKENS[kind][0], 1))


def plan_cases(
    base: Case,
    *,
    strategies: tuple[Strategy, ...],
    accumulations: tuple[Accumulation, ...],
) -> tuple[list[Case], list[str]]:
    """Return the recordings of a page, and a sentence for each strategy that has none.

    Args:
        base: what all recordings of the lesson share.
        strategies: which engines.
        accumulations: which modes; pairs that an engine cannot do are no recording.

    Raises:
        UsageError: a number is out of range, the batch does not divide, or nothing is left.
    """
    _check(base)
    reasons = {name: reason for name in strategies if (reason := impossible_on(name, base.gpus))}
    cases = [
        replace(base, strategy=strategy, accumulation=mode)
        for strategy, mode in supported_pairs()
        if strategy in strategies and mode in accumulations and strategy not in reasons
    ]
    if not cases:
        asked = f"{', '.join(strategies)} with {', '.join(accumulations)}"
        raise UsageError(
            f"nothing to record of {asked}: {'; '.join(reasons.values()) or 'no pair'}"
        )
    copies = [case for case in cases if case.strategy == COPIES]
    moments = _moments(cases)
    if copies:
        cases += [replace(copies[0], averages=False), *_weighting(copies[0]), *_cut(copies[0])]
    return [*cases, *moments], [f"{name}: {reason}" for name, reason in reasons.items()]


def _check(base: Case) -> None:
    asked = {
        "gpus": base.gpus,
        "weights": base.weights,
        "batch": base.samples,
        "grad-accum": base.grad_accum_steps,
    }
    for name, number in asked.items():
        low, high = LIMITS[name]
        if not low <= number <= high:
            raise UsageError(f"--{name} {number}: a page shows {low} to {high}")
    micro_batches = base.gpus * base.grad_accum_steps
    if base.samples % micro_batches:
        raise UsageError(
            f"--batch {base.samples} does not divide by {base.gpus} GPUs x "
            f"{base.grad_accum_steps} micro-steps = {micro_batches}"
        )


def _weighting(base: Case) -> list[Case]:
    """Per token, and as a mean of means; equally many micro-batches of both kinds."""
    steps = 1 if base.gpus % 2 == 0 else 2
    case = replace(base, scenario="weighting", grad_accum_steps=steps, shown=1)
    return [case, replace(case, mean_of_means=True)]


def _moments(cases: list[Case]) -> list[Case]:
    """AdamW's state, once for each engine."""
    firsts = {case.strategy: case for case in reversed(cases)}
    return [replace(case, scenario="moments", batches=2) for case in reversed(firsts.values())]


def _cut(base: Case) -> list[Case]:
    """The same batch of 256 on one GPU and on eight."""
    case = replace(base, scenario="cut", samples=CUT_BATCH, grad_accum_steps=1, shown=1)
    one, eight = CUT_GPUS
    return [
        replace(case, strategy=ALONE, accumulation="replicated", gpus=one),
        replace(case, gpus=eight),
    ]
