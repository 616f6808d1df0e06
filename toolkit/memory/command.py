"""`toolkit estimate`: from options or a run configuration to rows, and their output."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.backends.strategies import (
    STRATEGIES,
    Strategy,
    has_hybrid_groups,
    replicas_of,
    supported_pairs,
)
from toolkit.config import RunConfig, load_run_config
from toolkit.errors import UsageError
from toolkit.memory.hardware import find_gpu, in_gib, load_gpus
from toolkit.memory.report import Row, as_json, estimate_row, max_micro_batch, print_table
from toolkit.memory.states import checkpoint_bytes
from toolkit.program.settings import MAX_PARAMETERS, Device, StepSettings, settings_of_run

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
        world_size: ranks; `single` is one in any case.
        largest: whether to look for the largest micro-batch on `gpu`.
        method: `formula` or `trace`.
        changes: fields of `StepSettings` that no run configuration has, where they are not to be
            what the loop does.
    """

    config_file: Path | None
    short: Mapping[str, str]
    overrides: Sequence[str]
    strategies: Sequence[Strategy] | None
    world_size: int
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


def estimate(question: Question) -> None:
    """Answer and print.

    Raises:
        UsageError: a value is wrong, or no row is left.
    """
    _check(question)
    gpus = load_gpus() if question.gpu is None else [find_gpu(question.gpu)]
    config = _load(question)
    steps = build_settings(config, question)
    rows = [_row(settings, question.method) for settings in steps]
    if question.largest:
        rows = [replace(row, largest=max_micro_batch(row.settings, gpus[0])) for row in rows]
    if question.method == "trace" and question.strategies is None:
        untraced = ", ".join(name for name in STRATEGIES if name not in TRACED)
        print(f"not traced: {untraced}, which need real tensors", file=sys.stderr)
    parameters = config.model.sizes().parameter_count
    checkpoint = checkpoint_bytes(parameters, adam=config.optimizer.name == "adamw")
    if question.plot is not None:
        from toolkit.memory.plot import plot_step

        print(f"drawn in {plot_step(steps[0], question.plot)}", file=sys.stderr)
    if question.as_json:
        print(json.dumps(as_json(rows, gpus, checkpoint), indent=2))
        return
    first = steps[0]
    print(
        f"{parameters:,} parameters, {first.micro_batch_size} x {first.seq_len} tokens a "
        f"micro-step, {first.precision} on {first.device}; allocated bytes per rank at the peak"
    )
    print_table(rows, gpus)
    print(_checkpoint_line(checkpoint, max(settings.world_size for settings in steps)))
    if any(s.compile for s in steps):
        print(_compile_line(question))


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
    from toolkit.memory.trace import trace_row

    return trace_row(settings)


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


def build_settings(config: RunConfig, question: Question) -> list[StepSettings]:
    """Return the settings of every row; the accumulation modes are all shown.

    Raises:
        UsageError: nothing is left, or the model is beyond any machine.
    """
    parameters = config.model.sizes().parameter_count
    if parameters > MAX_PARAMETERS:
        raise UsageError(f"the model has {parameters:,} parameters; at most {MAX_PARAMETERS:,}")
    found = []
    for strategy, accumulation in supported_pairs():
        world_size = 1 if strategy == "single" else question.world_size
        impossible = strategy == "hsdp" and not has_hybrid_groups(world_size)
        if strategy not in question.asked or impossible:
            continue
        settings = settings_of_run(
            _whole_waves(config, world_size),
            strategy,
            world_size=world_size,
            replicas=replicas_of(strategy),
            device=question.device,
            accumulation=accumulation,
        )
        found.append(replace(settings, **question.changes))
    if not found:
        raise UsageError(f"none of {', '.join(question.asked)} runs on {question.world_size} ranks")
    return found


def _whole_waves(config: RunConfig, world_size: int) -> RunConfig:
    """Round a default global batch to whole waves; one that was given is held to as it is."""
    if "tokens_per_step" in config.batch.model_fields_set:
        return config
    wave = config.batch.micro_batch_size * config.data.seq_len * world_size
    tokens = max(1, config.batch.tokens_per_step // wave) * wave
    batch = config.batch.model_copy(update={"tokens_per_step": tokens})
    return config.model_copy(update={"batch": batch})
