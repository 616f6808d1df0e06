"""The installed program, used from a folder of the user's, and without DeepSpeed."""

import json
from pathlib import Path

import pytest

from tests.samples import sample
from tests.wheel.conftest import ROOT, Installed, run_unchecked
from toolkit import __version__
from toolkit.engines.strategies import STRATEGIES

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


@pytest.fixture(scope="module")
def printed(prepared: Installed) -> dict[str, str]:
    """What two runs printed; each has its strategy's name."""
    words = ["--num-processes", "2", "--config", "tiny.yaml"]
    return {
        name: prepared.toolkit("train", "--strategy", name, *words, f"run_name={name}")
        for name in ("ddp", "fsdp2")
    }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_it_trains(prepared: Installed, printed: dict[str, str], strategy: str) -> None:
    package = prepared.package
    assert printed[strategy].splitlines()[0] == (
        f"accelerate launch --config_file {package}/configs/accelerate/{strategy}.yaml "
        f"--num_processes 2 {package}/launch/train.py --config tiny.yaml run_name={strategy}"
    )
    folder = prepared.elsewhere / "runs" / strategy
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    described = json.loads((folder / "environment.json").read_text())
    assert described["git"] is None
    assert "deepspeed" not in described["packages"]


@pytest.mark.sample
def test_the_readme_shows_what_a_run_prints(prepared: Installed, printed: dict[str, str]) -> None:
    command = "toolkit train --strategy fsdp2 --num-processes 2 --config configs/train/demo.yaml"
    sample(command).assert_is_like(_as_the_demo(prepared, printed["fsdp2"]))
    summary = prepared.toolkit("summary", "tiny.yaml", "run_name=fsdp2")
    command = "toolkit summary configs/train/demo.yaml"
    sample(command).assert_is_like(_as_the_demo(prepared, summary))


def _as_the_demo(installed: Installed, printed: str) -> str:
    """The demo is run in a checkout and has a name of its own."""
    names = {
        f"{installed.package}/": "",
        "tiny.yaml run_name=fsdp2": "configs/train/demo.yaml",
        "runs/fsdp2": "runs/demo",
    }
    for own, of_the_demo in names.items():
        printed = printed.replace(own, of_the_demo)
    return printed


@pytest.mark.sample
@pytest.mark.parametrize(
    "command",
    [
        "toolkit checkpoint list runs/demo2",
        "toolkit checkpoint verify runs/demo2",
        "toolkit checkpoint export runs/demo2",
    ],
)
@pytest.mark.usefixtures("printed")
def test_the_readme_shows_what_is_said_of_checkpoints(prepared: Installed, command: str) -> None:
    words = command.replace("demo2", "fsdp2").split()[1:]
    sample(command).assert_is_like(prepared.on_screen(*words).replace("fsdp2/", "demo2/"))


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
    reason = f"not run: strategy 'zero2' {MISSING}"
    assert report["not_run"] == [{"strategy": "zero2", "world_size": 2, "reason": reason}]


def test_verifying_zero_alone_judges_nothing_and_fails(installed: Installed) -> None:
    program = installed.environment / "bin" / "toolkit"
    done = run_unchecked(program, "verify", "--strategies", "zero3", cwd=installed.elsewhere)
    assert done.returncode == 1
    reason = f"zero3 on 2: not run: strategy 'zero3' {MISSING}"
    assert done.stdout.splitlines() == [reason, "no case was judged"]


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
