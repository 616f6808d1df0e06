"""Exposed time by hand, and waits that are seen."""

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from toolkit.engines.clock import HostClock
from toolkit.engines.collectives import Collective
from toolkit.engines.timed_collectives import Timed, TimedCollectives, exposed

ALL_REDUCE = Collective("all_reduce", 8, 4, (0, 1), at_boundary=True)


def test_what_is_waited_for_is_exposed_as_long_as_it_is() -> None:
    timed = Timed(ALL_REDUCE, 0, 2.0, None, over=[5.0], waits=[(4.0, 5.0)])
    assert exposed([timed], 1.0, HostClock()) == [(1.0, 4.0, 1.0)]


def test_a_wait_that_returns_late_is_exposed_until_the_end_alone() -> None:
    timed = Timed(ALL_REDUCE, 0, 2.0, None, over=[4.5, 5.0], waits=[(4.0, 5.0)])
    assert exposed([timed], 1.0, HostClock()) == [(1.0, 3.5, 0.5)]


def test_buckets_are_exposed_from_the_last_issue_on_one_after_the_other() -> None:
    """Issued at 0, 4 and 8, over at 6, 10 and 13: hidden, then 2 and 3 seconds exposed."""
    moments = [(0.0, 6.0), (4.0, 10.0), (8.0, 13.0)]
    timed = [Timed(ALL_REDUCE, 0, issued, None, over=[over]) for issued, over in moments]
    assert [stood for *_, stood in exposed(timed, 0.0, HostClock())] == [0.0, 2.0, 3.0]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_wait_is_seen_and_its_handle_let_go(group: None) -> None:
    seen = TimedCollectives(HostClock())
    with seen.watching():
        work = dist.all_reduce(torch.ones(8), async_op=True)
        time.sleep(0.01)
        work.wait()
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(2))
    assert [each.what.elements for each in seen.timed] == [8, 4]
    assert [len(each.waits) for each in seen.timed] == [1, 1]
    assert [each.work for each in seen.timed] == [None, None]
    since, _ = seen.timed[0].waits[0]
    assert since - seen.timed[0].issued >= 0.01
