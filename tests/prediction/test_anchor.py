"""An anchor makes the model give the measured step by its computation alone."""

import csv
from pathlib import Path

import pytest

from benchmarks import anchor_errors
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.anchor import anchor
from toolkit.prediction.costs import Costs
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

SIZES = ModelSizes(n_layer=4, n_head=2, n_embd=256, vocab_size=1024, block_size=128)
COSTS = Costs(1e-14, 2e-14, 1e-12, 1e-6, 1e-12)
STEP = StepSettings(
    sizes=SIZES,
    strategy="fsdp2",
    accumulation="sharded",
    world_size=8,
    seq_len=128,
    grad_accum_steps=2,
)
NETWORK = RingNetwork(STEP, 8, 1e10, None)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_computation_that_is_slower_by_a_factor_is_found(factor: float) -> None:
    program = write_step(STEP)
    slower = COSTS.slower(factor)._replace(collective_s=COSTS.collective_s)
    found = anchor(program, COSTS, NETWORK, predict(program, slower, NETWORK).step_s)
    assert found.factor == pytest.approx(factor, rel=1e-6)
    assert found.scaled(COSTS) == pytest.approx(slower)


def test_the_sentence_names_the_part_that_changed() -> None:
    program = write_step(STEP)
    said = anchor(program, COSTS, NETWORK, 0.01).describe()
    assert "10 measured" in said
    assert "computation" in said
    assert "links are as they were" in said


def test_a_step_shorter_than_its_communication_is_refused() -> None:
    with pytest.raises(UsageError, match="none of this configuration"):
        anchor(write_step(STEP), COSTS, NETWORK, 1e-6)


@pytest.mark.long
def test_the_table_comes_out_of_the_rows() -> None:
    rows = anchor_errors.read_rows()
    path = Path(anchor_errors.__file__).with_name("results") / "anchor_errors.csv"
    with path.open() as file:
        committed = [tuple(row) for row in csv.reader(file)]
    assert anchor_errors.anchor_error_rows(rows) == committed
