"""Weights of transformers become a run's start, and those of any other model are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.conftest import PADDED
from toolkit.checkpoint.import_weights import read_weights
from toolkit.checkpoint.listing import list_checkpoints, verify_checkpoints
from toolkit.errors import SaveError, UntrustedError, UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.training.exchange import export_checkpoint, import_weights

# No two of in, out, 3 x and 4 x are the same, so that a wrong transposition cannot fit.
SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=16, vocab_size=50_304, block_size=32)


def test_import_gives_the_same_logits(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    ours = GPT2(SIZES).eval()
    found = ours.load_state_dict(read_weights(folder, SIZES, trust=False), strict=False)
    assert found.missing_keys == ["lm_head.weight"]
    tokens = torch.arange(2 * 32).view(2, 32) * 7 * 761 % 50_257
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[..., :50_257], model(tokens).logits)


def test_padding_is_as_likely_as_the_average_token(theirs: tuple[Any, Path]) -> None:
    weights = read_weights(theirs[1], SIZES, trust=False)["transformer.wte.weight"]
    assert torch.equal(weights[50_257:], weights[:50_257].mean(dim=0).expand(47, -1))


def _other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.zeros(17)


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.h.1.mlp.c_fc.bias"]


def _add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.h.7.ln_1.bias"] = torch.zeros(16)


def _untie(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = torch.ones(50_257, 16)


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


def beside_config(theirs: tuple[Any, Path], folder: Path, **changes: Any) -> Path:
    """Their weights with another `config.json`, or with none."""
    (folder / "model.safetensors").symlink_to(theirs[1] / "model.safetensors")
    if changes:
        config = json.loads((theirs[1] / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("key", "value"), [("n_layer", 3), ("n_layer", 1), ("n_embd", 32), ("n_head", 4)]
)
def test_another_size_is_named_with_both_values(
    theirs: tuple[Any, Path], tmp_path: Path, key: str, value: int
) -> None:
    sizes = replace(SIZES, **{key: value})
    words = f"{key} is {getattr(SIZES, key)}, but the run's model.{key} is {value}"
    with pytest.raises(UsageError) as caught:
        read_weights(theirs[1], sizes, trust=False)
    assert str(caught.value) == f"{theirs[1] / 'config.json'}: {words}"
    if key != "n_head":
        folder = beside_config(theirs, tmp_path)
        with pytest.raises(UsageError) as caught:
            read_weights(folder, sizes, trust=False)
        assert str(caught.value) == f"{folder / 'model.safetensors'}: {words}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
        ("model_type", "gptj"),
    ],
)
def test_a_model_that_computes_otherwise_is_refused(
    theirs: tuple[Any, Path], tmp_path: Path, key: str, value: Any
) -> None:
    folder = beside_config(theirs, tmp_path, **{key: value})
    with pytest.raises(UsageError, match=rf"config\.json: {key} is {value}, but the model here"):
        read_weights(folder, SIZES, trust=False)


def test_a_damaged_description_is_not_skipped(theirs: tuple[Any, Path], tmp_path: Path) -> None:
    folder = beside_config(theirs, tmp_path, n_layer=2)
    for text in ("", "[]", "{", "[" * 10**5):
        (folder / "config.json").write_text(text)
        with pytest.raises(UntrustedError, match=r"config\.json: "):
            read_weights(folder, SIZES, trust=False)


def test_more_positions_are_cropped_when_that_is_asked_for(theirs: tuple[Any, Path]) -> None:
    folder, short = theirs[1], replace(SIZES, block_size=24)
    with pytest.raises(UsageError, match=r"has 32 positions, .*block_size is 24; --crop drops"):
        read_weights(folder, short, trust=False)
    whole = read_weights(folder, SIZES, trust=False)
    cropped = read_weights(folder, short, trust=False, crop=True)
    for name, value in whole.items():
        expected = value[:24] if name == "transformer.wpe.weight" else value
        assert torch.equal(cropped[name], expected)
    longer = replace(SIZES, block_size=40)
    for crop in (False, True):
        with pytest.raises(UsageError, match=r"block_size is 32, but the run's model\.block_size"):
            read_weights(folder, longer, trust=False, crop=crop)


def test_a_run_is_no_weights_but_its_export_is(imported: Path, run_file: Path) -> None:
    checkpoint = imported / "checkpoints" / "step_00000000"
    for path in (
        imported,
        imported / "checkpoints",
        checkpoint,
        checkpoint / "rank_00000.safetensors",
    ):
        with pytest.raises(UsageError) as caught:
            read_weights(path, SIZES, trust=False)
        assert f"{path} is of a run of this toolkit" in str(caught.value)
        assert f"`toolkit checkpoint export {imported}`" in str(caught.value)
    folder = export_checkpoint(imported, None, step=0).weights.parent
    found = read_weights(folder, SIZES, trust=False)
    expected = load_file(checkpoint / "rank_00000.safetensors")
    assert all(
        torch.equal(value.view(-1), expected[f"parameter/{name}/0"])
        for name, value in found.items()
    )


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


def test_the_commands_show_what_there_is(imported: Path) -> None:
    (line,) = list_checkpoints(imported)
    assert line.startswith("step_00000000  0 tokens, written by import on 1, 1 part, ")
    assert verify_checkpoints(imported)[1] == []
    part = imported / "checkpoints" / "step_00000000" / "rank_00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    (problem,) = verify_checkpoints(imported)[1]
    assert str(part) in problem
    (line,) = list_checkpoints(imported)
    assert line == f"step_00000000  damaged: {problem}"
    for step in (None, 0):
        with pytest.raises(UntrustedError, match="is not what was written"):
            export_checkpoint(imported, None, step=step)
    with pytest.raises(UsageError, match="no checkpoint of step 5; there are 0"):
        export_checkpoint(imported, None, step=5)
    with pytest.raises(UsageError, match="is no run folder"):
        list(list_checkpoints(imported / "nothing"))


def test_weights_are_not_imported_over_a_runs_own_checkpoints(
    imported: Path, run_file: Path, theirs: tuple[Any, Path]
) -> None:
    with pytest.raises(UsageError, match="holds checkpoints; choose another run_name"):
        import_weights(theirs[1], run_file, PADDED, trust=False)


def test_an_import_that_cannot_be_written_leaves_nothing(
    run_file: Path, theirs: tuple[Any, Path]
) -> None:
    folder = run_file.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "checkpoints").touch()
    with pytest.raises(SaveError, match="checkpoints: cannot be written: File exists"):
        import_weights(theirs[1], run_file, PADDED, trust=False)
