"""`toolkit estimate`: from options or a run configuration to rows, and their output."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.batching import BatchPlan
from toolkit.config import RunConfig, load_run_config
from toolkit.engines.strategies import STRATEGIES, Accumulation, Strategy, check_precision
from toolkit.errors import UsageError
from toolkit.memory.calibration import Calibration, load_calibrations
from toolkit.memory.hardware import Gpu, find_gpu, in_gib, load_gpus
from toolkit.memory.largest import StepTokens, largest_micro_batch
from toolkit.memory.report import Row, as_json, estimate_row, print_table
from toolkit.memory.rows import Ranks, build_rows
from toolkit.memory.states import checkpoint_bytes
from toolkit.program.settings import Device, StepSettings

TRACED: tuple[Strategy, ...] = ("single", "fsdp2", "fsdp2_no_reshard", "hsdp")
"""DDP's reducer and DeepSpeed refuse tensors without data."""

_ONLY_FOR: Mapping[str, tuple[Strategy, ...]] = {
    "gradient_as_bucket_view": ("ddp",),
    "offload_optimizer": ("zero1", "zero2", "zero3"),
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        short: options that stand for overrides: `section.key=value` to what was written.
        overrides: `section.key=value`, on top of the file or of the defaults.
        strategies: which rows; None for all that the method can answer for.
        ranks: how many; `single` is one in any case.
        largest: whether to look for the largest micro-batch on `gpu`.
        method: `formula` or `trace`.
        changes: fields of `StepSettings` that no run configuration has, where they are not to be
            what the loop does.
    """

    config_file: Path | None
    short: Mapping[str, str]
    overrides: Sequence[str]
    strategies: Sequence[Strategy] | None
    ranks: Ranks
    device: Device
    gpu: str | None
    largest: bool
    method: Literal["formula", "trace"]
    changes: Mapping[str, Any]
    plot: Path | None
    as_json: bool

    @property
    def asked(self) -> Sequence[Strategy]:
        """The strategies that rows are wanted of."""
        if self.strategies is not None:
            return self.strategies
        return TRACED if self.method == "trace" else STRATEGIES

    @property
    def wants_one_mode(self) -> bool:
        """Whether an override names an accumulation mode; a file's own does not hide the others."""
        return any(word.partition("=")[0].strip() == "accumulation" for word in self.overrides)

    def tokens_of(self, config: RunConfig) -> StepTokens:
        """Return the tokens of a step: fixed where a run was given, with its default or its own."""
        is_given = "tokens_per_step" in config.batch.model_fields_set
        return StepTokens(
            wanted=config.batch.tokens_per_step, is_fixed=is_given or self.config_file is not None
        )


def estimate(question: Question) -> None:
    """Answer and print.

    Raises:
        UsageError: a value is wrong, or no row is left.
    """
    _check(question)
    gpus = _gpus(question)
    config = _load(question)
    check_precision(config.precision, question.device)
    tokens = question.tokens_of(config)
    accumulation: Accumulation | None = config.accumulation if question.wants_one_mode else None
    chosen = build_rows(
        config,
        tokens,
        question.ranks,
        asked=question.asked,
        accumulation=accumulation,
        device=question.device,
    )
    steps = [replace(settings, **question.changes) for settings in chosen.settings]
    for reason in chosen.left_out:
        _note(f"left out: {reason}")
    if question.method == "trace" and question.strategies is None:
        untraced = ", ".join(name for name in STRATEGIES if name not in TRACED)
        _note(f"not traced: {untraced}, which need real tensors")
    for assumption in _assumptions(steps, tokens):
        _note(assumption)
    rows = [_row(settings, question.method) for settings in steps]
    if question.largest:
        rows = [
            replace(row, largest=largest_micro_batch(row.settings, tokens, gpus[0])) for row in rows
        ]
    parameters = config.model.sizes().parameter_count
    checkpoint = checkpoint_bytes(parameters, adam=config.optimizer.name == "adamw")
    if question.plot is not None:
        from toolkit.memory.plot import plot_step

        _note(f"drawn in {plot_step(steps[0], question.plot)}")
    if question.as_json:
        print(json.dumps(as_json(rows, gpus, checkpoint), indent=2))
        return
    for line in _header(rows):
        print(line)
    print_table(rows, gpus)
    for allowance in dict.fromkeys(gpu.calibration.describe() for gpu in gpus):
        print(f"fits: {allowance}")
    print(_checkpoint_line(checkpoint, max(settings.world_size for settings in steps)))
    if any(s.compile for s in steps):
        print(_compile_line(question))


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _gpus(question: Question) -> list[Gpu]:
    """The GPUs that are judged; a run on CPUs has none."""
    if question.device == "cpu":
        return []
    try:
        calibrations = load_calibrations()
    except UsageError as error:
        _note(f"warning: {error}; until then: {Calibration().describe()}")
        calibrations = {}
    if question.gpu is None:
        return load_gpus(calibrations)
    return [find_gpu(question.gpu, calibrations)]


def _assumptions(steps: Sequence[StepSettings], tokens: StepTokens) -> Iterator[str]:
    """A step that no run could cut like this is still answered for."""
    for step in {settings.world_size: settings for settings in steps}.values():
        plan = _plan(step)
        if not tokens.is_fixed or plan.tokens_per_step == tokens.wanted:
            continue
        yield (
            f"batch.tokens_per_step {tokens.wanted:,} cannot be cut into micro-steps of "
            f"{plan.tokens_per_wave:,} tokens on {step.world_size:,} ranks, so no run starts like "
            f"this; assumed is {plan.describe()}, since memory hardly depends on the number of "
            "micro-steps beyond two"
        )
        if not tokens.micro_batches(seq_len=step.seq_len, world_size=step.world_size):
            yield f"no batch.micro_batch_size cuts it on {step.world_size:,} ranks"


def _plan(step: StepSettings) -> BatchPlan:
    wave = step.micro_batch_size * step.seq_len * step.world_size
    return BatchPlan(
        tokens_per_step=step.grad_accum_steps * wave,
        seq_len=step.seq_len,
        micro_batch_size=step.micro_batch_size,
        world_size=step.world_size,
    )


def _header(rows: Sequence[Row]) -> Iterator[str]:
    """What all rows have in common, and how a step is cut on each number of ranks."""
    first = rows[0].settings
    yield (
        f"{first.sizes.parameter_count:,} parameters, {first.precision} on {first.device}; "
        "allocated bytes per rank at the peak"
    )
    steps = {row.settings.world_size: row.settings for row in rows}
    for world_size in sorted(steps, reverse=True):
        yield _plan(steps[world_size]).describe()
    if equal := _with_equal_modes(rows):
        yield (
            f"one micro-step per step accumulates nothing: the modes of {', '.join(equal)} take "
            "the same memory; they differ with a larger batch.tokens_per_step or a smaller "
            "micro-batch"
        )


def _with_equal_modes(rows: Sequence[Row]) -> list[Strategy]:
    """Strategies whose modes cannot differ, for want of a second micro-step."""
    peaks: dict[Strategy, list[int]] = {}
    for row in rows:
        if row.settings.grad_accum_steps == 1:
            peaks.setdefault(row.settings.strategy, []).append(row.peak)
    return [name for name, found in peaks.items() if len(found) > 1 and len(set(found)) == 1]


def _check(question: Question) -> None:
    untraced = [name for name in question.asked if name not in TRACED]
    if question.method == "trace" and untraced:
        raise UsageError(
            f"--method trace: {', '.join(untraced)} needs real tensors; choose among "
            f"--strategies {','.join(TRACED)}"
        )
    if question.method == "trace" and question.changes:
        raise UsageError(
            f"--method trace runs the loop's own step; {', '.join(question.changes)} cannot be "
            "changed in it, leave it out or use --method formula"
        )
    if question.gpu is not None and question.device == "cpu":
        raise UsageError(f"--gpu {question.gpu}: with --device cpu there is no GPU to fit")
    if question.largest and question.gpu is None:
        raise UsageError("--max-micro-batch needs --gpu, the device that it has to fit")
    for name, strategies in _ONLY_FOR.items():
        if name in question.changes and not set(strategies) & set(question.asked):
            raise UsageError(
                f"--{name.replace('_', '-')} is for {', '.join(strategies)} alone, and "
                f"--strategies {','.join(question.asked)} has none of them"
            )


def _row(settings: StepSettings, method: str) -> Row:
    if method == "formula":
        return estimate_row(settings)
    from toolkit.verify.traced import trace_row

    ranks = f"{settings.world_size:,} {'rank' if settings.world_size == 1 else 'ranks'}"
    words = f"{settings.strategy} {settings.accumulation} on {ranks}"
    return trace_row(settings, lambda step: _note(f"tracing {words}, step {step} of 2"))


def _checkpoint_line(size: int, ranks: int) -> str:
    share = f"; each of {ranks} ranks writes {in_gib(size // ranks)} GiB of it, its own share"
    return f"a checkpoint takes {in_gib(size)} GiB of disk{share if ranks > 1 else ''}"


def _compile_line(question: Question) -> str:
    if question.method == "trace":
        return "model.compile: traced without a compiler, which may keep less"
    return (
        "model.compile: from what its partitioner may leave out to what blocks keep without it; "
        "bars, fits and parts are of the upper end"
    )


def _load(question: Question) -> RunConfig:
    overrides = [*question.short, *question.overrides]
    try:
        if question.config_file is None:
            return _from_overrides(overrides)
        return load_run_config(question.config_file, overrides)
    except UsageError as error:
        sentence = str(error)
        for override, written in question.short.items():
            sentence = sentence.replace(f"override '{override}'", written)
        raise UsageError(sentence) from None


def _from_overrides(overrides: Sequence[str]) -> RunConfig:
    """Check overrides of the defaults as those of a file are checked."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "defaults.yaml"
        empty.write_text("{}\n")
        try:
            return load_run_config(empty, overrides)
        except UsageError as error:
            raise UsageError(str(error).replace(f"{empty}: ", "")) from None
