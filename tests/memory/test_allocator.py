import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from toolkit.memory.allocator import live_storages, measure_peak

CPU = torch.device("cpu")
MIB = 2**20


def test_the_peak_is_what_was_held_at_once() -> None:
    kept = torch.empty(3 * MIB, dtype=torch.uint8)
    with measure_peak(CPU) as peak:
        first = torch.empty(5 * MIB, dtype=torch.uint8)
        del first
        second = torch.empty(7 * MIB, dtype=torch.uint8)
        third = torch.empty(2 * MIB, dtype=torch.uint8)
        del second
    assert peak.bytes - peak.before == 9 * MIB
    assert peak.before >= kept.nbytes
    assert sorted(block.size for block in peak.held) == [2 * MIB, 7 * MIB]
    assert peak.held[0].operators[-1] == "aten::empty"
    assert third.nbytes == 2 * MIB


def test_a_storage_is_counted_once_whoever_looks_at_it() -> None:
    before = sum(live_storages().values())
    whole = torch.zeros(MIB)
    views = [whole[:5], whole.view(2, -1), torch.nn.Parameter(whole)]
    assert sum(live_storages().values()) - before == whole.nbytes
    assert len(views) == 3


def test_a_fake_tensor_of_a_compiler_takes_no_memory() -> None:
    before = sum(live_storages().values())
    with FakeTensorMode():
        fake = torch.empty(2**40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(live_storages().values()) == before
    assert fake.numel() == 2**40


def test_a_block_freed_out_of_sight_does_not_stay() -> None:
    import threading

    held = []
    with measure_peak(CPU) as peak:
        held.append(torch.empty(5 * MIB, dtype=torch.uint8))
        # A thread that the profiler does not follow, as gloo's are.
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        later = torch.empty(4 * MIB, dtype=torch.uint8)
    assert peak.bytes - peak.before == 5 * MIB
    assert later.nbytes == 4 * MIB


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_gloo_makes_for_itself_is_counted_apart(one_rank: None) -> None:
    own = torch.zeros(MIB)
    with measure_peak(CPU) as peak:
        gathered = torch.empty(MIB)
        dist.all_gather_into_tensor(gathered, own)
        dist.reduce_scatter_tensor(own, gathered)
    assert peak.bytes - peak.before == gathered.nbytes
    assert [block.size for block in peak.held] == [gathered.nbytes]
    assert peak.transport >= own.nbytes


def test_on_a_gpu_pytorchs_own_statistics_of_the_block_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80, 100))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    with measure_peak(gpu) as peak:
        calls.append("step")
    assert calls == ["reset", "step"]
    assert (peak.before, peak.bytes, peak.device) == (3, 5, "H100")
    assert peak.on_device() == {"reserved_memory_bytes": 7, "device_memory_bytes": 20}


def test_measuring_prints_nothing_of_what_was_there_before(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """PyTorch's C++ code warns of the first free of such a block and every thousandth after it."""
    blocks = [torch.empty(1000) for _ in range(3000)]
    with measure_peak(CPU):
        blocks.clear()
    assert "before the profiling started" not in capfd.readouterr().err
