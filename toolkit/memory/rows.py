"""Which strategies and modes `toolkit estimate` answers for, with the settings of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.config import RunConfig
from toolkit.engines.mixture import Budget, Mixture, check_possible
from toolkit.engines.strategies import (
    STRATEGIES,
    SUPPORT,
    Accumulation,
    Strategy,
    possible_accumulations,
)
from toolkit.errors import UsageError
from toolkit.launch.layout import Layout
from toolkit.memory.largest import StepTokens
from toolkit.program.settings import MAX_PARAMETERS, Device, StepSettings, settings_of_run


@dataclass(frozen=True)
class Rows:
    """The settings of each row, and a sentence for each strategy that has none."""

    settings: list[StepSettings] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def build_rows(
    config: RunConfig,
    tokens: StepTokens,
    layout: Layout,
    *,
    asked: Sequence[Strategy],
    accumulation: Accumulation | Mixture | Budget | None,
    device: Device,
) -> Rows:
    """Return the settings of every strategy asked for in every mode, or in the one that was asked.

    The step is as many whole micro-steps as its tokens hold, at least one.

    Raises:
        UsageError: nothing is left, or the model is beyond any machine.
    """
    parameters = config.model.sizes().parameter_count
    if parameters > MAX_PARAMETERS:
        raise UsageError(f"the model has {parameters:,} parameters; at most {MAX_PARAMETERS:,}")
    rows = Rows()
    for strategy in (name for name in STRATEGIES if name in asked):
        try:
            replicas = layout.replicas(strategy)
        except UsageError as error:
            rows.skipped.append(f"{strategy}: {error}")
            continue
        modes = _modes(strategy, accumulation, rows.skipped)
        world_size = layout.of(strategy)
        whole = whole_micro_steps(config, tokens, world_size)
        rows.settings.extend(
            settings_of_run(
                whole,
                strategy,
                world_size=world_size,
                replicas=replicas,
                device=device,
                accumulation=mode,
            )
            for mode in modes
        )
    if not rows.settings:
        reasons = "; ".join(rows.skipped)
        raise UsageError(f"none of {', '.join(asked)} runs on {layout.world_size} ranks: {reasons}")
    return rows


def _modes(
    strategy: Strategy, asked: Accumulation | Mixture | Budget | None, skipped: list[str]
) -> Sequence[Accumulation | Mixture | Budget]:
    if asked is None:
        return possible_accumulations(strategy)
    try:
        check_possible(strategy, asked)
    except UsageError as error:
        reason = SUPPORT[strategy][asked].note if isinstance(asked, str) else error
        skipped.append(f"{strategy}: {reason}")
        return []
    return [asked]


def whole_micro_steps(config: RunConfig, tokens: StepTokens, world_size: int) -> RunConfig:
    """Return the run with the tokens of whole micro-steps on so many ranks."""
    seq_len, size = config.data.seq_len, config.batch.micro_batch_size
    steps = tokens.grad_accum_steps(size, seq_len=seq_len, world_size=world_size)
    batch = config.batch.model_copy(update={"tokens_per_step": steps * size * seq_len * world_size})
    return config.model_copy(update={"batch": batch})
