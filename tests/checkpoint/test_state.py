from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from toolkit.backends.engine import Engine
from toolkit.backends.launched import read_launch
from toolkit.backends.process_group import start_process_group
from toolkit.checkpoint.state import MOMENTS, read_state, write_state
from toolkit.errors import UntrustedError
from toolkit.training.step import train_step
from toolkit.verify import arm
from toolkit.verify.cases import TINY, Case

SINGLE = read_launch({})
CASE = Case(accumulation="replicated", grad_accum_steps=4, optimizer="adamw")
STEPS = 3


def build(case: Case = CASE) -> Engine:
    start_process_group(SINGLE, timeout=timedelta(seconds=60))
    return arm.build_case(case, TINY, SINGLE)


def update(engine: Engine, step: int) -> None:
    train_step(engine, arm.own_micro_batches(CASE, TINY, engine, step), lr=1e-3)


def whole_state(engine: Engine) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in engine.named_parameters():
        found[name] = engine.full_parameter(parameter).clone()
        for moment in MOMENTS:
            found[f"{name} {moment}"] = engine.full_moment(parameter, moment).clone()
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


@pytest.fixture(scope="module")
def folder(trained: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_state(trained, folder, with_moments=True)
    return folder


def test_a_state_comes_back_bit_for_bit_and_so_does_what_follows(
    trained: Engine, folder: Path
) -> None:
    other = build(replace(CASE, seed=2))
    read_state(other, folder, with_moments=True, steps=STEPS)
    assert_same_bits(whole_state(other), whole_state(trained))
    assert {float(state["step"]) for state in other.optimizer.state.values()} == {float(STEPS)}
    update(trained, STEPS)
    update(other, STEPS)
    assert_same_bits(whole_state(other), whole_state(trained))


def test_files_hold_whole_fp32_tensors_under_the_models_names(
    trained: Engine, folder: Path
) -> None:
    shapes = {name: parameter.shape for name, parameter in trained.named_parameters()}
    for name in ("parameters", *MOMENTS):
        tensors = load_file(folder / f"{name}.safetensors")
        assert {key: value.shape for key, value in tensors.items()} == shapes
        assert {value.dtype for value in tensors.values()} == {torch.float32}


def test_no_moments_are_written_without_adamw(tmp_path: Path) -> None:
    engine = build(replace(CASE, optimizer="sgd"))
    write_state(engine, tmp_path, with_moments=False)
    assert [path.name for path in tmp_path.iterdir()] == ["parameters.safetensors"]
    before = {name: p.detach().clone() for name, p in engine.named_parameters()}
    other = build(replace(CASE, optimizer="sgd", seed=2))
    read_state(other, tmp_path, with_moments=False, steps=1)
    assert_same_bits(dict(other.named_parameters()), before)


def _reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.zeros(1, TINY.n_embd)


def _rename(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.gain"] = tensors.pop("transformer.ln_f.weight")


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.wte.weight"]


def _add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.bias"] = torch.zeros(1)


@pytest.mark.parametrize("file", ["parameters.safetensors", "exp_avg_sq.safetensors"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_reshape, "'transformer.ln_f.weight' is [1, 32] but the model has [32]"),
        (_rename, "differ in the parameter 'transformer.ln_f.gain'"),
        (_drop, "differ in the parameter 'transformer.wte.weight'"),
        (_add, "differ in the parameter 'lm_head.bias'"),
    ],
)
def test_another_models_state_is_refused_by_file_and_name(
    folder: Path,
    tmp_path: Path,
    trained: Engine,
    file: str,
    change: Callable[[dict[str, torch.Tensor]], None],
    words: str,
) -> None:
    for path in folder.iterdir():
        tensors = load_file(path)
        if path.name == file:
            change(tensors)
        save_file(tensors, tmp_path / path.name)
    with pytest.raises(UntrustedError) as caught:
        read_state(trained, tmp_path, with_moments=True, steps=STEPS)
    assert str(tmp_path / file) in str(caught.value)
    assert words in str(caught.value)
