"""What joining processes does with GPUs, by stand-ins for `torch.cuda` and for NCCL."""

from datetime import timedelta
from typing import Any

import accelerate
import pytest
import torch
import torch.distributed as dist

from toolkit.engines.launched import Launched, read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.errors import UsageError

TIMEOUT = timedelta(seconds=60)
DUPLICATE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage, "
    "NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 65000\n"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine with two GPUs, and what is asked of them and of Accelerate, in order."""
    found: list[Any] = []

    class State:
        device = torch.device("cpu")

        def __init__(self, **arguments: Any) -> None:
            found.append(sorted(arguments))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(accelerate, "PartialState", State)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda value: value.fill_(3.0))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    return found


def rank(local_rank: int, **environment: str) -> Launched:
    places = {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "2"}
    return read_launch({**places, **environment})


def test_a_process_takes_its_gpu_before_the_group_starts(calls: list[Any]) -> None:
    """NCCL's collectives of objects go through the GPU that is current."""
    start_process_group(rank(1), timeout=TIMEOUT)
    assert calls == [1, ["init_method", "timeout"]]


def test_one_process_alone_takes_the_first_gpu(calls: list[Any]) -> None:
    start_process_group(read_launch({}), timeout=TIMEOUT)
    assert calls == [0, []]


def test_more_processes_than_gpus_are_refused(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"^4 processes were started on .+ sees 2 GPUs; each"):
        start_process_group(rank(2), timeout=TIMEOUT)
    assert calls == []


@pytest.mark.parametrize("eager", [False, True])
def test_nccl_says_why_it_cannot_connect(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    """At the first collective, or as DeepSpeed starts the group."""

    def fail(*arguments: Any, **settings: Any) -> None:
        raise dist.DistBackendError(DUPLICATE)

    target = (accelerate, "PartialState") if eager else (dist, "all_reduce")
    monkeypatch.setattr(*target, fail)
    with pytest.raises(
        UsageError,
        match=r"^NCCL cannot connect the 2 processes \(Duplicate GPU detected : rank 1 and rank 0 "
        r"both on CUDA device 65000\); NCCL_DEBUG=WARN prints why$",
    ):
        start_process_group(rank(1), timeout=TIMEOUT)


def test_nothing_is_compiled_for_gloo_where_there_are_gpus(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.engines.process_group.build_extensions_here", None)
    zero = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
    start_process_group(rank(1, **zero), timeout=TIMEOUT)
    assert calls[0] == 1
