"""The true peak of a step: on a GPU from PyTorch's allocator, on a CPU from its allocator's events.

PyTorch keeps no statistics of CPU memory, but its profiler reports every allocation and free. What
lay there before is counted once, storage by storage. Not counted is what bypasses PyTorch:
the libraries themselves, gloo's sockets, scratch of compute kernels. Buffers that gloo allocates
through PyTorch inside a collective are counted apart: its threads come to them when the machine
lets them, so what lies beside them differs from step to step, and no GPU has them.

Worker threads free without a report; a block whose free was not seen, and which no tensor holds
once the step is over, counts only for the moment of its allocation. What was there before and is
freed inside stays counted, since the profiler does not report it either; what no tensor of Python's
refers to, such as DDP's buckets where gradients are not views of them, is not counted before.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from toolkit.engines.torch_internals import FakeTensor, without_native_warnings
from toolkit.memory.calibration import Measured, calibrate, save_calibration


class Block(NamedTuple):
    """One allocation: its size and the operators, outermost first, that made it."""

    size: int
    operators: tuple[str, ...]

    @property
    def is_transport(self) -> bool:
        """Whether gloo made it for itself, in a collective or in one of its threads.

        What a collective gives back is allocated by its caller.
        """
        return any(name.startswith(("c10d::", "gloo:")) for name in self.operators)


@dataclass
class MeasuredPeak:
    """What `measure_peak` saw; filled in when its block ends.

    Attributes:
        bytes: the most that was allocated at one time, without gloo's own buffers.
        before: what was allocated when it began.
        held: on a CPU, what was allocated inside and held at the peak.
        transport: on a CPU, the most that gloo held in buffers of its own at one time.
        reserved: on a GPU, the most that PyTorch held of the device, fragments included.
        device_total: on a GPU, what the device reports as used, with context and libraries.
        device: on a GPU, its name.
    """

    bytes: int = 0
    before: int = 0
    held: list[Block] = field(default_factory=list)
    transport: int = 0
    reserved: int | None = None
    device_total: int | None = None
    device: str = ""

    def on_device(self) -> dict[str, int]:
        """Return what there is beyond allocated bytes, under the names of `metrics.jsonl`."""
        if self.reserved is None or self.device_total is None:
            return {"transport_memory_bytes": self.transport}
        return {
            "reserved_memory_bytes": self.reserved,
            "device_memory_bytes": self.device_total,
        }

    def keep_calibration(self, *, run: str, versions: dict[str, str]) -> None:
        """Let later estimates know what this GPU needs beyond allocated bytes.

        Args:
            run: the folder of the run that was measured.
            versions: of the packages that it ran with.
        """
        if self.reserved is None or self.device_total is None:
            return
        measured = Measured(
            run=run, allocated_bytes=self.bytes, device=self.device, versions=versions
        )
        save_calibration(
            calibrate(reserved=self.reserved, device_total=self.device_total, measured=measured)
        )


@contextmanager
def measure_peak(device: torch.device) -> Iterator[MeasuredPeak]:
    """Measure the block inside; it costs nothing on a GPU and a profiled step on a CPU."""
    peak = MeasuredPeak()
    measure = _measure_cuda if device.type == "cuda" else _measure_cpu
    with measure(peak, device):
        yield peak


@contextmanager
def _measure_cuda(peak: MeasuredPeak, device: torch.device) -> Iterator[None]:
    peak.before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield
    peak.bytes = torch.cuda.max_memory_allocated(device)
    peak.reserved = torch.cuda.max_memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    peak.device_total = total - free
    peak.device = torch.cuda.get_device_name(device)


@contextmanager
def _measure_cpu(peak: MeasuredPeak, device: torch.device) -> Iterator[None]:
    before = live_storages()
    peak.before = sum(before.values())
    # The profiler warns of frees of what was there before, which is counted here.
    with (
        without_native_warnings(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded,
    ):
        yield
    assert recorded.profiler is not None
    # The results own what the tree refers to, so they must outlive it.
    results = recorded.profiler.kineto_results
    events = _Events(before)
    for root in results.experimental_event_tree():
        events.collect(root, ())
    events.replay(peak, set(live_storages()))


def live_storages() -> dict[int, int]:
    """Return the size in bytes of every CPU storage that a tensor refers to, by address.

    A compiler keeps fake tensors, which have a size and no memory.
    """
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or issubclass(type(thing), FakeTensor):
            continue
        if thing.device.type != "cpu":
            continue
        try:
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):
            # A wrapper such as DTensor has no storage; the tensor inside it is found by itself.
            continue
    return found


class _Events:
    """Allocator events of a profile, put in order of time."""

    def __init__(self, before: dict[int, int]) -> None:
        self.before = before
        self.events: list[tuple[int, int, int, tuple[str, ...]]] = []

    def collect(self, node: Any, operators: tuple[str, ...]) -> None:
        """Take the events below a node of the profiler's tree."""
        if str(node.tag) == "_EventType.Allocation":
            fields = node.extra_fields
            self.events.append((node.start_time_ns, fields.ptr, fields.alloc_size, operators))
            return
        operators = (*operators, node.name)
        for child in node.children:
            self.collect(child, operators)

    def replay(self, peak: MeasuredPeak, alive: set[int]) -> None:
        """Find the peak, of gloo's own buffers and of all the others."""
        self.events.sort(key=lambda event: event[0])
        unseen = self._unseen_frees(alive)
        held: dict[int, Block] = {}
        transport: dict[int, int] = {}
        total = peak.bytes = peak.before
        for number, (_, address, size, operators) in enumerate(self.events):
            block = Block(size, operators)
            if size < 0:
                transport.pop(address, None)
                total -= held.pop(address, Block(0, ())).size
            elif block.is_transport:
                peak.transport = max(peak.transport, sum(transport.values()) + size)
                if number not in unseen:
                    transport[address] = size
            else:
                if total + size > peak.bytes:
                    peak.bytes = total + size
                    peak.held = [*held.values(), block]
                if number not in unseen:
                    held[address] = block
                    total += size

    def _unseen_frees(self, alive: set[int]) -> set[int]:
        """Return the allocations that ended without an event."""
        latest: dict[int, int] = {}
        unseen = set()
        for number, (_, address, size, _) in enumerate(self.events):
            earlier = latest.pop(address, None)
            if size > 0:
                latest[address] = number
                if earlier is not None:
                    unseen.add(earlier)
        return unseen | {number for address, number in latest.items() if address not in alive}
