"""What engines compute around collectives: by tensor and by byte, and where it was measured."""

import csv
from dataclasses import astuple

import pytest

from benchmarks.engine_costs import SHIPPED, engine_rows, fit_engine
from benchmarks.own_errors import RESULTS
from benchmarks.record import Record, Split, read_records
from tests.benchmarks.cases import case, record
from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import model_tensors
from toolkit.prediction.engines import EngineCosts, find_engine_costs, tensors_in
from toolkit.program.events import Collective

SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=32)
LARGE = ModelSizes(n_layer=6, n_head=2, n_embd=64, vocab_size=512, block_size=32)


def whole(kind: str) -> Collective:
    """The whole model in one collective."""
    return Collective(kind, 4 * SIZES.parameter_count, 4, "world", blocks=True)  # type: ignore[arg-type]


def test_a_payload_has_its_share_of_the_tensors() -> None:
    count = len(model_tensors(SIZES))
    assert tensors_in(whole("all_reduce"), SIZES) == count
    costs = EngineCosts(1.0, 0.0, 2.0, 1e-3)
    assert costs.seconds(whole("all_reduce"), SIZES) == pytest.approx(count)
    gathered = costs.seconds(whole("all_gather"), SIZES)
    assert gathered == pytest.approx(2 * count + 4e-3 * SIZES.parameter_count)


def test_costs_that_records_were_made_of_are_found() -> None:
    true = EngineCosts(1e-4, 2e-10, 0.0, 0.0)
    sizes = (SIZES, LARGE)

    def made(model: ModelSizes, mode: str) -> Record:
        of = case(
            strategy="zero2", accumulation=mode, model=model, world_size=2, grad_accum_steps=4
        )
        passes = 4 if mode == "sharded" else 1
        tensors, moved = len(model_tensors(model)), 4 * model.parameter_count
        extra = passes * (tensors * true.reduce_tensor_s + moved * true.reduce_byte_s)
        split = Split(forward_s=0.5, backward_s=0.5 + extra, communication_s=0, optimizer_s=0)
        return record(of, split=split)

    records = [made(model, mode) for model in sizes for mode in ("replicated", "sharded")]
    found = fit_engine(records, [1.0] * 4)
    assert astuple(found) == pytest.approx(astuple(true), rel=1e-3, abs=1e-15)


def test_the_shipped_costs_come_out_of_the_records() -> None:
    with SHIPPED.open() as file:
        shipped = [tuple(row) for row in csv.reader(file)]
    assert engine_rows(read_records(RESULTS / "cpu-engines")) == shipped


def test_engines_are_known_where_they_were_measured() -> None:
    environment = read_records(RESULTS / "cpu-engines")[0].environment
    assert find_engine_costs("zero1", environment) == find_engine_costs("zero2", environment)
    elsewhere = environment.model_copy(update={"cpu": "another"})
    assert find_engine_costs("zero2", elsewhere) is None
