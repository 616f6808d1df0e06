"""The examples make under ddp, fsdp2 and zero3 the update of a plain loop on one process."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import toolkit
from tests.examples import under
from toolkit.launch.processes import launch
from toolkit.shipped import ROOT
from toolkit.verify.compare import compare
from toolkit.verify.reference import Trajectory, norm_of
from toolkit.verify.tolerance import COMPARED, Yardstick

STRATEGIES = ("ddp", "fsdp2", "zero3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


Found = dict[tuple[str, str], Trajectory]


def launched(ranks: int, folder: Path, *strategies: str) -> Found:
    launch(
        "ddp" if ranks > 1 else "single",
        ranks,
        [under.__file__, str(folder), *strategies],
        timeout_s=200.0,
        environment={"PYTHONPATH": str(ROOT)},
    )
    return torch.load(folder / under.FOUND, weights_only=False)


@pytest.fixture(scope="module")
def found(runs: Path) -> Found:
    return launched(2, runs, *STRATEGIES)


@pytest.fixture(scope="module")
def measures() -> dict[str, Yardstick]:
    """Of both models: the exact update, and how far rounding takes plain PyTorch from it."""
    exact, rounded = (dict(plain(dtype)) for dtype in (torch.float64, torch.float32))
    return {
        name: Yardstick(exact[name], compare(rounded[name], exact[name]), torch_norm_max_rel=0.0)
        for name in exact
    }


def plain(dtype: torch.dtype) -> Iterator[tuple[str, Trajectory]]:
    """Train both models in a loop that knows no engine, on the whole global batch."""
    for name, drawn in under.models():
        model = drawn.to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, norms, gradients = [], [], {}
        for step in range(under.own_loop.STEPS):
            batch = under.own_loop.global_batch(step)
            loss = model(batch[:, :-1], batch[:, 1:].contiguous()) / batch[:, 1:].numel()
            loss.backward()
            if step == 0:
                gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
            norms.append(norm_of(parameter.grad for parameter in model.parameters()))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        yield name, Trajectory(losses, norms, gradients, parameters)


@pytest.mark.distributed
@pytest.mark.parametrize("model", ["gpt2", "own"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_learn_what_a_plain_loop_does(
    found: Found, measures: dict[str, Yardstick], strategy: str, model: str
) -> None:
    """By the measure of `verify`: not further from the exact update than rounding explains."""
    measure = measures[model]
    assert measure.exact.losses[-1] < measure.exact.losses[0]
    difference = compare(found[strategy, model], measure.exact)
    for figure in COMPARED:
        assert getattr(difference, figure) <= measure.limit(figure, "fp32"), (figure, difference)


def test_the_measure_sees_a_gradient_that_is_averaged_twice(
    found: Found, measures: dict[str, Yardstick]
) -> None:
    trajectory = found["fsdp2", "own"]
    halved = {name: gradient / 2 for name, gradient in trajectory.gradients.items()}
    difference = compare(replace(trajectory, gradients=halved), measures["own"].exact)
    assert difference.gradient_max_rel > measures["own"].limit("gradient_max_rel", "fp32")


@pytest.mark.distributed
def test_another_strategy_on_one_process_resumes(
    found: Found, runs: Path, measures: dict[str, Yardstick]
) -> None:
    """From the middle of what zero3 wrote on two."""
    (runs / "zero3").rename(runs / "single")
    for name in measures:
        last = runs / "single" / name / "checkpoints" / "step_00000012"
        for path in last.iterdir():
            path.unlink()
        last.rmdir()
    resumed = launched(1, runs, "single")
    for name, measure in measures.items():
        assert resumed["single", name].losses == pytest.approx(measure.exact.losses[6:], rel=2e-5)


def test_a_name_is_imported_when_it_is_used() -> None:
    code = "import sys, toolkit; print('torch' in sys.modules); toolkit.plan_batch; "
    code += "print('torch' in sys.modules); toolkit.train_step; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
    assert all(hasattr(toolkit, name) for name in toolkit.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'build_engin'"):
        toolkit.build_engin  # noqa: B018


def test_memory_is_estimated_for_a_strategy() -> None:
    one = toolkit.estimate_memory(overrides=["batch.micro_batch_size=4"])
    shared = toolkit.estimate_memory(strategy="fsdp2", world_size=8)
    assert sum(one.parts.values()) == one.total > shared.total
    assert one.parts["parameters"] >= 4 * 124_000_000


def test_the_loop_is_short() -> None:
    source = Path(under.own_loop.__file__).read_text().splitlines()
    assert len(source) <= 60
