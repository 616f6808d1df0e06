"""Checks that need more than one file: a run configuration together with a launch file."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from toolkit.backends.strategies import check_accumulation
from toolkit.batching import BatchPlan, plan_batch
from toolkit.config import RunConfig, load_run_config
from toolkit.errors import UsageError
from toolkit.launch_file import LaunchFile, load_launch_file, strategy_of
from toolkit.strict_yaml import load_yaml_mapping

_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}


# Enough to tell the two kinds apart, however long the file.
_TELLING_KEYS = 50


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
        check_accumulation(strategy, config.accumulation)
    except UsageError as error:
        problems.append(str(error))
    try:
        plan = plan_batch(
            tokens_per_step=config.batch.tokens_per_step,
            seq_len=config.data.seq_len,
            micro_batch_size=config.batch.micro_batch_size,
            world_size=ranks,
        )
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


def _contradictions(config: RunConfig, launch: LaunchFile, plan: BatchPlan | None) -> Iterator[str]:
    """Settings in the launch file that the run configuration decides, and decides otherwise."""
    said = launch.mixed_precision
    if said is not None and _PRECISIONS[said] != config.precision:
        yield _contradiction("mixed_precision", said, "precision", config.precision)
    engine = launch.deepspeed_config
    if engine is None:
        return
    pairs = [
        ("gradient_clipping", "optimizer.grad_clip", config.optimizer.grad_clip),
        (
            "train_micro_batch_size_per_gpu",
            "batch.micro_batch_size",
            config.batch.micro_batch_size,
        ),
    ]
    if plan is not None:
        pairs += [
            (
                "gradient_accumulation_steps",
                "the micro-steps derived from batch.tokens_per_step",
                plan.grad_accum_steps,
            ),
            (
                "train_batch_size",
                "the sequences derived from batch.tokens_per_step",
                plan.sequences_per_step,
            ),
        ]
    for key, run_key, decided in pairs:
        value = getattr(engine, key)
        if value is not None and value != decided:
            yield _contradiction(f"deepspeed_config.{key}", value, run_key, decided)


def _contradiction(key: str, value: object, run_key: str, decided: object) -> str:
    return (
        f"the launch file says {key}: {value}, the run says {run_key}: {decided}; "
        f"take {key} out of the launch file, the run decides"
    )


def check_files(paths: Sequence[str | Path]) -> Report:
    """Check run configurations and launch files, each alone and every run with every launch file.

    The two kinds are told apart by their keys. Nothing is raised: problems are lines of the report.
    """
    report = Report([], [])
    runs: list[tuple[Path, RunConfig]] = []
    launches: list[LaunchFile] = []
    for path in map(Path, paths):
        try:
            if _is_launch_file(path):
                launch = load_launch_file(path)
                launches.append(launch)
                report.good.append(
                    f"{path}: launch file, strategy {strategy_of(launch)}, "
                    f"num_processes {launch.num_processes}"
                )
            else:
                config = load_run_config(path)
                runs.append((path, config))
                parameters = config.model.sizes().parameter_count
                report.good.append(f"{path}: run configuration, {parameters:,} parameters")
        except UsageError as error:
            report.problems.extend(str(error).split("\n"))
    for path, config in runs:
        for launch in launches:
            try:
                plan = check_pair(config, launch)
                report.good.append(f"{path} with {launch.path}: {plan.describe()}")
            except UsageError as error:
                report.problems.extend(str(error).split("\n"))
    return report


def _is_launch_file(path: Path) -> bool:
    """Whether more of a file's top-level keys, slips included, are a launch file's than a run's.

    To train from an empty file means all defaults, but what it was meant to be nobody can tell.
    """
    keys = list(load_yaml_mapping(path))[:_TELLING_KEYS]
    if not keys:
        raise UsageError(f"{path}: holds no key, so it is no run configuration and no launch file")
    return _likeness(keys, LaunchFile.model_fields) > _likeness(keys, RunConfig.model_fields)


def _likeness(keys: Iterable[str], known: Iterable[str]) -> int:
    known = list(known)
    return sum(bool(get_close_matches(key, known, n=1, cutoff=0.8)) for key in keys)
