"""Programs that nobody here wrote, and launchers of theirs, audited on two ranks.

Scripts of Accelerate's own tests are taken from the installed package. Of the others the model, the
loop and, but for Fabric's, the data handling are the library's.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.audit.launches import HERE, TORCHRUN, audit

pytestmark = [pytest.mark.long, pytest.mark.distributed]

BIN = Path(sys.executable).parent
PROGRAMS, CLEAN = HERE / "programs", HERE / "clean"
without_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="lightning is installed by `make test-museum`"
)


def audited(tmp_path: Path, *command: str) -> dict[str, Any]:
    """Return the report of a command that has ended well, without any download."""
    variables = {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
        "PATH": f"{BIN}:/usr/bin:/bin",
    }
    found = audit("--json", "--", *command, **variables)
    report: dict[str, Any] = json.loads(found.stdout)
    assert report["exit_code"] == 0, found.stderr
    assert [rank["problem"] for rank in report["ranks"]] == [None] * len(report["ranks"])
    return report


def names(report: dict[str, Any]) -> set[str]:
    return {finding["name"] for finding in report["findings"]}


def accelerates(name: str) -> str:
    spec = find_spec("accelerate")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "test_utils" / "scripts" / f"{name}.py")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        # A baseline trained by each rank alone on the same data comes first.
        ("test_script", {"ranks_train_alone", "data_on_several_ranks"}),
        # Models that are stepped by no optimizer, beside others that are, on gathered data.
        (
            "test_sync",
            {
                "data_on_several_ranks",
                "gradients_not_cleared",
                "parameters_missing",
                "scheduler_steps",
            },
        ),
        ("test_ops", {"nothing_watched"}),
    ],
)
def test_accelerates_own_scripts_on_two_ranks(tmp_path: Path, name: str, found: set[str]) -> None:
    report = audited(tmp_path, sys.executable, *TORCHRUN, accelerates(name))
    assert names(report) == found
    script = {where.rpartition(":")[0] for f in report["findings"] if (where := f["where"])}
    assert script <= {accelerates(name)}


def test_accelerates_own_script_in_one_process_is_clean(tmp_path: Path) -> None:
    assert names(audited(tmp_path, sys.executable, accelerates("test_script"))) == set()


def test_gpt2_in_transformers_trainer_is_clean_and_weighted_by_token(tmp_path: Path) -> None:
    report = audited(tmp_path, sys.executable, *TORCHRUN, str(PROGRAMS / "trainer.py"))
    assert names(report) == set()
    assert (report["engine"], report["world_size"]) == ("DDP", 2)
    assert {step["loss_weighted"] for step in report["steps"]} == {"by token"}
    assert {step["mode"] for step in report["steps"]} == {"replicated"}


@without_lightning
@pytest.mark.parametrize(("name", "mode"), [("fabric", None), ("lightning_trainer", "replicated")])
def test_lightnings_demonstrations_are_clean(tmp_path: Path, name: str, mode: str | None) -> None:
    report = audited(tmp_path, sys.executable, str(PROGRAMS / f"{name}.py"))
    assert names(report) == set()
    assert (report["engine"], report["world_size"]) == ("DDP", 2)
    assert {(step["mode"], step["gradients"]) for step in report["steps"]} == {(mode, "averaged")}


LAUNCHES = {
    "accelerate": (
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"],
        "accelerate_accumulate",
        "DDP",
    ),
    "torchrun": (["torchrun", "--standalone", "--nproc-per-node", "2"], "ddp_no_sync", "DDP"),
    "deepspeed": (["deepspeed", "--num_gpus", "2"], "deepspeed_stage_2", "DeepSpeed stage 2"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launcher_starts_two_watched_ranks(tmp_path: Path, name: str) -> None:
    (launcher, *options), script, engine = LAUNCHES[name]
    report = audited(tmp_path, str(BIN / launcher), *options, str(CLEAN / f"{script}.py"))
    assert names(report) == set()
    assert (report["engine"], report["world_size"]) == (engine, 2)
    assert [len(rank["steps"]) for rank in report["ranks"]] == [3, 3]


def test_this_toolkits_own_launch_is_watched_and_clean(tmp_path: Path, run_file: Path) -> None:
    options = ["--strategy", "ddp", "--num-processes", "2", "--config", str(run_file)]
    report = audited(tmp_path, sys.executable, "-m", "toolkit", "train", *options)
    assert names(report) == set()
    assert (report["engine"], report["world_size"]) == ("DDP", 2)
    assert {step["mode"] for step in report["steps"]} == {"replicated"}
    assert {step["gradients"] for step in report["steps"]} == {"averaged"}
