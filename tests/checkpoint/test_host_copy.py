"""The copy of an asynchronous save from a GPU, by stand-ins for CUDA's runtime and its stream."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from toolkit.checkpoint.host_copy import HostCopy
from toolkit.checkpoint.tensors import Entry
from toolkit.errors import UsageError

GPU = torch.device("cuda", 0)


class Runtime:
    """`torch.cuda.cudart()`: locks and unlocks pages, or refuses with an error's number."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.locked[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


class Stream:
    """Copies that are asked not to block are made when the host synchronizes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: list[Callable[[], Any]] = []
        copy = torch.Tensor.copy_

        def copy_later(
            to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
        ) -> torch.Tensor:
            if not non_blocking:
                return copy(to, source)
            self.queued.append(lambda: copy(to, source))
            return to

        monkeypatch.setattr(torch.Tensor, "copy_", copy_later)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self, device: torch.device) -> None:
        assert device == GPU
        while self.queued:
            self.queued.pop(0)()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    yield runtime
    gc.collect()


def pieces(*values: float) -> list[Entry]:
    tensors = [torch.full((3,), value) for value in values]
    return [
        Entry(f"parameter/{number}/0", (3,), lambda tensor=tensor: tensor)
        for number, tensor in enumerate(tensors)
    ]


def test_what_is_copied_is_there_before_training_continues(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(monkeypatch)
    copied = HostCopy(pieces(1, 2), GPU).take(pieces(1, 2))
    assert stream.queued == []
    assert [piece.read().tolist() for piece in copied] == [[1.0] * 3, [2.0] * 3]


def test_a_copy_that_is_not_waited_for_is_seen(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would find without the synchronization."""
    stream = Stream(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    (copied,) = HostCopy(pieces(1), GPU).take(pieces(1))
    assert copied.read().tolist() == [0.0] * 3
    stream.queued.clear()


def test_pages_are_locked_as_long_as_the_copy_lives(runtime: Runtime) -> None:
    copy = HostCopy(pieces(1, 2), GPU)
    assert list(runtime.locked.values()) == [24]
    del copy
    gc.collect()
    assert runtime.locked == {}


def test_on_a_cpu_nothing_is_locked(runtime: Runtime) -> None:
    HostCopy(pieces(1), torch.device("cpu"))
    assert runtime.locked == {}


def test_memory_that_cannot_be_locked_is_named_with_its_key(runtime: Runtime) -> None:
    runtime.error = 2
    with pytest.raises(
        UsageError, match=r"^training\.async_save: .+ cannot be locked .*cudaError: 2.*to false$"
    ):
        HostCopy(pieces(1), GPU)
