from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.axes import SWEEPS, Sweep, load_sweep
from toolkit.errors import UsageError

SMALL = """
cases:
  - strategies: [single, ddp, zero1, hsdp]
    grad_accum_steps: [1, 4]
    micro_batch_sizes: [1]
    world_sizes: [1, 2]
    models: ["2,2,32,512,32"]
"""


@pytest.mark.parametrize("name", sorted(path.stem for path in SWEEPS.glob("*.yaml")))
def test_ready_made_sweeps_have_cases(name: str) -> None:
    found, sweep = load_sweep(name)
    assert found == name
    assert len(sweep.all_cases()) > 10


def test_what_cannot_be_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL)
    cases = load_sweep(str(file))[1].all_cases()
    pairs = Counter((case.strategy, case.accumulation, case.world_size) for case in cases)
    assert pairs == {
        ("single", "replicated", 1): 2,
        ("ddp", "replicated", 1): 2,
        ("ddp", "sharded", 1): 2,
        ("zero1", "replicated", 1): 2,
        ("ddp", "replicated", 2): 2,
        ("ddp", "sharded", 2): 2,
        ("zero1", "replicated", 2): 2,
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grad_accum_steps", "grad_acum_steps", "did you mean 'cases.grad_accum_steps'"),
        ("zero1", "zero9", "must be 'single'"),
        ("2,2,32,512,32", "2,3,32,512,32", "n_embd 32 is no multiple of n_head 3"),
        ("[1, 2]", "[4]\n    data: [real]", "real data needs shards"),
        ("[single, ddp, zero1, hsdp]", "[single]\n    accumulations: [sharded]", "no strategy has"),
        ("[1, 2]", "[1, 2]\n    seq_lens: [64]", "64 is above the model's block_size 32"),
        ("[1, 2]", "[2]\n    links_mbit_per_s: [.nan]", "must be a finite number"),
        ("[1, 2]", "[2]\n    links_mbit_per_s: [99999999999]", "must be at most 100000"),
    ],
)
def test_a_slip_is_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL.replace(old, new))
    with pytest.raises(UsageError, match=said):
        load_sweep(str(file))[1].all_cases()


def test_an_unknown_sweep_is_told_those_there_are() -> None:
    there_are = "cpu-demo, cpu-engines, cpu-links, cpu-machines"
    with pytest.raises(UsageError, match=rf"no sweep 'quick'; there are {there_are}"):
        load_sweep("quick")


def test_cases_that_are_compared_come_one_after_another() -> None:
    cases = load_sweep("cpu-links")[1].all_cases()
    settings = [case.setting for case in cases]
    changes = sum(one != other for one, other in pairwise(settings))
    assert changes == len({str(setting) for setting in settings}) - 1


def test_a_case_is_there_once() -> None:
    axes = load_sweep("cpu-quick")[1].cases[0]
    assert len(Sweep(cases=(axes, axes)).all_cases()) == len(Sweep(cases=(axes,)).all_cases())


def test_a_sweep_without_cases_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("cases: []\n")
    with pytest.raises(UsageError, match="cases must be a list that is not empty"):
        load_sweep(str(file))
