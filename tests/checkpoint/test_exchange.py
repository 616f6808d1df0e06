"""Weights go to transformers and come back with the same logits and the same bits."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from toolkit.checkpoint.command import (
    export_checkpoint,
    import_weights,
    list_checkpoints,
    verify_checkpoints,
)
from toolkit.checkpoint.exchange import read_weights
from toolkit.errors import SaveError, UntrustedError, UsageError
from toolkit.model import sizes as model_sizes
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes

# No two of in, out, 3 x and 4 x are the same, so that a wrong transposition cannot fit.
SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=16, vocab_size=512, block_size=32)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=500, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def run(run_file: Path, theirs: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that starts from their weights, with a vocabulary padded from 500 to 512."""
    monkeypatch.setattr("toolkit.checkpoint.exchange.GPT2_VOCAB_SIZE", 500)
    checkpoint = import_weights(theirs[1], run_file, ["model.n_layer=2"], trust=False)
    return checkpoint.parents[1]


def test_import_gives_the_same_logits(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    ours = GPT2(SIZES).eval()
    found = ours.load_state_dict(read_weights(folder, SIZES, trust=False), strict=False)
    assert found.missing_keys == ["lm_head.weight"]
    tokens = torch.arange(2 * 32).view(2, 32) * 7 % 500
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[..., :500], model(tokens).logits)


