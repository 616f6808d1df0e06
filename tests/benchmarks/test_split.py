import pytest

from benchmarks.split import Interval, Turn, split_turns

MS = 1_000_000


def turn(phase: str, start: int, end: int, busy_s: float = 0.0) -> Turn:
    return Turn(phase, Interval(start * MS, end * MS), busy_s)  # type: ignore[arg-type]


def test_on_a_cpu_what_passes_without_computing_is_exposed() -> None:
    turns = [
        turn("forward", 0, 10, busy_s=0.010),
        turn("backward", 10, 40, busy_s=0.018),
        turn("optimizer", 40, 45, busy_s=0.004),
    ]
    split = split_turns([*turns, *turns], None, steps=2)
    assert split.forward_s == pytest.approx(0.010)
    assert split.backward_s == pytest.approx(0.018)
    assert split.communication_s == pytest.approx(0.013)
    assert split.optimizer_s == pytest.approx(0.004)


def test_on_a_gpu_a_collective_beside_another_kernel_is_hidden() -> None:
    kernels = [
        ("gemm", Interval(0, 8 * MS)),
        ("ncclDevKernel_AllGather", Interval(6 * MS, 9 * MS)),
        ("gemm", Interval(12 * MS, 20 * MS)),
        ("ncclDevKernel_ReduceScatter", Interval(11 * MS, 30 * MS)),
        ("elementwise", Interval(24 * MS, 26 * MS)),
        ("ncclDevKernel_AllReduce", Interval(28 * MS, 29 * MS)),
    ]
    turns = [turn("forward", 0, 10), turn("backward", 10, 31), turn("optimizer", 31, 33)]
    split = split_turns(turns, kernels, steps=1)
    # 8 to 9; 11 to 12, 20 to 24 and 26 to 30.
    assert split.communication_s == pytest.approx(0.010)
    assert split.forward_s == pytest.approx(0.009)
    assert split.backward_s == pytest.approx(0.012)
    assert split.optimizer_s == pytest.approx(0.002)
