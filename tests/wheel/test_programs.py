"""The installed program, used from a folder of the user's, and without DeepSpeed."""

import json
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, Installed
from toolkit import __version__
from toolkit.backends.strategies import STRATEGIES

pytestmark = pytest.mark.distributed
MISSING = "needs DeepSpeed, which is not installed; pip install scaling-toolkit[deepspeed]"


@pytest.fixture(scope="module")
def prepared(installed: Installed) -> Installed:
    for split in ("train", "val"):
        words = ["data", "prepare", f"{split}.txt", "--out", f"shards/{split}", "--processes", "1"]
        assert "tokens" in installed.toolkit(*words)
    return installed


def test_it_is_the_wheels_and_deepspeed_is_not_there(installed: Installed) -> None:
    code = "import toolkit, importlib.util as u; print(toolkit.__file__, u.find_spec('deepspeed'))"
    assert installed.python("-c", code) == f"{installed.package / '__init__.py'} None\n"
    assert installed.toolkit("--version") == f"toolkit {__version__}\n"
    assert installed.python("-m", "toolkit", "--version") == f"toolkit {__version__}\n"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_it_trains_and_keeps_checkpoints(prepared: Installed, strategy: str) -> None:
    words = ["--strategy", strategy, "--num-processes", "2", "--config", "tiny.yaml"]
    printed = prepared.toolkit("train", *words, f"run_name={strategy}")
    package = prepared.package
    assert printed.splitlines()[0] == (
        f"accelerate launch --config_file {package}/configs/accelerate/{strategy}.yaml "
        f"--num_processes 2 {package}/launch/train.py --config tiny.yaml run_name={strategy}"
    )
    steps = [line.split()[1] for line in printed.splitlines() if line.startswith("step ")]
    assert steps == ["1/2", "2/2"]
    listed = prepared.toolkit("checkpoint", "list", f"runs/{strategy}")
    assert listed.startswith(f"step_00000002  256 tokens, written by {strategy} on 2")
    summary = prepared.toolkit("summary", "tiny.yaml", f"run_name={strategy}")
    assert summary.startswith("done: 2 steps, 256 tokens")
    environment = prepared.elsewhere / "runs" / strategy / "environment.json"
    described = json.loads(environment.read_text())
    assert described["git"] is None
    assert "deepspeed" not in described["packages"]


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_zero_says_what_to_install(prepared: Installed, strategy: str) -> None:
    sentence = prepared.refused("train", "--strategy", strategy, "--config", "tiny.yaml")
    assert sentence == f"error: strategy '{strategy}' {MISSING}"


def test_it_verifies_what_it_can(installed: Installed) -> None:
    words = ["--strategies", "single,zero2", "--grad-accum", "1", "--precision", "fp32"]
    small = ["--steps", "3", "--model", "1,1,8,64,16"]
    report = json.loads(installed.toolkit("verify", *words, *small, "--json"))
    assert report["ok"] is True
    assert {case["strategy"] for case in report["cases"]} == {"single"}
    (zero,) = report["not_run"]
    assert zero == {
        "strategy": "zero2",
        "world_size": 2,
        "reason": f"not run: strategy 'zero2' {MISSING}",
    }


def test_it_estimates_and_checks(prepared: Installed) -> None:
    estimate = prepared.toolkit("estimate", "--config", "tiny.yaml", "--world-size", "4")
    assert {line.split()[0] for line in estimate.splitlines()} >= set(STRATEGIES)
    checked = prepared.toolkit("check", "tiny.yaml")
    assert checked.startswith("tiny.yaml: run configuration")
    assert "tokens" in prepared.toolkit("data", "verify", "shards/train")


def test_a_shipped_file_that_is_not_here_is_named(installed: Installed) -> None:
    sentence = installed.refused("check", "configs/train/gpt2.yaml")
    shipped = Path(sentence.partition("the shipped one is ")[2])
    assert shipped.read_bytes() == (ROOT / "configs" / "train" / "gpt2.yaml").read_bytes()
