from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from toolkit.config import OptimizerConfig
from toolkit.engines.engine import Engine
from toolkit.model.gpt2 import GPT2
from toolkit.training.optimizer import build_optimizer, decay_groups
from toolkit.verify.cases import TINY, Case
from toolkit.verify.reference import norm_of

Build = Callable[[Case], Engine]

WIDTH, LAYERS = TINY.n_embd, TINY.n_layer
MATRICES = (512 + 32) * WIDTH + LAYERS * 12 * WIDTH**2
VECTORS = LAYERS * 13 * WIDTH + 2 * WIDTH


def is_matrix(name: str) -> bool:
    return name.endswith(".weight") and ".ln_" not in name


def test_matrices_decay_and_biases_and_norms_do_not() -> None:
    model = GPT2(TINY)
    decayed, spared = decay_groups(model, weight_decay=0.1)
    names = [name for name, _ in model.named_parameters()]
    assert decayed["names"] == [name for name in names if is_matrix(name)]
    assert spared["names"] == [name for name in names if not is_matrix(name)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_every_parameter_is_in_one_group_and_named_rightly() -> None:
    model = GPT2(TINY)
    groups = decay_groups(model, weight_decay=0.1)
    by_name = dict(model.named_parameters())
    held = [pair for g in groups for pair in zip(g["names"], g["params"], strict=True)]
    assert len(held) == len(by_name)
    assert all(by_name[name] is parameter for name, parameter in held)


def test_the_tied_head_is_counted_once() -> None:
    sizes = [sum(p.numel() for p in g["params"]) for g in decay_groups(GPT2(TINY), weight_decay=0)]
    assert sizes == [MATRICES, VECTORS]
    assert sum(sizes) == TINY.parameter_count


def test_adamw_is_fused_and_has_the_runs_settings() -> None:
    config = OptimizerConfig(lr=0.25, betas=(0.8, 0.7), weight_decay=0.3)
    optimizer = build_optimizer(GPT2(TINY), config)
    assert type(optimizer) is torch.optim.AdamW
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["fused"]) == (0.25, (0.8, 0.7), True)


def test_sgd_is_plain() -> None:
    optimizer = build_optimizer(GPT2(TINY), OptimizerConfig(name="sgd", lr=0.25))
    assert type(optimizer) is torch.optim.SGD
    assert all((g["lr"], g["momentum"]) == (0.25, 0) for g in optimizer.param_groups)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_with_no_gradient_decay_alone_moves_the_matrices_alone(
    single_engine: Build, name: str
) -> None:
    """Through the engine: matrices shrink by lr x weight_decay, vectors keep their bits."""
    case = Case(accumulation="replicated", grad_accum_steps=1, optimizer=name)
    engine = single_engine(case)
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter += torch.randn_like(parameter)
    before = {key: p.detach().clone() for key, p in engine.module.named_parameters()}
    for parameter in engine.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    engine.set_lr(0.5)
    assert engine.clip_and_step() == 0
    for key, parameter in engine.module.named_parameters():
        if is_matrix(key):
            torch.testing.assert_close(parameter.detach(), before[key] * (1 - 0.5 * 0.1))
        else:
            assert torch.equal(parameter, before[key]), key


def test_the_norm_and_the_clipping_factor_are_right_on_tensors_as_large_as_gpt2s(
    single_engine: Build,
) -> None:
    """Uneven rows, of which PyTorch's own norm is off by more than 1e-5 on a CPU."""
    clip = 0.5
    case = Case(accumulation="replicated", grad_accum_steps=1, grad_clip=clip)
    engine = single_engine(replace(case, whole_vocabulary=True))
    for parameter in engine.module.parameters():
        size = torch.rand(len(parameter), *[1] * (parameter.dim() - 1)) ** 6
        parameter.grad = size * torch.randn_like(parameter)
    engine._clear_gradients = lambda: None  # type: ignore[method-assign]
    largest = engine.module.get_parameter("lm_head.weight").grad
    assert largest is not None
    first = largest[0, 0].item()
    exact = norm_of(p.grad for p in engine.module.parameters() if p.grad is not None)
    assert engine.clip_and_step().item() == pytest.approx(exact, rel=1e-6)
    assert largest[0, 0].item() / first == pytest.approx(clip / exact, rel=1e-6)


@pytest.mark.parametrize(("grad_clip", "factor"), [(0.0, 1.0), (0.5, 0.125), (8.0, 1.0)])
def test_the_gradient_is_clipped_by_its_global_norm(
    single_engine: Build, grad_clip: float, factor: float
) -> None:
    """A gradient of norm 4 in two tensors; the norm that is reported is the one before clipping."""
    case = Case(accumulation="replicated", grad_accum_steps=1, grad_clip=grad_clip)
    engine = single_engine(replace(case, optimizer="sgd"))
    parameters = dict(engine.module.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    moved = [parameters["transformer.ln_f.weight"], parameters["transformer.ln_f.bias"]]
    for parameter in moved:
        parameter.grad = torch.full_like(parameter, (4**2 / (2 * WIDTH)) ** 0.5)
    before = [parameter.detach().clone() for parameter in moved]
    engine.set_lr(1.0)
    assert float(engine.clip_and_step()) == pytest.approx(4.0)
    for parameter, old in zip(moved, before, strict=True):
        step = (old - parameter.detach()).norm().item()
        assert step == pytest.approx(factor * 4 / 2**0.5, rel=1e-4)


def test_adamw_is_one_kernel_per_group() -> None:
    adamw = build_optimizer(torch.nn.Linear(2, 2), OptimizerConfig())
    assert all(group["fused"] for group in adamw.param_groups)
