from threading import Event

import pytest

from toolkit.training.read_ahead import ReadAhead


class Reader:
    """Remembers what was read, and can fail at one step."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.read: list[int] = []
        self.ahead = Event()
        self.fails_at = fails_at

    def __call__(self, step: int) -> str:
        self.read.append(step)
        if len(self.read) > 1:
            self.ahead.set()
        if step == self.fails_at:
            raise OSError(f"step {step}")
        return f"batch {step}"


def test_the_next_batch_is_read_before_it_is_asked_for() -> None:
    reader = Reader()
    assert ReadAhead(reader)(7) == "batch 7"
    assert reader.ahead.wait(10)
    assert reader.read == [7, 8]


def test_each_step_gets_its_own_batch_and_is_read_once() -> None:
    reader = Reader()
    batches = ReadAhead(reader)
    assert [batches(step) for step in range(4)] == [f"batch {step}" for step in range(4)]
    assert reader.read[:4] == [0, 1, 2, 3]


def test_a_run_that_jumps_gets_the_batch_it_asks_for() -> None:
    batches = ReadAhead(Reader())
    assert [batches(step) for step in (5, 6, 2, 9)] == ["batch 5", "batch 6", "batch 2", "batch 9"]


def test_an_error_belongs_to_the_step_that_was_read() -> None:
    batches = ReadAhead(Reader(fails_at=2))
    assert batches(1) == "batch 1"
    with pytest.raises(OSError, match="step 2"):
        batches(2)


def test_an_error_nobody_asked_for_is_nobodys() -> None:
    batches = ReadAhead(Reader(fails_at=2))
    assert batches(1) == "batch 1"
    assert batches(0) == "batch 0"
