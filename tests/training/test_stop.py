"""All ranks stop between the same two pieces of work."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from toolkit.training import stop as stop_module
from toolkit.training.stop import Lookout, Stopped, StopRequest


class Ranks:
    """Exchanges numbers between threads, and counts how often."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=20)
        self.values: dict[int, list[float]] = {}
        self.exchanges = 0

    def gather(self, rank: int, own: Sequence[float]) -> list[list[float]]:
        self.values[rank] = list(own)
        self.exchanges += rank == 0
        self.barrier.wait()
        found = [self.values[r] for r in sorted(self.values)]
        self.barrier.wait()
        return found


@pytest.mark.parametrize("asked_at", [1, 2, 7, 500])
def test_ranks_of_unequal_pace_stop_after_as_many_pieces(
    monkeypatch: pytest.MonkeyPatch, asked_at: int
) -> None:
    """Each rank's clock goes on by its own pace with each piece; one is asked, in a second all."""
    pace_s = {0: 0.004, 1: 0.01, 2: 0.001}
    clocks = threading.local()
    monkeypatch.setattr(stop_module.time, "perf_counter", lambda: getattr(clocks, "now", 0.0))
    ranks = Ranks(3)

    def work(rank: int) -> int:
        clocks.now = 0.0
        request = StopRequest()
        look = Lookout(lambda own: ranks.gather(rank, own), request)
        for piece in range(1, 2000):
            clocks.now += pace_s[rank]
            if rank == 1 and piece == asked_at:
                request.number = 10
            try:
                look()
            except Stopped:
                return piece
        return 0

    with ThreadPoolExecutor(3) as threads:
        pieces: list[Any] = list(threads.map(work, range(3)))
    assert len(set(pieces)) == 1
    assert asked_at <= pieces[0] < asked_at + 1.0 / max(pace_s.values()) + 1
    assert ranks.exchanges <= 3 + asked_at * max(pace_s.values())


def test_one_rank_looks_after_each_piece() -> None:
    """What it does on a GPU is not over when the next piece begins, so its clock says nothing."""
    request = StopRequest()
    look = Lookout(lambda own: [list(own)], request)
    for _ in range(100):
        look()
    request.number = 15
    with pytest.raises(Stopped, match="SIGTERM"):
        look()
