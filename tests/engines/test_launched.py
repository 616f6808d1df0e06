from pathlib import Path

import psutil
import pytest

from toolkit.engines import launched
from toolkit.engines.launched import (
    Launched,
    find_launch_file,
    launch_file_of,
    leave_to_the_run,
    read_launch,
)
from toolkit.errors import UsageError

RANKED = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
FSDP2 = {**RANKED, "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
ZERO = {**RANKED, "ACCELERATE_USE_DEEPSPEED": "true"}


def test_nothing_set_is_one_process() -> None:
    assert read_launch({}) == Launched(
        strategy="single", rank=0, local_rank=0, world_size=1, replicas=1, precision=None
    )


def test_rank_and_world_size_are_read() -> None:
    found = read_launch(RANKED)
    assert (found.rank, found.local_rank, found.world_size) == (5, 1, 8)


@pytest.mark.parametrize(
    ("environment", "strategy"),
    [
        (RANKED, "ddp"),
        ({**RANKED, "ACCELERATE_USE_CPU": "false"}, "ddp"),
        (FSDP2, "fsdp2"),
        ({**FSDP2, "FSDP_RESHARD_AFTER_FORWARD": "true"}, "fsdp2"),
        ({**FSDP2, "FSDP_RESHARD_AFTER_FORWARD": "false"}, "fsdp2_no_reshard"),
        ({**FSDP2, "ACCELERATE_USE_FSDP": "True"}, "fsdp2"),
        ({**FSDP2, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2"}, "hsdp"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, "zero1"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}, "zero2"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "zero3"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "none"}, "zero2"),
    ],
)
def test_the_strategy_follows_from_the_launchers_variables(
    environment: dict[str, str], strategy: str
) -> None:
    assert read_launch(environment).strategy == strategy


def test_what_the_run_has_to_agree_to_is_read() -> None:
    found = read_launch({**FSDP2, "FSDP_ACTIVATION_CHECKPOINTING": "true"})
    assert (found.recomputes, found.on_cpu) == (True, False)
    assert read_launch({"ACCELERATE_USE_CPU": "True"}).on_cpu


@pytest.mark.parametrize("on_cpu", [True, False])
def test_accelerate_finds_nothing_that_the_run_decides(on_cpu: bool) -> None:
    kept = {**FSDP2, "CUDA_VISIBLE_DEVICES": "0,1"}
    environment = {
        **kept,
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_USE_CPU": "True",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "FSDP_ACTIVATION_CHECKPOINTING": "true",
    }
    leave_to_the_run(environment, on_cpu=on_cpu)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_TORCH_DEVICE": "cpu"} if on_cpu else {}
    assert environment == {**kept, **hidden}


def test_one_replica_group_of_all_ranks_is_plain_sharding() -> None:
    mesh = {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "1", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "8"}
    found = read_launch({**FSDP2, **mesh})
    assert (found.strategy, found.replicas) == ("fsdp2", 1)


@pytest.mark.parametrize(
    ("groups", "shards", "machines", "replicas"),
    [
        (4, 1, 1, 4),
        (1, 2, 1, 4),
        (4, 2, 1, 4),
        (1, 1, 1, 2),
        (1, 1, 4, 4),
        (2, 1, 4, 2),
    ],
)
def test_replica_groups_are_what_the_launch_asks_for_or_one_per_machine(
    groups: int, shards: int, machines: int, replicas: int
) -> None:
    mesh = {
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(groups),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(shards),
        "GROUP_WORLD_SIZE": str(machines),
    }
    found = read_launch({**FSDP2, **mesh})
    assert (found.strategy, found.replicas) == ("hsdp", replicas)


@pytest.mark.parametrize(
    ("said", "precision"), [("no", None), ("bf16", "bf16"), ("fp16", "fp16"), (None, None)]
)
def test_the_launched_precision_is_read(said: str | None, precision: str | None) -> None:
    environment = {} if said is None else {"ACCELERATE_MIXED_PRECISION": said}
    assert read_launch(environment).precision == precision


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision 'fp8' is not supported"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "0"}, "zero_stage 0 is not supported"),
        ({**ZERO, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, "deepspeed_config_file"),
        ({**FSDP2, "FSDP_VERSION": "1"}, "fsdp_version 1 is not supported"),
        ({**RANKED, "ACCELERATE_USE_FSDP": "true"}, "fsdp_version 1 is not supported"),
        ({**FSDP2, "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params: true"),
        (
            {**FSDP2, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "3"},
            "8 processes cannot form 3 equal replica groups",
        ),
    ],
)
def test_what_no_strategy_is_for_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_launch(environment)
    assert words in str(caught.value)


def test_the_description_is_the_same_on_every_rank() -> None:
    first, last = ({**FSDP2, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 7))
    described = read_launch(first).describe()
    assert described == read_launch(last).describe()
    assert described == {
        "strategy": "fsdp2",
        "world_size": 8,
        "replicas": 1,
        "precision": None,
        "recomputes": False,
        "on_cpu": False,
        "config_file": None,
    }


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("accelerate launch --config_file a.yaml launch/train.py --config run.yaml", "a.yaml"),
        ("accelerate launch --num_processes 4 --config_file=dir/a.yaml train.py", "dir/a.yaml"),
        ("python -m toolkit.launch.launcher launch --config_file a.yaml train.py", "a.yaml"),
        ("accelerate launch train.py --config run.yaml", None),
        ("pytest --config_file a.yaml", None),
        ("", None),
    ],
)
def test_the_launch_file_is_on_the_launchers_command_line(command: str, path: str | None) -> None:
    assert launch_file_of(command.split()) == (Path(path) if path else None)


def test_a_parent_that_is_gone_has_no_launch_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def parent(self) -> "Gone":
            return self

        def cmdline(self) -> list[str]:
            raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil, "Process", Gone)
    assert find_launch_file() is None


def test_the_parents_command_line_is_the_one_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launched, "launch_file_of", lambda command: command)
    parent = psutil.Process().parent()
    assert parent is not None
    assert find_launch_file() == parent.cmdline()


def test_replica_groups_of_one_are_refused():
    environment = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
        "WORLD_SIZE": "2",
    }
    with pytest.raises(UsageError, match="leave nothing to shard over; use ddp, or at least 4"):
        read_launch(environment)


def test_a_second_count_of_micro_steps_is_refused():
    with pytest.raises(UsageError, match="ACCELERATE_GRADIENT_ACCUMULATION_STEPS is 4"):
        read_launch({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})


@pytest.mark.parametrize(
    "command",
    [
        ["python", "accelerate", "launch", "--config-file", "a.yaml", "train.py"],
        ["python", "accelerate", "launch", "--config-file=a.yaml", "train.py"],
        ["python", "/bin/accelerate-launch", "--config_file", "a.yaml", "train.py"],
    ],
)
def test_every_spelling_of_the_launch_file_is_seen(command):
    assert launch_file_of(command) == Path("a.yaml")
