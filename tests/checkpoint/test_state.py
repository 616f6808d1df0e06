import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from toolkit.checkpoint.state import PortableState, own_pieces, read_state
from toolkit.checkpoint.tensors import write_tensors
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.engines.state import Kind
from toolkit.errors import UntrustedError
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

SINGLE = read_launch({})
CASE = Case(accumulation="replicated", grad_accum_steps=4, optimizer="adamw")
STEPS = 3
KINDS: tuple[Kind, ...] = ("parameter", "exp_avg", "exp_avg_sq")
PART = "rank_00000.safetensors"


def build(case: Case = CASE) -> Engine:
    start_process_group(SINGLE, timeout=timedelta(seconds=60))
    return worker.build_case(case, TINY, SINGLE)


def update(engine: Engine, step: int) -> None:
    train_step(engine, worker.own_micro_batches(CASE, TINY, engine, step), lr=1e-3)


def whole_state(engine: Engine) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in engine.module.named_parameters():
        for kind in KINDS:
            found[f"{kind} {name}"] = engine.state.held_values(parameter, kind).clone()
    return found


def assert_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.fixture(scope="module")
def trained() -> Engine:
    engine = build()
    for step in range(STEPS):
        update(engine, step)
    return engine


def write_state(engine: Engine, folder: Path, *, with_moments: bool) -> None:
    write_tensors(folder / PART, own_pieces(engine, with_moments=with_moments))


