"""What a budget buys: costs and savings are those of the step's program, and it is kept to."""

from dataclasses import replace

import pytest

from toolkit.engines.mixture import ROOT, Mixture
from toolkit.model.sizes import preset_sizes
from toolkit.program.budget import cost_and_saving, purchases, spend
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

SETTINGS = StepSettings(
    sizes=preset_sizes("gpt2"),
    strategy="fsdp2",
    accumulation="sharded",
    world_size=8,
    grad_accum_steps=4,
)
MIB = 2**20


def sent(settings: StepSettings) -> int:
    return sum(each.bytes for each in read_traffic(write_step(settings), settings).values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("reduce", ["fp32", "bf16", "bf16-fp32sum", "fp32-exchange", None])
@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp2_no_reshard"])
def test_each_purchase_costs_and_saves_what_the_program_says(
    precision: str, reduce: str | None, strategy: str
) -> None:
    settings = replace(SETTINGS, precision=precision, reduce=reduce, strategy=strategy)  # type: ignore[arg-type]
    sharded = read_held(write_step(settings)) or 0
    for purchase in list(purchases(settings))[:4]:
        mixture = Mixture(**{purchase.key: (purchase.unit,)})
        bought = replace(settings, accumulation=mixture)
        assert sent(settings) - sent(bought) == purchase.saves
        assert cost_and_saving(settings, mixture) == (purchase.costs, purchase.saves)
        if purchase.key == "hold":
            assert (read_held(write_step(bought)) or 0) - sharded == purchase.costs


def test_parameters_of_blocks_come_first_and_then_the_root() -> None:
    assert spend(SETTINGS, 0) == Mixture()
    assert spend(SETTINGS, 14 * MIB) == Mixture(keep=(0,))
    some = spend(SETTINGS, 500 * MIB)
    assert set(range(12)) < set(some.keep)
    everything = spend(SETTINGS, 2**40)
    assert everything == Mixture(hold=(ROOT, *range(12)), keep=(ROOT, *range(12)))


@pytest.mark.parametrize("size", [10, 50, 100, 200, 300, 400, 700])
def test_a_budget_is_kept_to_and_more_of_it_never_sends_more(size: int) -> None:
    less, more = (spend(SETTINGS, each * MIB) for each in (size, size + 50))
    assert cost_and_saving(SETTINGS, less)[0] <= size * MIB
    assert cost_and_saving(SETTINGS, more)[1] >= cost_and_saving(SETTINGS, less)[1]
