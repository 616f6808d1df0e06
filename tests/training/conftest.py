import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.training.runs import Start, TinyRun
from toolkit.config import load_run_config
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.training import worker
from toolkit.training.callback import Callback
from toolkit.verify.cases import TINY, Case
from toolkit.verify.worker import build_case


@pytest.fixture
def single_engine(fresh_accelerate: None) -> Callable[[Case], Engine]:
    """Build the engine of a case for one process alone, on the tiny model."""
    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    return lambda case: build_case(case, TINY, launched)


@pytest.fixture
def printed() -> list[str]:
    """The lines of rank 0."""
    return []


@pytest.fixture
def start(run_file: Path, printed: list[str]) -> Start:
    """Start the tiny run with some keys changed, as one process would."""

    def start_run(
        *overrides: str, strict: bool = False, callbacks: Sequence[Callback] = ()
    ) -> TinyRun:
        config = load_run_config(run_file, overrides)
        return TinyRun(config, printed.append, strict=strict, callbacks=callbacks)

    return start_run


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's variables, and no launch file however these tests were started."""
    for key in os.environ:
        if key in ("RANK", "LOCAL_RANK", "WORLD_SIZE") or key.startswith("ACCELERATE_"):
            monkeypatch.delenv(key)
    monkeypatch.setattr(worker, "find_launch_file", lambda: None)
