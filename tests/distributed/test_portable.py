"""A state saved under any strategy and world size loads bit for bit under any other."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.distributed import portable
from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.state import shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import launch
from toolkit.shipped import ROOT
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

pytestmark = pytest.mark.distributed

SHARDED: tuple[Strategy, ...] = ("ddp", "fsdp2", "fsdp2_no_reshard", "zero1", "zero2", "zero3")
# `single` is one process; hybrid sharding needs two replica groups of two.
CELLS: list[tuple[Strategy, int]] = [
    ("single", 1),
    *((strategy, ranks) for ranks in (1, 2, 4) for strategy in SHARDED),
    ("hsdp", 4),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three updates of one process alone."""
    folder = tmp_path_factory.mktemp("portable")
    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    case = Case(accumulation="replicated", grad_accum_steps=1, optimizer="adamw", seed=1)
    engine = worker.build_case(case, TINY, launched)
    for step in range(3):
        train_step(engine, worker.own_micro_batches(case, TINY, engine, step), lr=1e-3)
    store = CheckpointStore(folder / "source")
    saver = Saver(engine, store, keep_last=1, asynchronous=False)
    saver.begin(TrainingState.after(3, shapes=shapes_of(engine)))
    saver.finish()
    return folder


def differences(
    folder: Path, strategy: Strategy, ranks: int, names: list[str]
) -> dict[str, list[str]]:
    printed = launch(
        strategy,
        ranks,
        [portable.__file__, str(folder), *names],
        timeout_s=200,
        environment={"PYTHONPATH": str(ROOT)},
    )
    (line,) = [line for line in printed.splitlines() if line.startswith("PORTABLE ")]
    found: dict[str, list[str]] = json.loads(line.removeprefix("PORTABLE "))
    assert len(found) == len(names) + 2
    return found


@pytest.mark.long
def test_a_state_goes_through_zero_2_bit_for_bit(folder: Path) -> None:
    found = differences(folder, "zero2", 2, ["source"])
    assert set(map(tuple, found.values())) == {()}


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_every_cell_of_the_matrix(folder: Path) -> None:
    """First each saves what one process wrote; then each loads what all the others saved."""
    names = ["source"]
    for strategy, ranks in CELLS:
        assert not any(differences(folder, strategy, ranks, ["source"]).values())
        names.append(f"{strategy}_{ranks}")
    for strategy, ranks in CELLS:
        assert not any(differences(folder, strategy, ranks, names).values())
