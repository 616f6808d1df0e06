"""Mixtures: held bytes, calls and payloads by the formulas, and the modes as their ends."""

from itertools import combinations

import pytest

from toolkit.engines.mixture import ROOT, Mixture, Unit
from toolkit.engines.strategies import Accumulation, Strategy
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import read_reductions, read_traffic
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak, write_step

# Nothing in it divides by the ranks, so slices are padded.
SIZES = ModelSizes(n_layer=3, n_head=2, n_embd=62, vocab_size=1373, block_size=33)
UNITS: tuple[Unit, ...] = (ROOT, 0, 1, 2)
MASKS = [held for size in range(5) for held in combinations(UNITS, size)]
RANKS = 4
A = 5


def settings(
    accumulation: Accumulation | Mixture, strategy: Strategy = "fsdp2", **changes: object
) -> StepSettings:
    values = {"world_size": RANKS, "seq_len": 32, "grad_accum_steps": A, "precision": "fp32"}
    return StepSettings(
        sizes=SIZES,
        strategy=strategy,
        accumulation=accumulation,
        **{**values, **changes},  # type: ignore[arg-type]
    )


def elements(unit: Unit, *, ranks: int = 1) -> int:
    """Of a unit, each tensor padded to rows that divide by the ranks."""
    d, inner = SIZES.n_embd, 4 * SIZES.n_embd
    shapes = [(SIZES.vocab_size, d), (SIZES.block_size, d), (d, 1), (d, 1)]
    if unit != ROOT:
        matrices = [(3 * d, d), (d, d), (inner, d), (d, inner)]
        shapes = [*matrices, *((rows, 1) for rows, _ in matrices), *[(d, 1)] * 4]
    return sum(-(-rows // ranks) * ranks * columns for rows, columns in shapes)


@pytest.mark.parametrize("held", MASKS)
def test_held_bytes_calls_and_payloads_are_those_of_the_formulas(held: tuple[Unit, ...]) -> None:
    asked = settings(Mixture(hold=held))
    program = write_step(asked)
    padded = {unit: elements(unit, ranks=RANKS) for unit in UNITS}
    others = sum(padded[unit] for unit in UNITS if unit not in held)
    whole = sum(elements(unit) for unit in held)
    traffic = read_traffic(program, asked)["reduce_scatter"]
    assert read_held(program) == 4 * whole + 4 * others // RANKS
    assert traffic.calls == A * len(UNITS) - (A - 1) * len(held)
    assert traffic.bytes == 4 * (sum(padded.values()) + (A - 1) * others)
    assert read_reductions(program).earlier_bytes == 4 * (A - 1) * others


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("mode", "mixture"),
    [
        ("replicated", Mixture(hold=UNITS)),
        ("sharded", Mixture()),
        ("deferred", Mixture(defer=UNITS)),
    ],
)
def test_the_modes_are_the_ends(mode: Accumulation, mixture: Mixture, precision: str) -> None:
    common = {"strategy": "hsdp", "replicas": 2, "precision": precision}
    end, mixed = (settings(one, **common) for one in (mode, mixture))  # type: ignore[arg-type]
    assert read_traffic(write_step(mixed), mixed) == read_traffic(write_step(end), end)
    assert estimate_peak(mixed) == estimate_peak(end)


def test_kept_parameters_are_gathered_once_per_window() -> None:
    def gathers(accumulation: Accumulation | Mixture) -> tuple[int, int]:
        asked = settings(accumulation)
        found = read_traffic(write_step(asked), asked)["all_gather"]
        return found.calls, found.bytes

    root, block = (4 * elements(unit, ranks=RANKS) for unit in (ROOT, 0))
    calls, payload = gathers("sharded")
    assert (calls, payload) == (A * 7, A * (root + 6 * block))
    assert gathers(Mixture(hold=(ROOT, 1))) == (calls, payload)
    assert gathers(Mixture(keep=(ROOT,))) == (calls - (A - 1), payload - (A - 1) * root)
    assert gathers(Mixture(keep=(1,))) == (calls - (2 * A - 1), payload - (2 * A - 1) * block)


def test_what_a_strategy_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'ddp': only FSDP2 decides unit by unit"):
        settings(Mixture(hold=(ROOT,)), "ddp")
    with pytest.raises(UsageError, match="defer is impossible with strategy 'fsdp2'"):
        settings(Mixture(defer=(0,)))
    with pytest.raises(UsageError, match="names block 3, but the model's last is 2"):
        settings(Mixture(keep=(3,)))
