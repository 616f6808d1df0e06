import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tests.model.largest import Largest
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.model.loss import CHUNK_ROWS, IGNORE_INDEX
from toolkit.model.sizes import PRESETS, ModelSizes, preset_sizes
from toolkit.training.build import check_compiler

# No two dimensions are equal, so that no transposed weight fits by chance.
SIZES = ModelSizes(n_layer=2, n_head=3, n_embd=24, vocab_size=77, block_size=16)


def build(sizes: ModelSizes = SIZES, *, seed: int = 1, **options: Any) -> GPT2:
    torch.manual_seed(seed)
    return GPT2(sizes, **options)


def batch(sizes: ModelSizes = SIZES, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, some of them ignored, each [rows, block_size]."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(sizes.vocab_size, (rows, sizes.block_size + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    targets[:, ::5] = IGNORE_INDEX
    return inputs, targets


def loss_and_gradients(model: GPT2, seed: int = 0) -> dict[str, torch.Tensor]:
    """By name: the loss, and the gradient of every parameter; `seed` draws the dropout."""
    torch.manual_seed(seed)
    loss = model(*batch())
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == dict(model.named_parameters()).keys()
    return {"loss": loss.detach(), **gradients}


def assert_equal(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, rtol: float
) -> None:
    assert found.keys() == expected.keys()
    scale = max(value.norm() for name, value in expected.items() if name != "loss")
    for name, value in expected.items():
        limit = value.norm() if name == "loss" else scale
        assert (found[name] - value).norm() <= rtol * limit, name


def test_gpt2_has_124_439_808_parameters() -> None:
    with torch.device("meta"):
        model = GPT2(preset_sizes("gpt2", vocab_size=50_257))
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@pytest.mark.parametrize(
    "sizes",
    [
        SIZES,
        ModelSizes(n_layer=1, n_head=1, n_embd=1, vocab_size=2, block_size=1),
        *(preset_sizes(preset) for preset in PRESETS),
    ],
)
def test_the_formula_counts_what_is_built(sizes: ModelSizes) -> None:
    with torch.device("meta"):
        model = GPT2(sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == sizes.parameter_count


def test_names_and_shapes_are_those_of_the_released_checkpoint() -> None:
    block = {
        "ln_1.weight": (24,),
        "ln_1.bias": (24,),
        "attn.c_attn.weight": (72, 24),
        "attn.c_attn.bias": (72,),
        "attn.c_proj.weight": (24, 24),
        "attn.c_proj.bias": (24,),
        "ln_2.weight": (24,),
        "ln_2.bias": (24,),
        "mlp.c_fc.weight": (96, 24),
        "mlp.c_fc.bias": (96,),
        "mlp.c_proj.weight": (24, 96),
        "mlp.c_proj.bias": (24,),
    }
    expected = {
        "transformer.wte.weight": (77, 24),
        "transformer.wpe.weight": (16, 24),
        **{f"transformer.h.{n}.{name}": shape for n in range(2) for name, shape in block.items()},
        "transformer.ln_f.weight": (24,),
        "transformer.ln_f.bias": (24,),
        "lm_head.weight": (77, 24),
    }
    assert {name: tuple(value.shape) for name, value in build().state_dict().items()} == expected


def test_the_head_and_the_token_embedding_are_one_parameter() -> None:
    model = build()
    assert model.lm_head.weight is model.transformer.wte.weight
    names = [name for name, _ in model.named_parameters()]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


def test_weights_that_came_apart_are_tied_again() -> None:
    model = build()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(77, 24))
    model.tie_weights()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.any()


@pytest.mark.parametrize("vocab_size", [512, 50_304])
@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_an_untrained_model_knows_nothing(vocab_size: int, loss: str) -> None:
    """The loss of a uniform guess is ln(vocab_size)."""
    sizes = replace(SIZES, vocab_size=vocab_size)
    tokens, targets = batch(sizes)
    mean = build(sizes, loss=loss)(tokens, targets).item() / (targets >= 0).sum().item()
    assert mean == pytest.approx(math.log(vocab_size), rel=0.05)


def test_a_later_token_changes_no_earlier_logits() -> None:
    model = build().eval()
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SIZES.vocab_size
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    moved = (before - after).abs().amax(dim=(0, 2))
    assert (moved[9:] > 1e-4).all()


def test_a_shorter_sequence_has_the_same_logits() -> None:
    model = build().eval()
    tokens, _ = batch()
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens)[:, :5], rtol=0, atol=1e-6)


def test_weights_start_as_published() -> None:
    """Residual projections are smaller by the square root of the residual branches, here 16."""
    sizes = replace(SIZES, n_layer=8, n_head=2, n_embd=64, vocab_size=500, block_size=64)
    for name, parameter in build(sizes).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        else:
            std = 0.02 / 4 if "c_proj" in name else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(parameter.mean().item()) < std / 20, name


