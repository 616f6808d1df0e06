"""Costs against arithmetic by hand, and the table of their errors."""

import csv
from pathlib import Path

import pytest

from benchmarks import plan_errors
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.costs import Costs, amounts_of
from toolkit.prediction.devices import find_speed, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict, predict_range
from toolkit.program.events import Collective, Compute
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

ROOT = Path(plan_errors.__file__).parent.parent
SMALL = ModelSizes(n_layer=2, n_head=2, n_embd=64, vocab_size=256, block_size=32)


def step(**changes: object) -> StepSettings:
    fields = {"sizes": SMALL, "strategy": "fsdp2", "accumulation": "sharded", "world_size": 8}
    return StepSettings(**{**fields, "seq_len": 32, **changes})  # type: ignore[arg-type]


def test_modules_take_operations_bytes_and_a_launch() -> None:
    costs = Costs(matmul_s=2, attention_s=3, moved_s=5, launch_s=7, collective_s=11)
    assert costs.compute_s(Compute("forward", "matmul", 10, 100)) == 20 + 500 + 7
    assert costs.compute_s(Compute("forward", "attention", 10, 100)) == 30 + 500 + 7
    assert costs.taken_s(Collective("all_reduce", 4, 2, "world", blocks=False)) == 88
    assert costs.taken_s(Collective("all_gather", 4, 2, "world", blocks=False)) == 44


def test_amounts_are_those_of_the_formulas() -> None:
    amounts = amounts_of(write_step(step(micro_batch_size=3, grad_accum_steps=5)))
    rows, d = 3 * 32, 64
    assert amounts.matmul_flops == 5 * 6 * rows * (2 * 12 * d**2 + 256 * d)
    assert amounts.attention_flops == 5 * 2 * 12 * rows * d * 32


def test_parts_add_up_to_the_step() -> None:
    settings = step(grad_accum_steps=3)
    speed = find_speed("B200")
    network = RingNetwork(settings, 8, speed.link_bytes_per_s, None)
    times = predict_range(write_step(settings), speed, widest_use(), network)
    assert sum(times.by_part.values()) == pytest.approx(times.middle.step_s)
    assert times.fastest.step_s < times.middle.step_s < times.slowest.step_s


def test_repeated_micro_steps_take_what_they_take_one_by_one() -> None:
    costs = Costs(1e-14, 1e-14, 1e-12, 1e-6, 1e-11)

    def seconds(steps: int) -> float:
        settings = step(grad_accum_steps=steps)
        network = RingNetwork(settings, 8, 1e9, None)
        program = write_step(settings)
        middle = program.sections[2]
        program.sections[2:3] = [type(middle)(middle.name, 1, middle.events)] * middle.times
        one_by_one = predict(program, costs, network).step_s
        assert predict(write_step(settings), costs, network).step_s == pytest.approx(one_by_one)
        return one_by_one

    assert seconds(40) > seconds(20)


@pytest.mark.long
def test_the_table_and_the_shares_come_out_of_the_rows() -> None:
    examples = plan_errors.read_examples()
    for path, rows in (
        ("benchmarks/results/plan_errors.csv", plan_errors.error_rows(examples)),
        ("toolkit/prediction/use.csv", plan_errors.use_rows(examples)),
    ):
        with (ROOT / path).open() as file:
            assert [tuple(row) for row in csv.reader(file)] == rows


@pytest.mark.long
def test_a_broken_model_changes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Costs.compute_s

    def halved(costs: Costs, event: Compute) -> float:
        return real(costs, event) / (2 if event.kind == "attention" else 1)

    monkeypatch.setattr(Costs, "compute_s", halved)
    with (ROOT / "benchmarks/results/plan_errors.csv").open() as file:
        committed = [tuple(row) for row in csv.reader(file)]
    assert plan_errors.error_rows(plan_errors.read_examples()) != committed
