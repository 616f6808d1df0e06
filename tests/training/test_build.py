from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from toolkit.config import load_run_config
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.launched import read_launch
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2, Block
from toolkit.training import build
from toolkit.training.build import build_model, build_run


def same(first: GPT2, second: GPT2) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_the_initial_weights_follow_from_the_seed_alone(run_file: Path) -> None:
    first = build_model(load_run_config(run_file, ["seed=3"]))
    torch.rand(7)
    again = build_model(load_run_config(run_file, ["seed=3", "model.dropout=0.1"]))
    other = build_model(load_run_config(run_file, ["seed=4"]))
    assert same(first, again)
    assert not same(first, other)


def test_the_models_settings_reach_the_model(run_file: Path) -> None:
    settings = [
        "model.dropout=0.25",
        "model.activation_checkpointing=true",
        "model.loss=chunked",
    ]
    model = build_model(load_run_config(run_file, settings))
    assert model.transformer.drop.p == model.transformer.h[0].attn.dropout == 0.25
    assert model.transformer.activation_checkpointing
    assert model.lm_head.loss == "chunked"
    plain = build_model(load_run_config(run_file))
    assert plain.transformer.drop.p == 0
    assert not plain.transformer.activation_checkpointing
    assert plain.lm_head.loss == "plain"


@pytest.mark.parametrize(("override", "compiled"), [("true", True), ("false", False)])
def test_blocks_are_compiled_where_that_is_asked(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, override: str, compiled: bool
) -> None:
    seen: list[Block] = []
    monkeypatch.setattr(Block, "compile", lambda block: seen.append(block))
    monkeypatch.setattr(build, "check_compiler", lambda: None)
    forget_engine()
    config = load_run_config(run_file, [f"model.compile={override}"])
    run = build_run(config, read_launch({}), run_file.parent)
    assert seen == (list(run.engine.module.transformer.h) if compiled else [])


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A search path on which there is no program at all, and no compiler named elsewhere."""
    from torch._inductor import config, cpp_builder

    monkeypatch.setenv("PATH", str(tmp_path))
    cpp_builder.cpp_compiler_search.cache_clear()
    with config.patch({"cpp.cxx": (None, "g++")}):
        yield
    cpp_builder.cpp_compiler_search.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_a_missing_compiler_is_said_before_anything_is_built(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPT2, "__init__", None)
    config = load_run_config(run_file, ["model.compile=true"])
    with pytest.raises(UsageError, match=r"C\+\+ compiler .* or set model\.compile: false"):
        build_run(config, read_launch({}), run_file.parent)


@pytest.mark.usefixtures("no_compiler", "fresh_accelerate")
def test_a_run_that_compiles_nothing_starts_and_says_what_decays(run_file: Path) -> None:
    run = build_run(load_run_config(run_file), read_launch({}), run_file.parent)
    assert run.facts[:2] == [
        f"{(512 + 32) * 16 + 12 * 16**2:,} parameters decay by 0.1",
        f"{13 * 16 + 2 * 16} parameters decay by 0",
    ]
