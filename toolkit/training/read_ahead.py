"""The next step's batch, read while this step computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class ReadAhead(Generic[Batch]):
    """Calls `read(step + 1)` in a thread as soon as the batch of `step` has been handed out.

    What is read depends on the step alone, so a run that rolls back, or resumes elsewhere, gets
    the same batches; one read in vain is dropped, together with what it raised.

    Args:
        read: returns the batch of a step; used by one thread at a time.
    """

    def __init__(self, read: Callable[[int], Batch]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._ahead: tuple[int, Future[Batch]] | None = None

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step; raises what reading it raised."""
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = self._begin(step)
        batch = self._ahead[1].result()
        self._ahead = self._begin(step + 1)
        return batch

    def _begin(self, step: int) -> tuple[int, Future[Batch]]:
        return step, self._thread.submit(self._read, step)
