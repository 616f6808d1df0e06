"""The examples learn under ddp, fsdp2 and zero3 what a plain loop on one process learns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import toolkit
from tests.examples import under
from toolkit.launch.processes import launch
from toolkit.shipped import ROOT

STRATEGIES = ("ddp", "fsdp2", "zero3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def launched(ranks: int, folder: Path, *strategies: str) -> dict[str, Any]:
    printed = launch(
        "ddp" if ranks > 1 else "single",
        ranks,
        [under.__file__, str(folder), *strategies],
        timeout_s=200.0,
        environment={"PYTHONPATH": str(ROOT)},
    )
    lines = [line for line in printed.splitlines() if line.startswith("FOUND ")]
    found = [json.loads(line.removeprefix("FOUND ")) for line in lines]
    return {each["strategy"]: each for each in found}


@pytest.fixture(scope="module")
def found(runs: Path) -> dict[str, Any]:
    return launched(2, runs, *STRATEGIES)


@pytest.fixture(scope="module")
def plain() -> dict[str, list[float]]:
    """Losses of both models in a loop that knows no engine, on the whole global batch."""
    losses = {}
    for name, model in under.models():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses[name] = []
        for step in range(under.own_loop.STEPS):
            batch = under.own_loop.global_batch(step)
            loss = model(batch[:, :-1], batch[:, 1:].contiguous()) / batch[:, 1:].numel()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
    return losses


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_learn_what_a_plain_loop_does(
    found: dict[str, Any], plain: dict[str, list[float]], strategy: str
) -> None:
    for name, losses in plain.items():
        assert losses[-1] < losses[0]
        assert found[strategy][name] == pytest.approx(losses, rel=2e-5)


@pytest.mark.distributed
def test_another_strategy_on_one_process_resumes(
    found: dict[str, Any], runs: Path, plain: dict[str, list[float]]
) -> None:
    """From the middle of what zero3 wrote on two."""
    (runs / "zero3").rename(runs / "single")
    for name in plain:
        last = runs / "single" / name / "checkpoints" / "step_00000012"
        for path in last.iterdir():
            path.unlink()
        last.rmdir()
    resumed = launched(1, runs, "single")["single"]
    for name, losses in plain.items():
        assert resumed[name] == pytest.approx(losses[6:], rel=2e-5)


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
