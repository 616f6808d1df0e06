"""Accelerate's launch files, read as strictly as run configurations.

Accelerate ignores unknown keys in the nested sections and passes every value on through environment
variables, so a typing error would change the strategy without a word.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from toolkit.config.problems import describe_problems, dotted_keys
from toolkit.config.strict_yaml import load_yaml_mapping, read_yaml
from toolkit.engines.strategies import Strategy
from toolkit.errors import UsageError
from toolkit.launch.keys import DeepspeedConfig, FsdpConfig, LaunchFile

__all__ = ["LaunchFile", "load_launch_file", "strategy_of"]

_KEYS = dotted_keys(LaunchFile)
# Keys that a bare `no` or `yes` means the same for as `false` or `true`.
_SWITCHES = {
    prefix + name
    for prefix, kind in (
        ("", LaunchFile),
        ("fsdp_config.", FsdpConfig),
        ("deepspeed_config.", DeepspeedConfig),
    )
    for name, field in kind.model_fields.items()
    if field.annotation in (bool, bool | None, Any)
}
# Accelerate's older or unprefixed spellings, and names from `torchrun` and DeepSpeed.
_SYNONYMS = {
    "fp16": "mixed_precision",
    "bf16": "mixed_precision",
    "precision": "mixed_precision",
    "nproc_per_node": "num_processes",
    "world_size": "num_processes",
    "nnodes": "num_machines",
    "node_rank": "machine_rank",
    "master_addr": "main_process_ip",
    "master_port": "main_process_port",
    "stage": "deepspeed_config.zero_stage",
    "version": "fsdp_config.fsdp_version",
    "reshard_after_forward": "fsdp_config.fsdp_reshard_after_forward",
    "dp_replicate_size": "parallelism_config.parallelism_config_dp_replicate_size",
    "dp_shard_size": "parallelism_config.parallelism_config_dp_shard_size",
}
# DeepSpeed's section may repeat these, if with the same value; nothing else in the file has them.
_OF_THE_RUN = {
    "gradient_accumulation_steps": "batch.tokens_per_step",
    "gradient_clipping": "optimizer.grad_clip",
    "train_micro_batch_size_per_gpu": "batch.micro_batch_size",
    "train_batch_size": "batch.tokens_per_step",
}


def load_launch_file(path: str | Path) -> LaunchFile:
    """Return a checked launch file, whose `strategy_of` is known to have an answer.

    Raises:
        UsageError: one line for each problem, naming the file and the key.
    """
    written = _read_as_accelerate_does(path)
    if misplaced := list(_misplaced(written)):
        raise UsageError("\n".join(f"{path}: {problem}" for problem in misplaced))
    # Accelerate reads an empty section as an absent one.
    values = {
        key: value
        for key, value in written.items()
        if value not in ({}, None) or key not in LaunchFile.model_fields
    }
    if values.get("distributed_type") == "NO":
        values.setdefault("num_processes", 1)
    try:
        launch = LaunchFile.model_validate(values)
    except ValidationError as error:
        problems = describe_problems(error, _KEYS, lambda _: str(path), _SYNONYMS)
        raise UsageError("\n".join(problems)) from None
    launch._path = str(path)
    problems = [
        *_idle_sections(launch),
        *_machine_problems(launch),
        *_fsdp_problems(launch),
        *_mesh_problems(launch),
    ]
    if problems:
        raise UsageError("\n".join(f"{path}: {problem}" for problem in problems))
    strategy_of(launch)
    return launch


def strategy_of(launch: LaunchFile) -> Strategy:
    """Return the strategy that Accelerate will set up from this file.

    Raises:
        UsageError: the settings are a mixture that has no name here.
    """
    if launch.distributed_type == "NO":
        return "single"
    if launch.distributed_type == "MULTI_GPU":
        return "ddp"
    if launch.distributed_type == "DEEPSPEED":
        return _zero_strategy(launch)
    return _fsdp_strategy(launch)


def _read_as_accelerate_does(path: str | Path) -> dict[str, Any]:
    """Return a launch file's values, by Accelerate's reading where only that can be meant.

    It follows YAML 1.1, where a bare `no` is false.

    Raises:
        UsageError: the file cannot be read, or Accelerate reads a text or a number otherwise than
            it looks.
    """
    values = _prefixed(load_yaml_mapping(path))
    try:
        theirs = _leaves(_prefixed(yaml.safe_load(read_yaml(path)) or {}))
    except (yaml.YAMLError, ValueError):
        raise UsageError(f"{path}: Accelerate cannot read it; quote what is not a number") from None
    for key, ours in _leaves(values).items():
        reading = theirs.get(key)
        # As Python shows them, 1, 1.0 and True differ.
        if repr(reading) == repr(ours):
            continue
        if key not in _SWITCHES or not isinstance(reading, bool):
            raise UsageError(
                f"{path}: Accelerate reads {key} as {reading!r}, not as {ours!r}; "
                "quote text and write numbers plainly"
            )
        section, _, name = key.rpartition(".")
        (values[section] if section else values)[name] = reading
    return values


def _prefixed(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with whole names in `fsdp_config`, where Accelerate takes shorter ones too."""
    fsdp = values.get("fsdp_config")
    if not isinstance(fsdp, dict):
        return values
    whole = {name.removeprefix("fsdp_"): name for name in FsdpConfig.model_fields}
    return {**values, "fsdp_config": {whole.get(key, key): value for key, value in fsdp.items()}}