def test_export_gives_their_file_back_and_their_model_loads_it(
    run: Path, theirs: tuple[Any, Path]
) -> None:
    from transformers import GPT2LMHeadModel

    model, folder = theirs
    path = export_checkpoint(run, None, step=None)
    assert path == run / "export" / "model.safetensors"
    expected, found = load_file(folder / "model.safetensors"), load_file(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    loaded, report = GPT2LMHeadModel.from_pretrained(path.parent, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = torch.arange(32).view(1, 32)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


def test_the_real_vocabulary_is_cut_to_gpt2s() -> None:
    assert (model_sizes.PADDED_VOCAB_SIZE, model_sizes.GPT2_VOCAB_SIZE) == (50_304, 50_257)


def test_padding_is_as_likely_as_the_average_token(theirs: tuple[Any, Path]) -> None:
    weights = read_weights(theirs[1], SIZES, trust=False)["transformer.wte.weight"]
    assert torch.equal(weights[500:], weights[:500].mean(dim=0).expand(12, -1))


def _other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.zeros(17)


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.h.1.mlp.c_fc.bias"]


def _add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.h.7.ln_1.bias"] = torch.zeros(16)


def _untie(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = torch.ones(500, 16)


def _repeat(tensors: dict[str, torch.Tensor]) -> None:
    tensors["ln_f.weight"] = torch.ones(16)


def _poison(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.bias"][3] = float("nan")


def _count(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.bias"] = torch.ones(16, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_untie, "'lm_head.weight' is not the token embedding"),
        (_repeat, "'transformer.ln_f.weight' is there twice"),
        (_poison, "'transformer.ln_f.bias' holds values that are not finite"),
        (_count, "'transformer.ln_f.bias' is torch.int8"),
        (_other_shape, "'transformer.ln_f.weight' is [17] but the configured model has [16]"),
        (_drop, "differ in 'transformer.h.1.mlp.c_fc.bias'"),
        (_add, "differ in 'transformer.h.7.ln_1.bias'"),
    ],
)
def test_another_models_weights_are_refused_by_name(
    theirs: tuple[Any, Path],
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    words: str,
) -> None:
    tensors = load_file(theirs[1] / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UsageError) as caught:
        read_weights(tmp_path, SIZES, trust=False)
    assert words in str(caught.value)


def test_heads_that_shapes_cannot_show_are_compared(theirs: tuple[Any, Path]) -> None:
    with pytest.raises(UsageError, match=r"config\.json: n_head is 2, but the model has 4"):
        read_weights(theirs[1], replace(SIZES, n_head=4), trust=False)


def test_weights_that_are_not_there_are_no_pickle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing: no such file or folder"):
        read_weights(tmp_path / "nothing", SIZES, trust=False)
    with pytest.raises(UsageError, match="weights in several files are not read"):
        read_weights(tmp_path, SIZES, trust=False)


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize(
    "name", ["x.metadata", "model.pt", "optim_states.pt", "random_states_0.pkl"]
)
@pytest.mark.parametrize("trust", [False, True])
def test_a_hostile_pickle_is_never_run(tmp_path: Path, name: str, trust: bool) -> None:
    marker = tmp_path / "marker"
    torch.save({"weight": Payload(marker)}, tmp_path / name)
    with pytest.raises(UntrustedError, match=r"trust-checkpoint|no file of tensors alone"):
        read_weights(tmp_path / name, SIZES, trust=trust)
    assert not marker.exists()
    torch.load(tmp_path / name, weights_only=False)
    assert marker.exists()


def test_a_trusted_pickle_of_tensors_is_read(theirs: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = theirs
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    found = read_weights(tmp_path / "pytorch_model.bin", SIZES, trust=True)
    expected = read_weights(folder, SIZES, trust=False)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_commands_say_what_there_is(run: Path) -> None:
    (line,) = list_checkpoints(run)
    assert line.startswith("step_00000000  0 tokens, written by import on 1, 1 part, ")
    assert verify_checkpoints(run)[1] == []
    part = run / "checkpoints" / "step_00000000" / "rank_00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    (problem,) = verify_checkpoints(run)[1]
    assert str(part) in problem
    (line,) = list_checkpoints(run)
    assert line == f"step_00000000  damaged: {problem}"
    for step in (None, 0):
        with pytest.raises(UntrustedError, match="is not what was written"):
            export_checkpoint(run, None, step=step)
    with pytest.raises(UsageError, match="no checkpoint of step 5; there are 0"):
        export_checkpoint(run, None, step=5)
    with pytest.raises(UsageError, match="is no run folder"):
        list(list_checkpoints(run / "nothing"))


def test_weights_are_not_imported_over_a_runs_own_checkpoints(
    run: Path, run_file: Path, theirs: tuple[Any, Path]
) -> None:
    with pytest.raises(UsageError, match="holds checkpoints; choose another run_name"):
        import_weights(theirs[1], run_file, ["model.n_layer=2"], trust=False)


def test_an_export_that_cannot_be_written_leaves_the_earlier_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = export_checkpoint(run, None, step=0)
    earlier = weights.read_bytes()

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(SaveError, match="No space left"):
            export_checkpoint(run, None, step=0)
    assert weights.read_bytes() == earlier
    assert {path.name for path in weights.parent.iterdir()} == {"config.json", "model.safetensors"}
    (run / "file").touch()
    with pytest.raises(SaveError, match="file: cannot be exported to"):
        export_checkpoint(run, run / "file", step=0)


def test_nothing_is_exported_into_a_checkpoint(run: Path) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    for folder in (checkpoint, run / "checkpoints"):
        with pytest.raises(UsageError, match="where nothing but checkpoints may be"):
            export_checkpoint(run, folder, step=0)
    assert verify_checkpoints(run)[1] == []


def test_an_import_that_cannot_be_written_leaves_nothing(
    run_file: Path, theirs: tuple[Any, Path]
) -> None:
    folder = run_file.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "checkpoints").touch()
    with pytest.raises(SaveError, match="checkpoints: cannot be written: File exists"):
        import_weights(theirs[1], run_file, ["model.n_layer=2"], trust=False)


def test_the_exported_configuration_is_theirs(run: Path) -> None:
    path = export_checkpoint(run, run / "elsewhere", step=0)
    config = json.loads((path.parent / "config.json").read_text())
    assert (config["vocab_size"], config["n_positions"]) == (500, 32)