@pytest.fixture(scope="module")
def folder(trained: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_state(trained, folder, with_moments=True)
    return folder


def test_a_state_comes_back_bit_for_bit_and_so_does_what_follows(
    trained: Engine, folder: Path
) -> None:
    other = build(replace(CASE, seed=2))
    read_state(other, folder, with_moments=True, updates=STEPS)
    assert_same_bits(whole_state(other), whole_state(trained))
    assert {float(state["step"]) for state in other.optimizer.state.values()} == {float(STEPS)}
    update(trained, STEPS)
    update(other, STEPS)
    assert_same_bits(whole_state(other), whole_state(trained))


def cut(folder: Path, into: Path, sizes: list[int]) -> None:
    """Deal the pieces of a state out to files, each tensor cut at other places."""
    whole = load_file(folder / PART)
    parts: list[dict[str, torch.Tensor]] = [{} for _ in sizes]
    for key, values in whole.items():
        name, start = key.rsplit("/", 1)
        assert start == "0"
        end = 0
        for part, size in zip(parts, sizes, strict=True):
            first, end = end, min(end + max(1, len(values) * size // sum(sizes)), len(values))
            if part is parts[-1]:
                end = len(values)
            if first < end:
                part[f"{name}/{first}"] = values[first:end].clone()
    for rank, part in enumerate(reversed(parts)):
        save_file(part, into / f"rank_{rank:05d}.safetensors")


@pytest.mark.parametrize("sizes", [[1], [1, 1], [3, 1, 7], [1, 50, 1, 1, 1]])
def test_it_does_not_matter_how_the_state_was_cut(
    folder: Path, tmp_path: Path, sizes: list[int]
) -> None:
    cut(folder, tmp_path, sizes)
    whole, other = (build(replace(CASE, seed=seed)) for seed in (2, 3))
    read_state(whole, folder, with_moments=True, updates=STEPS)
    read_state(other, tmp_path, with_moments=True, updates=STEPS)
    assert_same_bits(whole_state(other), whole_state(whole))
    with ExitStack() as files:
        state = PortableState(tmp_path, files)
        for name, parameter in other.module.named_parameters():
            assert torch.equal(state.whole("parameter", name, parameter.shape), parameter)


def test_each_rank_reads_only_what_it_holds(folder: Path, tmp_path: Path) -> None:
    cut(folder, tmp_path, [1, 1, 1, 1])
    name = "transformer.wte.weight"
    expected = load_file(folder / PART)[f"exp_avg/{name}/0"]
    with ExitStack() as files:
        state = PortableState(tmp_path, files)
        held = range(100, 9_000)
        found = list(state.read("exp_avg", name, held))
    assert torch.equal(torch.cat([values for _, values in found]), expected[100:9_000])
    assert [start for start, _ in found] == [100, 4096, 8192]


def test_no_moments_are_written_without_adamw(tmp_path: Path) -> None:
    engine = build(replace(CASE, optimizer="sgd"))
    write_state(engine, tmp_path, with_moments=False)
    assert {key.split("/")[0] for key in load_file(tmp_path / PART)} == {"parameter"}
    before = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    other = build(replace(CASE, optimizer="sgd", seed=2))
    read_state(other, tmp_path, with_moments=False, updates=1)
    assert_same_bits(dict(other.module.named_parameters()), before)


def _shorten(tensors: dict[str, torch.Tensor], kind: str) -> None:
    key = f"{kind}/transformer.ln_f.weight/0"
    tensors[key] = tensors[key][:-1].clone()


def _move(tensors: dict[str, torch.Tensor], kind: str) -> None:
    tensors[f"{kind}/transformer.ln_f.weight/1"] = tensors.pop(f"{kind}/transformer.ln_f.weight/0")


def _double(tensors: dict[str, torch.Tensor], kind: str) -> None:
    key = f"{kind}/transformer.ln_f.weight"
    tensors[f"{key}/16"] = tensors[f"{key}/0"].clone()


def _rename(tensors: dict[str, torch.Tensor], kind: str) -> None:
    tensors[f"{kind}/transformer.ln_f.gain/0"] = tensors.pop(f"{kind}/transformer.ln_f.weight/0")


def _drop(tensors: dict[str, torch.Tensor], kind: str) -> None:
    del tensors[f"{kind}/transformer.wte.weight/0"]


def _add(tensors: dict[str, torch.Tensor], kind: str) -> None:
    tensors[f"{kind}/lm_head.bias/0"] = torch.zeros(1)


@pytest.mark.parametrize("kind", ["parameter", "exp_avg_sq"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_shorten, "'transformer.ln_f.weight' are not its 32 elements"),
        (_move, "'transformer.ln_f.weight' are not its 32 elements"),
        (_double, "'transformer.ln_f.weight' are not its 32 elements"),
        (_rename, "differ in {kind} of 'transformer.ln_f.gain'"),
        (_drop, "differ in {kind} of 'transformer.wte.weight'"),
        (_add, "differ in {kind} of 'lm_head.bias'"),
    ],
)
def test_another_models_state_is_refused_by_name_and_nothing_is_loaded(
    folder: Path,
    tmp_path: Path,
    trained: Engine,
    kind: str,
    change: Callable[[dict[str, torch.Tensor], str], None],
    words: str,
) -> None:
    tensors = load_file(folder / PART)
    change(tensors, kind)
    save_file(tensors, tmp_path / PART)
    before = whole_state(trained)
    with pytest.raises(UntrustedError) as caught:
        read_state(trained, tmp_path, with_moments=True, updates=STEPS)
    assert str(tmp_path) in str(caught.value)
    assert words.format(kind=kind) in str(caught.value)
    assert_same_bits(whole_state(trained), before)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"whatever": torch.zeros(1)}, "does not hold pieces"),
        ({"parameter/a/0": torch.zeros(1, dtype=torch.int8)}, "is I8, not F32"),
        ({"parameter/a/0": torch.zeros(2, 2)}, "does not hold pieces"),
        ({"parameter/a/first": torch.zeros(2)}, "does not hold pieces"),
    ],
)
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, trained: Engine, tensors: dict[str, torch.Tensor], words: str
) -> None:
    save_file(tensors, tmp_path / PART)
    with pytest.raises(UntrustedError, match=words):
        read_state(trained, tmp_path, with_moments=True, updates=STEPS)


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_a_pickle_under_the_name_of_a_part_is_not_run(tmp_path: Path, trained: Engine) -> None:
    """As where the manifest was rewritten to match it."""
    marker, hostile = tmp_path / "marker", tmp_path / "hostile.pt"
    torch.save({"parameter/a/0": Payload(marker)}, hostile)
    shutil.copy(hostile, tmp_path / PART)
    with pytest.raises(UntrustedError, match="does not hold pieces"):
        read_state(trained, tmp_path, with_moments=True, updates=STEPS)
    assert not marker.exists()
    torch.load(hostile, weights_only=False)
    assert marker.exists()


def test_a_header_that_lies_about_its_length_is_refused(tmp_path: Path, trained: Engine) -> None:
    (tmp_path / PART).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(UntrustedError, match="does not hold pieces"):
        read_state(trained, tmp_path, with_moments=True, updates=STEPS)
