"""What an estimate is asked for: checked, and as the settings of each row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolkit.config import RunConfig
from toolkit.engines.mixture import Budget, Mixture
from toolkit.engines.strategies import (
    STRATEGIES,
    TRACEABLE,
    Accumulation,
    Strategy,
    check_precision,
)
from toolkit.errors import UsageError
from toolkit.launch.layout import Layout
from toolkit.memory.largest import StepTokens
from toolkit.memory.rows import Rows, build_rows
from toolkit.program.settings import ONLY_FOR, Device


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        config: the run.
        tokens: those of its step.
        strategies: which rows; None for all that the method can answer for.
        accumulation: which mode; None for all.
        layout: how many ranks; `single` is one in any case.
        gpu: what it has to fit; None for all that are known.
        largest: whether to look for the largest micro-batch on `gpu`.
        method: `formula` or `trace`.
        changes: fields of `StepSettings` that no run configuration has, where they are not to be
            what the loop does.
    """

    config: RunConfig
    tokens: StepTokens
    strategies: Sequence[Strategy] | None
    accumulation: Accumulation | Mixture | Budget | None
    layout: Layout
    device: Device
    gpu: str | None
    largest: bool
    method: Literal["formula", "trace"]
    changes: Mapping[str, Any]

    @property
    def asked(self) -> Sequence[Strategy]:
        """The strategies that rows are wanted of."""
        if self.strategies is not None:
            return self.strategies
        return TRACEABLE if self.method == "trace" else STRATEGIES

    @property
    def untraced(self) -> Sequence[Strategy]:
        """The strategies without a row because the method cannot answer for them."""
        return [name for name in STRATEGIES if self.strategies is None and name not in self.asked]

    def rows(self) -> Rows:
        """Return the settings of each row.

        Raises:
            UsageError: options exclude each other, or no row is left.
        """
        self._check()
        check_precision(self.config.precision, self.device)
        rows = build_rows(
            self.config,
            self.tokens,
            self.layout,
            asked=self.asked,
            accumulation=self.accumulation,
            device=self.device,
        )
        return replace(
            rows, settings=[replace(settings, **self.changes) for settings in rows.settings]
        )

    def _check(self) -> None:
        untraced = [name for name in self.asked if name not in TRACEABLE]
        if self.method == "trace" and untraced:
            raise UsageError(
                f"--method trace: {', '.join(untraced)} needs real tensors; choose among "
                f"--strategies {','.join(TRACEABLE)}"
            )
        if self.method == "trace" and self.changes:
            raise UsageError(
                f"--method trace runs the loop's own step; {', '.join(self.changes)} cannot be "
                "changed in it, leave it out or use --method formula"
            )
        if self.gpu is not None and self.device == "cpu":
            raise UsageError(f"--gpu {self.gpu}: with --device cpu there is no GPU to fit")
        if self.largest and self.gpu is None:
            raise UsageError("--max-micro-batch needs --gpu, the device that it has to fit")
        for name, strategies in ONLY_FOR.items():
            if name in self.changes and not set(strategies) & set(self.asked):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for {', '.join(strategies)} alone, and "
                    f"--strategies {','.join(self.asked)} has none of them"
                )


def step_tokens(config: RunConfig, *, is_a_file: bool) -> StepTokens:
    """Return the tokens of a step: fixed where a run was given, with its default or its own."""
    is_given = "tokens_per_step" in config.batch.model_fields_set
    return StepTokens(wanted=config.batch.tokens_per_step, is_fixed=is_given or is_a_file)