def test_transformers_computes_the_same_logits_and_loss() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    settings = {"n_layer": 2, "n_head": 3, "n_embd": 24, "vocab_size": 77, "n_positions": 16}
    theirs = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    # Their Conv1D keeps a weight as [inputs, outputs].
    state = {
        name: value.T if name.endswith(linear) else value
        for name, value in model.state_dict().items()
    }
    theirs.load_state_dict(state, strict=True)
    tokens, targets = batch()
    with torch.no_grad():
        logits = theirs(tokens).logits
        torch.testing.assert_close(model(tokens), logits, rtol=1e-5, atol=1e-5)
        # They shift the labels themselves, so each target is put where its own input stands.
        labels = torch.cat([torch.full((3, 1), IGNORE_INDEX), targets[:, :-1]], dim=1)
        targets[:, -1] = IGNORE_INDEX
        mean = model(tokens, targets) / (targets >= 0).sum()
        torch.testing.assert_close(mean, theirs(tokens, labels=labels).loss, rtol=1e-5, atol=0)


def test_the_chunked_loss_is_the_plain_one_through_the_whole_model() -> None:
    """Also where the weight is the token embedding's, whose gradient has two parts."""
    plain, chunked = (loss_and_gradients(build(loss=loss)) for loss in ("plain", "chunked"))
    assert_equal(chunked, plain, rtol=1e-6)


def test_only_the_plain_loss_holds_the_logits_of_all_tokens() -> None:
    sizes = replace(SIZES, vocab_size=2000, block_size=256)
    tokens, targets = batch(sizes, rows=2)
    held = {}
    for loss in ("plain", "chunked"):
        model = build(sizes, loss=loss)
        with Largest() as largest:
            model(tokens, targets).backward()
        held[loss] = largest.elements
    assert held == {"plain": 512 * 2000, "chunked": CHUNK_ROWS * 2000}


def test_without_targets_a_chunked_model_gives_logits() -> None:
    tokens, _ = batch()
    assert torch.equal(build(loss="chunked")(tokens), build(loss="plain")(tokens))


@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_the_loss_is_fp32_where_autocast_computes_in_bf16(loss: str) -> None:
    model = build(loss=loss)
    exact = model(*batch())
    with torch.autocast("cpu", torch.bfloat16):
        assert model(batch()[0]).dtype == torch.bfloat16
        found = model(*batch())
    assert found.dtype == torch.float32
    assert found.bfloat16().item() != found.item() != exact.item()
    assert found.item() == pytest.approx(exact.item(), rel=1e-3)


def block_calls(model: GPT2, run: Callable[[], object]) -> int:
    """How often the first block is computed."""
    calls: list[object] = []
    hook = model.transformer.h[0].ln_1.register_forward_hook(lambda *call: calls.append(call))
    run()
    hook.remove()
    return len(calls)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputing_activations_changes_nothing(dropout: float) -> None:
    kept = build(dropout=dropout)
    recomputed = build(dropout=dropout, activation_checkpointing=True)
    assert block_calls(kept, lambda: kept(*batch()).backward()) == 1
    assert block_calls(recomputed, lambda: recomputed(*batch()).backward()) == 2
    kept.zero_grad()
    recomputed.zero_grad()
    assert_equal(loss_and_gradients(recomputed), loss_and_gradients(kept), rtol=0)


def test_nothing_is_recomputed_where_no_gradient_is_wanted() -> None:
    model = build(activation_checkpointing=True)
    with torch.no_grad():
        assert block_calls(model, lambda: model(*batch())) == 1


def test_dropout_acts_in_training_alone() -> None:
    model = build(dropout=0.2)
    losses = [model(*batch()).item() for _ in range(2)]
    assert losses[0] != losses[1]
    model.eval()
    plain = build().eval()
    assert model(*batch()).item() == model(*batch()).item() == plain(*batch()).item()


def test_dropout_reaches_embeddings_attention_and_both_residual_branches() -> None:
    """With almost everything dropped but one place at a time, its output varies."""
    places = {
        "embeddings": lambda m: [m.transformer.drop],
        "attention weights": lambda m: [block.attn for block in m.transformer.h],
        "attention output": lambda m: [block.attn.resid_dropout for block in m.transformer.h],
        "MLP output": lambda m: [block.mlp.dropout for block in m.transformer.h],
    }
    for place, modules_of in places.items():
        model = build(dropout=0.5).eval()
        for module in modules_of(model):
            module.training = True
        torch.manual_seed(0)
        with torch.no_grad():
            assert not torch.equal(model(batch()[0]), model(batch()[0])), place


def test_compiled_blocks_compute_the_same_under_the_same_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of torch.compile but the writing of machine code, which takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    sizes = replace(SIZES, n_layer=1)
    check_compiled(build(sizes), build(sizes))


@pytest.mark.long
def test_blocks_compiled_to_machine_code_compute_the_same() -> None:
    try:
        check_compiler()
    except UsageError as error:
        pytest.skip(str(error))
    sizes = replace(SIZES, n_layer=1)
    check_compiled(build(sizes), build(sizes))


def check_compiled(compiled: GPT2, eager: GPT2) -> None:
    torch._dynamo.reset()
    for block in compiled.transformer.h:
        block.compile()
    assert compiled.state_dict().keys() == eager.state_dict().keys()
    assert_equal(loss_and_gradients(compiled), loss_and_gradients(eager), rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
