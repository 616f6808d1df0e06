"""Checks that need more than one file: a run configuration together with a launch, or its file."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from toolkit.batching import BatchPlan, plan_batch
from toolkit.config import RunConfig, load_run_config, notes_on
from toolkit.config.strict_yaml import load_yaml_mapping
from toolkit.engines.launched import Launched
from toolkit.engines.mixture import check_possible
from toolkit.engines.reduction import check_reduce
from toolkit.errors import UsageError
from toolkit.launch.file import LaunchFile, load_launch_file, strategy_of

_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}
_DEFAULT_STEPS = 1
"""Micro-steps that `accelerate config` writes for whoever leaves them to the program."""

# Enough to distinguish the two kinds, however long the file.
_COMPARED_KEYS = 50


class Report(NamedTuple):
    """What `check_files` found: one line per good file or pair, and one per problem."""

    good: list[str]
    problems: list[str]


def check_pair(
    config: RunConfig,
    launch: LaunchFile,
    *,
    world_size: int | None = None,
    replicas: int | None = None,
) -> BatchPlan:
    """Return how the run's global batch is cut under a launch file that goes with the run.

    Args:
        config: what is trained.
        launch: where and how it runs.
        world_size: the number of ranks where it is not the launch file's `num_processes`.
        replicas: the replica groups that were launched, where that is known.

    Raises:
        UsageError: one line for each disagreement, with both values and where they stand.
    """
    problems: list[str] = []
    strategy = strategy_of(launch)
    ranks = launch.num_processes if world_size is None else world_size
    plan = None
    try:
        check_possible(strategy, config.accumulation)
        check_reduce(strategy, config.precision, config.reduce)
    except UsageError as error:
        problems.append(str(error))
    try:
        plan = _plan(config, ranks)
    except UsageError as error:
        problems.append(str(error))
    if strategy == "single" and ranks != 1:
        problems.append(f"strategy 'single' is one process, but {ranks} were asked for")
    if replicas is None:
        try:
            launch.replicas_on(ranks)
        except UsageError as error:
            problems.append(str(error))
    problems += _contradictions(config, launch, plan)
    if problems or plan is None:
        names = f"{launch.path} with run configuration '{config.run_name}'"
        raise UsageError("\n".join(f"{names}: {problem}" for problem in problems))
    return plan


def check_launched(
    config: RunConfig, launched: Launched, path: Path | None
) -> tuple[Launched, list[str]]:
    """Hold a launch, and its file where there is one, against the run.

    Accelerate drops unknown keys in silence, and `use_cpu` where it starts several processes, so
    only the file itself can show them.

    Returns:
        The launch with what the file adds to it, and notes as of `pair_notes`.

    Raises:
        UsageError: they disagree, or the file is no launch file.
    """
    notes = []
    if path is not None:
        launch = load_launch_file(path)
        plan = check_pair(
            config, launch, world_size=launched.world_size, replicas=launched.replicas
        )
        notes = pair_notes(launch, plan)
        on_cpu = launched.on_cpu or launch.use_cpu
        launched = replace(launched, config_file=str(path), on_cpu=on_cpu)
    if launched.recomputes and not config.model.activation_checkpointing:
        raise UsageError(
            "the launch has fsdp_activation_checkpointing: true, the run has "
            "model.activation_checkpointing: false; the run decides"
        )
    return launched, notes


def _plan(config: RunConfig, world_size: int) -> BatchPlan:
    return plan_batch(
        tokens_per_step=config.batch.tokens_per_step,
        seq_len=config.data.seq_len,
        micro_batch_size=config.batch.micro_batch_size,
        world_size=world_size,
    )


def pair_notes(launch: LaunchFile, plan: BatchPlan) -> list[str]:
    """Return a sentence for each value of a launch file that goes with the run but is not used."""
    notes, engine, steps = launch.notes(), launch.deepspeed_config, plan.grad_accum_steps
    stated = engine.gradient_accumulation_steps if engine else None
    if stated == _DEFAULT_STEPS != steps:
        notes.append(
            f"deepspeed_config.gradient_accumulation_steps: {stated}, Accelerate's default, is not "
            f"used: {steps:,} micro-steps follow from batch.tokens_per_step"
        )
    return notes


def _contradictions(config: RunConfig, launch: LaunchFile, plan: BatchPlan | None) -> Iterator[str]:
    """Settings in the launch file that the run configuration decides, and decides otherwise."""
    stated = launch.mixed_precision
    if stated is not None and _PRECISIONS[stated] != config.precision:
        yield _contradiction("mixed_precision", stated, "precision", config.precision)
    recomputes = launch.fsdp_config is not None and launch.fsdp_config.fsdp_activation_checkpointing
    if recomputes and not config.model.activation_checkpointing:
        key = "fsdp_config.fsdp_activation_checkpointing"
        yield _contradiction(key, "true", "model.activation_checkpointing", "false")
    engine = launch.deepspeed_config
    if engine is None:
        return
    pairs: list[tuple[str, str, float]] = [
        ("gradient_clipping", "optimizer.grad_clip", config.optimizer.grad_clip),
        (
            "train_micro_batch_size_per_gpu",
            "batch.micro_batch_size",
            config.batch.micro_batch_size,
        ),
    ]
    if plan is not None:
        derived = "derived from batch.tokens_per_step"
        pairs.append(("train_batch_size", f"the sequences {derived}", plan.sequences_per_step))
    if plan is not None and engine.gradient_accumulation_steps != _DEFAULT_STEPS:
        steps = plan.grad_accum_steps
        pairs.append(("gradient_accumulation_steps", f"the micro-steps {derived}", steps))
    for key, run_key, decided in pairs:
        value = getattr(engine, key)
        if value is not None and value != decided:
            yield _contradiction(f"deepspeed_config.{key}", value, run_key, decided)


def _contradiction(key: str, value: object, run_key: str, decided: object) -> str:
    return (
        f"the launch file has {key}: {value}, the run has {run_key}: {decided}; "
        f"take {key} out of the launch file, the run decides"
    )


def check_files(paths: Sequence[str | Path]) -> Report:
    """Check run configurations and launch files, each alone and every run with every launch file.

    Keys show which of the two kinds a file is. Nothing is raised: problems are lines of the report.
    """
    report = Report([], [])
    runs: list[tuple[Path, RunConfig]] = []
    launches: list[LaunchFile] = []
    for path in map(Path, paths):
        with _problems_in(report):
            if _is_launch_file(path):
                launches.append(_check_launch_file(path, report))
            else:
                runs.append((path, _check_run(path, report)))
    for path, config in runs:
        # What cannot be cut for one rank cannot be cut for any number.
        if not launches:
            with _problems_in(report, f"{path}: "):
                _plan(config, 1)
        for launch in launches:
            with _problems_in(report):
                plan = check_pair(config, launch)
                report.good.append(f"{path} with {launch.path}: {plan.describe()}")
                own = launch.notes()
                notes = [note for note in pair_notes(launch, plan) if note not in own]
                report.good.extend(f"{path} with {launch.path}: note: {note}" for note in notes)
    return report


@contextmanager
def _problems_in(report: Report, where: str = "") -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        report.problems.extend(where + line for line in str(error).split("\n"))


def _check_launch_file(path: Path, report: Report) -> LaunchFile:
    launch = load_launch_file(path)
    strategy, processes = strategy_of(launch), launch.num_processes
    report.good.append(f"{path}: launch file, strategy {strategy}, num_processes {processes}")
    report.good.extend(f"{path}: note: {note}" for note in launch.notes())
    return launch


def _check_run(path: Path, report: Report) -> RunConfig:
    config = load_run_config(path)
    parameters = config.model.sizes().parameter_count
    report.good.append(f"{path}: run configuration, {parameters:,} parameters")
    report.good.extend(f"{path}: note: {note}" for note in notes_on(config))
    return config


def _is_launch_file(path: Path) -> bool:
    """Whether more of a file's top-level keys, misspelt or not, are a launch file's than a run's.

    To train from an empty file means all defaults, but what it was meant to be nobody knows.
    """
    keys = list(load_yaml_mapping(path))[:_COMPARED_KEYS]
    if not keys:
        raise UsageError(f"{path}: holds no key, so it is no run configuration and no launch file")
    return _likeness(keys, LaunchFile.model_fields) > _likeness(keys, RunConfig.model_fields)


def _likeness(keys: Iterable[str], known: Iterable[str]) -> int:
    known = list(known)
    return sum(bool(get_close_matches(key, known, n=1, cutoff=0.8)) for key in keys)
