"""The check of a GPU, rehearsed on a CPU: every stage's lines, and that it can be stopped."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import check, one_process, runs
from benchmarks.gpu_check.check import STAGES, Check
from benchmarks.gpu_check.page import write_page
from benchmarks.gpu_check.scale import Scale, scale_for, without_compiler
from toolkit.memory.allocator import MeasuredPeak
from toolkit.shipped import ROOT

CPU = without_compiler(scale_for("cpu"))


DEVICE = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_process, "device_name", lambda scale: DEVICE)


def read(folder: Path) -> Any:
    return json.loads((folder / "gpu_check.json").read_text())


def test_without_a_gpu_it_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(tmp_path / "out")])
    assert command.main() == 2
    assert capsys.readouterr().err.startswith("error: PyTorch sees no GPU on this machine")
    assert not (tmp_path / "out").exists()


def test_a_gpu_gets_twenty_memory_cases_of_two_sizes() -> None:
    scale = scale_for("cuda")
    assert len(set(scale.memory)) == 20
    sizes = {case.model.parameter_count // 10**6 for case in scale.memory}
    assert sizes == {124, 354}
    assert list(scale.speed) == ["plain", "chunked loss", "compiled"]


def test_the_documents_list_the_stages_in_their_order() -> None:
    table = (ROOT / "docs" / "gpu.md").read_text().partition("| stage |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) == list(STAGES)


def test_memory_outside_its_estimate_is_a_problem() -> None:
    slack = one_process.WORKSPACES
    assert one_process._outside(10**9, least=10**9, most=10**9) == {}
    assert one_process._outside(10**9 + slack, least=10**9, most=10**9) == {}
    most = round(1.011 * 10**9) + slack
    assert "problem" in one_process._outside(most, least=10**9, most=10**9)
    assert "problem" in one_process._outside(989_000_000, least=10**9, most=10**9)


def fake(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], error: Any = None) -> None:
    def stage(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
        yield from rows
        if error is not None:
            raise error

    monkeypatch.setattr(check, "STAGES", {"one": stage, "two": stage})


@pytest.mark.usefixtures("on_a_gpu")
def test_what_is_not_as_claimed_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, [{"n": 1}])
    assert Check(CPU, tmp_path, budget_s=60).run(["one", "two"]) == 0
    fake(monkeypatch, [{"n": 1}, {"n": 2, "problem": "another | norm"}])
    assert Check(CPU, tmp_path, budget_s=60).run(["one"]) == 1
    page = (tmp_path / "gpu_check.md").read_text()
    assert "1 not as claimed" in page
    assert "| 2 | another \\| norm |" in page


@pytest.mark.usefixtures("on_a_gpu")
def test_a_stage_that_fails_leaves_its_rows_and_the_next_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, [{"n": 1}], subprocess.CalledProcessError(2, "x", stderr="a\nerror: b\n"))
    assert Check(CPU, tmp_path, budget_s=60).run(["one", "two"]) == 1
    stages = read(tmp_path)["stages"]
    assert [stages[name]["rows"] for name in ("one", "two")] == [
        [{"n": 1}, {"problem": "error: b"}]
    ] * 2


@pytest.mark.usefixtures("on_a_gpu")
def test_when_the_time_is_up_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, [{"n": 1}])
    Check(CPU, tmp_path, budget_s=0).run(["one", "two"])
    assert [stage["complete"] for stage in read(tmp_path)["stages"].values()] == [False] * 2
    assert "not run" in write_page(read(tmp_path))


@pytest.mark.usefixtures("on_a_gpu")
def test_the_page_ends_with_what_later_estimates_take_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peak = MeasuredPeak(bytes=2**30, reserved=2**31, device_total=3 * 2**30, device=DEVICE)
    peak.keep_calibration(run="gpu-check", versions={"torch": "2.13.0"})
    fake(monkeypatch, [{"n": 1}])
    Check(CPU, tmp_path, budget_s=60).run(["one"])
    assert read(tmp_path)["calibration"]["context_bytes"] == 2**30
    assert '"reserved_over_allocated": 2.0' in (tmp_path / "gpu_check.md").read_text()


@pytest.mark.usefixtures("on_a_gpu")
def test_memory_is_measured_in_a_process_that_ends(tmp_path: Path) -> None:
    check = Check(CPU, tmp_path, budget_s=250)
    assert check.run(["memory"]) == 0
    rows = read(tmp_path)["stages"]["memory"]["rows"]
    assert len(rows) == len(CPU.memory)
    assert all(abs(row["error_percent"]) < 1 for row in rows)


def test_a_run_that_resumes_otherwise_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = iter([["a"], ["b"], ["a"], ["b"]])
    monkeypatch.setattr(runs, "prepare", lambda *_: None)
    monkeypatch.setattr(runs, "_train", lambda *_: None)
    monkeypatch.setattr(runs, "_final_state", lambda *_: next(ends))
    first, second = runs.resume(scale_for("cuda"), tmp_path)
    assert first["problem"] == "the resumed run ended in other bits"
    # By default a GPU's kernels add in any order.
    assert second == {"run": "default", "bit_equal": False}


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_whole_check_as_rehearsed_on_a_cpu(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--budget-s", "900"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=950
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stages = read(tmp_path)["stages"]
    assert list(stages) == list(STAGES)
    assert all(stage["complete"] for stage in stages.values())
    assert stages["save and resume"]["rows"] == [
        {"run": "deterministic", "bit_equal": True},
        {"run": "default", "bit_equal": True},
    ]
    assert stages["hang"]["rows"][0]["exit"] == 4