def _misplaced(written: dict[str, Any]) -> Iterator[str]:
    """Keys of the run configuration by the names that DeepSpeed has for them, and keys of old."""
    for key in _leaves(written):
        section, _, name = key.rpartition(".")
        if name in _OF_THE_RUN and section != "deepspeed_config":
            yield f"{key} must be removed: the run configuration decides with {_OF_THE_RUN[name]}"
    if "ipex_config" in written:
        yield "ipex_config must be removed: Accelerate has no such key since it dropped IPEX"


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        inner = _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        leaves |= inner or {f"{prefix}{key}": value}
    return leaves


def _zero_strategy(launch: LaunchFile) -> Strategy:
    stage = (launch.deepspeed_config or DeepspeedConfig()).zero_stage
    stages: dict[int, Strategy] = {1: "zero1", 2: "zero2", 3: "zero3"}
    if stage not in stages:
        raise UsageError(
            f"{launch.path}: zero_stage {stage} shards nothing; use distributed_type: MULTI_GPU"
        )
    return stages[stage]


def _fsdp_strategy(launch: LaunchFile) -> Strategy:
    reshard = launch.fsdp_config is None or launch.fsdp_config.fsdp_reshard_after_forward
    if not launch.is_hybrid_on(launch.num_processes):
        return "fsdp2" if reshard else "fsdp2_no_reshard"
    if not reshard:
        raise UsageError(
            f"{launch.path}: parallelism_config, hybrid sharding, needs "
            "fsdp_reshard_after_forward: true"
        )
    return "hsdp"


def _idle_sections(launch: LaunchFile) -> Iterator[str]:
    """Sections that the distributed type never looks at, or looks for in vain."""
    users = {
        "fsdp_config": "FSDP",
        "parallelism_config": "FSDP",
        "deepspeed_config": "DEEPSPEED",
    }
    for section, user in users.items():
        if getattr(launch, section) is not None and launch.distributed_type != user:
            yield f"{section} has no effect with distributed_type: {launch.distributed_type}"
    if launch.distributed_type == "FSDP" and launch.fsdp_config is None:
        yield "fsdp_config is missing; without it Accelerate starts FSDP version 1"


def _machine_problems(launch: LaunchFile) -> Iterator[str]:
    """Numbers of processes and machines that cannot all be true."""
    processes, machines = launch.num_processes, launch.num_machines
    if processes < 1:
        yield f"num_processes must be at least 1 over all machines, got {processes}"
    elif launch.distributed_type == "NO" and processes * machines > 1:
        yield f"distributed_type: NO starts one process, but num_processes is {processes}"
    elif processes % machines:
        yield f"num_processes {processes} is no multiple of num_machines {machines}"
    if launch.machine_rank >= machines:
        yield f"machine_rank {launch.machine_rank} is not below num_machines {machines}"
    if machines > 1 and (launch.main_process_ip is None or not launch.main_process_port):
        yield f"num_machines {machines} needs main_process_ip and a fixed main_process_port"


def _fsdp_problems(launch: LaunchFile) -> Iterator[str]:
    """Settings of FSDP that contradict each other."""
    fsdp = launch.fsdp_config
    if fsdp is None:
        return
    sharding, reshard = fsdp.fsdp_sharding_strategy, fsdp.fsdp_reshard_after_forward
    if sharding is not None and (sharding == "FULL_SHARD") != reshard:
        yield (
            f"fsdp_sharding_strategy: {sharding} is FSDP version 1's name for "
            f"fsdp_reshard_after_forward: {str(not reshard).lower()}, but that is "
            f"{str(reshard).lower()}"
        )
    if fsdp.fsdp_cpu_ram_efficient_loading and not fsdp.fsdp_sync_module_states:
        yield (
            "fsdp_sync_module_states: false is refused by Accelerate's launcher unless "
            "fsdp_cpu_ram_efficient_loading is false; take it out"
        )


def _mesh_problems(launch: LaunchFile) -> Iterator[str]:
    """A device mesh that does not cover the processes, or is not one of hybrid sharding."""
    if launch.num_processes < 1:
        return
    try:
        launch.replicas_on(launch.num_processes)
    except UsageError as error:
        yield str(error)
