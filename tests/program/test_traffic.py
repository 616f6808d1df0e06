"""A step's collectives: against formulas written down apart, and against what was counted."""

from pathlib import Path

import pytest

from benchmarks.fitting import settings_of
from benchmarks.record import Record, read_records
from tests.program.communication import expected_collectives
from toolkit.engines.strategies import Accumulation, Precision, Strategy, supported_pairs
from toolkit.model.sizes import ModelSizes, preset_sizes
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import read_reductions, read_traffic
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
GPT2 = preset_sizes("gpt2")


def step(strategy: Strategy, accumulation: Accumulation, **changes: object) -> StepSettings:
    settings = {
        "sizes": GPT2,
        "strategy": strategy,
        "accumulation": accumulation,
        "world_size": 1 if strategy == "single" else 8,
        "replicas": 2 if strategy == "hsdp" else 1,
        "grad_accum_steps": 5,
    }
    return StepSettings(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("strategy", "accumulation"), supported_pairs())
def test_traffic_is_what_the_formulas_give(
    strategy: Strategy, accumulation: Accumulation, precision: Precision, device: str
) -> None:
    settings = step(strategy, accumulation, precision=precision, device=device)
    found = read_traffic(write_step(settings), settings)
    expected = expected_collectives(
        strategy,
        accumulation,
        sizes=GPT2,
        grad_accum_steps=5,
        precision=precision,
        world_size=settings.world_size,
        replicas=settings.replicas,
    )
    for kind, formula in expected.items():
        assert formula.bytes.admits(found[kind].bytes), kind
        assert formula.calls.admits(found[kind].calls), kind
        if found[kind].calls:
            assert found[kind].group_sizes == (formula.group_size,)


def counted() -> list[Record]:
    records = [*read_records(RESULTS / "cpu-quick"), *read_records(RESULTS / "cpu-links")]
    return [record for record in records if record.collectives is not None]


def test_traffic_and_held_gradients_are_what_was_counted_in_every_committed_record() -> None:
    records = counted()
    assert len(records) > 200
    for case in {record.case for record in records}:
        settings = settings_of(case, "cpu")
        program = write_step(settings)
        traffic = read_traffic(program, settings)
        for record in (record for record in records if record.case == case):
            assert record.collectives is not None
            for kind, seen in record.collectives.items():
                said = traffic[kind]  # type: ignore[index]
                assert (said.calls, said.bytes) == (seen.calls, seen.bytes), (case, kind)
            assert read_held(program) == record.gradient_bytes_held


def test_slices_that_do_not_divide_are_padded() -> None:
    sizes = ModelSizes(n_layer=2, n_head=2, n_embd=30, vocab_size=101, block_size=16)
    settings = step("fsdp2", "sharded", sizes=sizes, seq_len=16, precision="fp32")
    reduced = read_traffic(write_step(settings), settings)["reduce_scatter"].bytes
    assert 5 * 4 * sizes.parameter_count < reduced < 1.2 * 5 * 4 * sizes.parameter_count


def test_when_gradients_are_reduced() -> None:
    def reductions(strategy: Strategy, accumulation: Accumulation) -> tuple[set[str], set[str]]:
        found = read_reductions(write_step(step(strategy, accumulation)))
        return set(found.earlier), set(found.at_boundary)

    both = {"reduce_scatter", "all_reduce"}
    assert reductions("single", "replicated") == (set(), set())
    assert reductions("ddp", "replicated") == (set(), {"all_reduce"})
    assert reductions("zero1", "replicated") == (set(), {"all_reduce"})
    assert reductions("zero3", "sharded") == ({"reduce_scatter"}, {"reduce_scatter"})
    assert reductions("hsdp", "replicated") == (set(), both)
    half = {"all_to_all"}  # the default precision is bf16
    assert reductions("hsdp", "deferred") == (half, half | {"all_reduce"})
    assert reductions("hsdp", "sharded") == (half | {"all_reduce"}, half | {"all_reduce"})


@pytest.mark.parametrize(("strategy", "accumulation"), supported_pairs())
def test_all_micro_steps_between_the_first_and_the_last_count(
    strategy: Strategy, accumulation: Accumulation
) -> None:
    def moved(micro_steps: int) -> int:
        settings = step(strategy, accumulation, grad_accum_steps=micro_steps)
        return sum(each.bytes for each in read_traffic(write_step(settings), settings).values())

    assert moved(9) - moved(8) == moved(4) - moved(3) >= 0
