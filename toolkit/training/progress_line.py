"""How far a run is, in a line that stays at the bottom of a terminal."""

from collections.abc import Sequence
from math import nan
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from toolkit.training import callback


class ProgressLine(callback.Callback):
    """Shown inside its own `with` block, drawn again after each step; what is printed stands above.

    Args:
        last_step: that the run ends after.
        is_wanted: whether this process may show it; without a terminal none does.
    """

    def __init__(self, last_step: int, *, is_wanted: bool) -> None:
        console = Console()
        self._line = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # A thread that draws would hold the interpreter now and then in the middle of a step.
            auto_refresh=False,
            disable=not (is_wanted and console.is_terminal),
        )
        self._task = self._line.add_task("", total=last_step, loss=nan)

    def __enter__(self) -> "ProgressLine":
        self._line.start()
        if not self._line.disable:
            # A killed process cannot bring back a cursor that it has hidden.
            self._line.console.show_cursor(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.stop()

    def at_start(self, progress: callback.Progress) -> None:
        """Begin where the run resumes, so that the time left is that of this start's steps."""
        self._line.update(self._task, completed=progress.step, refresh=True)

    def after_step(self, progress: callback.Progress, numbers: Sequence[float]) -> None:
        """Draw it."""
        self._line.update(self._task, completed=progress.step, loss=progress.loss, refresh=True)
