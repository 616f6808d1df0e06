import faulthandler
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.training import watchdog
from toolkit.training.watchdog import Watchdog

TIMEOUT_S = 5.0


@pytest.fixture
def dumpers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times after which a dumper was to write, one for each that was set."""
    found: list[float] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after, file: found.append(after)
    )
    monkeypatch.setattr(watchdog, "_LOOK_EVERY_S", 0.01)
    return found


@pytest.fixture
def dog(tmp_path: Path, dumpers: list[float]) -> Iterator[Watchdog]:
    dog = Watchdog(tmp_path, rank=0, world_size=1, timeout_s=TIMEOUT_S, on_hang=lambda *_: None)
    yield dog
    dog.close()


def test_marks_set_no_dumper_until_a_tenth_of_the_time_has_passed(
    dog: Watchdog, dumpers: list[float]
) -> None:
    for _ in range(100):
        dog.mark()
    time.sleep(0.05)
    assert dumpers == [pytest.approx(TIMEOUT_S, abs=0.1)]


def test_after_that_it_is_set_anew_and_counts_from_the_last_mark(
    dog: Watchdog, dumpers: list[float]
) -> None:
    time.sleep(0.11 * TIMEOUT_S)
    dog.mark()
    time.sleep(0.1)
    assert dumpers[1:] == [pytest.approx(TIMEOUT_S, abs=0.1)]
