from collections.abc import Callable
from datetime import timedelta

import pytest

from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case


@pytest.fixture
def single_engine(fresh_accelerate: None) -> Callable[[Case], Engine]:
    """Build the engine of a case for one process alone, on the tiny model."""
    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    return lambda case: worker.build_case(case, TINY, launched)
