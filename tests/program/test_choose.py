"""`accumulation: auto`: what it chooses fits, and no mode that fits is faster."""

from dataclasses import replace

import pytest

from toolkit.engines.mixture import ROOT, Mixture
from toolkit.engines.strategies import Strategy, possible_accumulations
from toolkit.model.sizes import preset_sizes
from toolkit.prediction.devices import find_speed, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict
from toolkit.program.budget import choose, in_order_of_saving
from toolkit.program.readers.traffic import sent_bytes
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak, write_step

SIZES = replace(preset_sizes("gpt2"), n_layer=4)
SETTINGS = StepSettings(
    sizes=SIZES,
    strategy="fsdp2",
    accumulation="sharded",
    world_size=8,
    grad_accum_steps=4,
)


def peak(settings: StepSettings) -> int:
    return estimate_peak(settings).total


def sent(settings: StepSettings) -> int:
    return sent_bytes(write_step(settings))


def seconds(settings: StepSettings) -> float:
    """On links so slow that what no computation is beside counts most."""
    speed = find_speed("A100-80")
    network = RingNetwork(settings, 8, speed.link_bytes_per_s / 8, None)
    costs = speed.costs((speed.use or widest_use()).middle)
    return predict(write_step(settings), costs, network).step_s


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "fsdp2_no_reshard", "hsdp", "zero2"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_is_chosen_fits_and_no_mode_that_fits_sends_less(
    strategy: Strategy, share: float
) -> None:
    replicas = 2 if strategy == "hsdp" else 1
    base = replace(SETTINGS, strategy=strategy, accumulation="replicated", replicas=replicas)
    modes = [replace(base, accumulation=mode) for mode in possible_accumulations(strategy)]
    least, most = min(map(peak, modes)), max(map(peak, modes))
    limit = round(least + share * (most - least))
    chosen = replace(base, accumulation=choose(base, lambda size: size <= limit))
    assert peak(chosen) <= limit
    assert sent(chosen) <= min(sent(mode) for mode in modes if peak(mode) <= limit)


def test_more_memory_never_sends_more_and_all_of_it_sends_least() -> None:
    def sent_within(limit: int) -> int:
        return sent(replace(SETTINGS, accumulation=choose(SETTINGS, lambda size: size <= limit)))

    least = peak(SETTINGS)
    found = [sent_within(limit) for limit in range(least, least + 500 * 2**20, 100 * 2**20)]
    assert found == sorted(found, reverse=True)
    units = (ROOT, *range(4))
    assert choose(SETTINGS, lambda size: True) == Mixture(hold=units, keep=units)


def test_where_nothing_fits_it_is_what_holds_least() -> None:
    assert choose(SETTINGS, lambda size: False) == "sharded"
    ddp = replace(SETTINGS, strategy="ddp")
    assert peak(replace(ddp, accumulation=choose(ddp, lambda size: False))) <= peak(ddp)


def test_with_a_clock_reductions_of_root_and_block_0_are_held_before_those_that_hide() -> None:
    settings = replace(SETTINGS, micro_batch_size=8)
    held = [p.unit for p in in_order_of_saving(settings, seconds) if p.key == "hold"]
    assert set(held[:2]) == {ROOT, 0}
    fits = peak(settings) + 150 * 2**20
    chosen = replace(settings, accumulation=choose(settings, lambda size: size <= fits, seconds))
    assert peak(chosen) <= fits
    assert seconds(chosen) < seconds(settings)


def test_hybrid_sharding_defers_what_it_does_not_hold() -> None:
    settings = replace(SETTINGS, strategy="hsdp", replicas=2, accumulation="deferred")
    limit = peak(settings)
    chosen = choose(settings, lambda size: size <= limit)
    assert isinstance(chosen, Mixture)
    assert {*chosen.hold, *chosen.defer} == {ROOT, *range(4)}
