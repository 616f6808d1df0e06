"""What the launcher asked of this process, read from the environment it set.

`accelerate launch` hands a launch file on as ACCELERATE_*, FSDP_* and PARALLELISM_CONFIG_*
variables beside torchrun's RANK and WORLD_SIZE. This is the one place that reads them. The launch
file itself is not among them; it is found on the command line of the launcher, the parent process.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.engines.strategies import Precision, Strategy, is_plain_sharding, replica_groups
from toolkit.errors import UsageError

_GROUPS = "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"
_SHARDS = "PARALLELISM_CONFIG_DP_SHARD_SIZE"


@dataclass(frozen=True)
class Launched:
    """One process's share of a launch.

    Attributes:
        replicas: the replica groups of hybrid sharding; 1 under every other strategy.
        precision: None where the launch leaves it to the run.
        recomputes: whether FSDP was asked to checkpoint activations.
        on_cpu: whether the GPUs, if there are any, are to be left alone.
        config_file: the launch file, where it is known.
    """

    strategy: Strategy
    rank: int
    local_rank: int
    world_size: int
    replicas: int
    precision: Precision | None
    recomputes: bool = False
    on_cpu: bool = False
    config_file: str | None = None

    def describe(self) -> dict[str, object]:
        """Return what is the same on every rank, to be stored with the run."""
        settings = asdict(self)
        del settings["rank"], settings["local_rank"]
        return settings


def read_launch(environment: Mapping[str, str]) -> Launched:
    """Read the launch from environment variables.

    Raises:
        UsageError: the variables ask for something this toolkit has no strategy for.
    """
    world_size = int(environment.get("WORLD_SIZE", "1"))
    _check_accumulation(environment)
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16", "fp16"):
        raise UsageError(f"mixed_precision '{precision}' is not supported; use no, bf16 or fp16")
    return Launched(
        strategy=_strategy(environment, world_size),
        rank=int(environment.get("RANK", "0")),
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        world_size=world_size,
        replicas=_replicas(environment, world_size),
        precision=None if precision == "no" else precision,  # type: ignore[arg-type]
        recomputes=_is_true(environment, "FSDP_ACTIVATION_CHECKPOINTING"),
        on_cpu=_is_true(environment, "ACCELERATE_USE_CPU"),
    )


def leave_to_the_run(environment: MutableMapping[str, str], *, on_cpu: bool) -> None:
    """Take out of the environment what Accelerate would follow where the run decides.

    Must be done before `torch` looks for GPUs.

    Args:
        environment: this process's.
        on_cpu: hide the GPUs as well. Accelerate's own way of staying on the CPU turns FSDP into
            DDP, and its launcher passes `use_cpu` on to a single process only.
    """
    for key in (
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        "ACCELERATE_USE_CPU",
        "ACCELERATE_USE_PARALLELISM_CONFIG",
        "FSDP_ACTIVATION_CHECKPOINTING",
    ):
        environment.pop(key, None)
    if on_cpu:
        environment.update(CUDA_VISIBLE_DEVICES="", ACCELERATE_TORCH_DEVICE="cpu")


def _check_accumulation(environment: Mapping[str, str]) -> None:
    """Refuse a second count of micro-steps: Accelerate would divide every loss by it as well.

    Under DeepSpeed it divides nothing, and the launch file's own value is held against the run.
    """
    if _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        return
    key = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    count = environment.get(key, "1")
    if count not in ("1", "auto"):
        raise UsageError(
            f"{key} is {count}, but the run derives its micro-steps from batch.tokens_per_step; "
            "unset the variable, and leave gradient_accumulation_steps out of the launch file"
        )


def _strategy(environment: Mapping[str, str], world_size: int) -> Strategy:
    if _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        return _zero_stage(environment)
    if _is_true(environment, "ACCELERATE_USE_FSDP"):
        return _fsdp2(environment, world_size)
    return "ddp" if "LOCAL_RANK" in environment else "single"


def _zero_stage(environment: Mapping[str, str]) -> Strategy:
    stages: dict[str, Strategy] = {"1": "zero1", "2": "zero2", "3": "zero3"}
    if environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none") != "none":
        raise UsageError(
            "deepspeed_config_file is not supported: DeepSpeed's configuration follows from the run"
        )
    stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    if stage not in stages:
        raise UsageError(f"zero_stage {stage} is not supported; use 1, 2 or 3")
    return stages[stage]


def _fsdp2(environment: Mapping[str, str], world_size: int) -> Strategy:
    version = environment.get("FSDP_VERSION", "1")
    if version != "2":
        raise UsageError(f"fsdp_version {version} is not supported; use fsdp_version: 2")
    if _is_true(environment, "FSDP_OFFLOAD_PARAMS"):
        raise UsageError("fsdp_offload_params: true is not supported: offload replaces gradients")
    if _is_hybrid(environment, world_size):
        return "hsdp"
    reshard = environment.get("FSDP_RESHARD_AFTER_FORWARD", "true")
    return "fsdp2" if reshard == "true" else "fsdp2_no_reshard"


def _is_hybrid(environment: Mapping[str, str], world_size: int) -> bool:
    groups, shards = (int(environment.get(key, "1")) for key in (_GROUPS, _SHARDS))
    plain = is_plain_sharding(groups=groups, shards=shards, world_size=world_size)
    return _GROUPS in environment and not plain


def _replicas(environment: Mapping[str, str], world_size: int) -> int:
    """Replica groups; torchrun counts the launchers, one per machine, in GROUP_WORLD_SIZE."""
    if not _is_hybrid(environment, world_size):
        return 1
    return replica_groups(
        groups=int(environment[_GROUPS]),
        shards=int(environment.get(_SHARDS, "1")),
        world_size=world_size,
        machines=int(environment.get("GROUP_WORLD_SIZE", "1")),
    )


def _is_true(environment: Mapping[str, str], key: str) -> bool:
    return environment.get(key, "false").lower() == "true"


def find_launch_file() -> Path | None:
    """Return the launch file this process was started with, or None where there is none to see."""
    import psutil

    parent = psutil.Process().parent()
    try:
        command = parent.cmdline() if parent else []
    except psutil.Error:
        return None
    return launch_file_of(command)


def launch_file_of(command: Sequence[str]) -> Path | None:
    """Return the launch file of an `accelerate launch` command line, in any of its spellings."""
    if not any(word == "launch" or Path(word).name == "accelerate-launch" for word in command):
        return None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag in ("--config_file", "--config-file"):
            return Path(value if equals else following)
    return None
