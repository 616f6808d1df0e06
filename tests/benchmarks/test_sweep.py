"""Sweeps: carried on where they were broken off, whatever becomes of a case."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import run
from benchmarks import sweep as sweep_module
from benchmarks.axes import Sweep
from benchmarks.driver import Driver
from benchmarks.progress import describe, show
from benchmarks.record import RECORDS, Case, Record, read_records
from benchmarks.sweep import measure_missing, missing_repeats
from tests.benchmarks.cases import case, record
from toolkit.errors import UsageError
from toolkit.training.run_folder import sole_user

ROOT = Path(__file__).parent.parent.parent
TINY = "2,2,32,512,32"


def axes(**changed: Any) -> dict[str, Any]:
    return {
        "strategies": ["single"],
        "accumulations": ["replicated"],
        "grad_accum_steps": [1, 2, 4],
        "micro_batch_sizes": [1],
        "world_sizes": [1],
        "models": [TINY],
        **changed,
    }


def test_what_is_missing_follows_from_the_records() -> None:
    cases = [case(grad_accum_steps=steps) for steps in (1, 2, 4, 8)]
    records = [
        *(record(cases[0], repeat=repeat) for repeat in (0, 1, 2)),
        record(cases[1], repeat=1),
        record(cases[2], error="it crashed"),
        record(case(grad_accum_steps=16)),
    ]
    found = missing_repeats(cases, records, repeats=3, retry_failed=False)
    assert found == {cases[1]: [0, 2], cases[3]: [0, 1, 2]}
    again = missing_repeats(cases, records, repeats=3, retry_failed=True)
    assert again == {cases[1]: [0, 2], cases[2]: [0, 1, 2], cases[3]: [0, 1, 2]}


def test_a_sweep_that_broke_off_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[int, list[int]]] = []

    def measure(driver: Driver, batch: Mapping[Case, Sequence[int]]) -> Iterator[Record]:
        calls.append({one.grad_accum_steps: list(repeats) for one, repeats in batch.items()})
        for one, repeats in batch.items():
            for repeat in repeats:
                yield record(one, repeat=repeat, step_s=[0.1], tokens_per_s=1.0)
                if (one.grad_accum_steps, repeat) == (2, 0) and len(calls) == 1:
                    raise KeyboardInterrupt

    monkeypatch.setattr(Driver, "measure", measure)
    too_large = axes(grad_accum_steps=[1], micro_batch_sizes=[10**9])
    sweep = Sweep.model_validate({"repeats": 2, "cases": [axes(), too_large]})
    with pytest.raises(KeyboardInterrupt):
        measure_missing("mine", sweep, tmp_path)
    measure_missing("mine", sweep, tmp_path)
    assert calls == [{1: [0, 1], 2: [0, 1], 4: [0, 1]}, {2: [1], 4: [0, 1]}]
    records = read_records(tmp_path)
    assert sum(one.skipped is not None for one in records) == 1
    assert len({(one.case, one.repeat) for one in records}) == len(records) == 7
    measure_missing("mine", sweep, tmp_path)
    assert len(calls) == 2


def test_a_folder_is_one_sweep_s_at_a_time(tmp_path: Path) -> None:
    sweep = Sweep.model_validate({"cases": [axes()]})
    with sole_user(tmp_path), pytest.raises(UsageError, match="choose another folder"):
        measure_missing("mine", sweep, tmp_path)


def test_a_case_s_work_is_its_micro_steps(capsys: pytest.CaptureFixture[str]) -> None:
    few, many = case(grad_accum_steps=1), case(grad_accum_steps=16)
    repeats = {few: 2, many: 2}
    records = [record(few, repeat=n, step_s=[0.1], tokens_per_s=1.0) for n in range(2)]
    records.append(record(many, error="it crashed"))
    assert list(show(records, repeats)) == records
    last = capsys.readouterr().out.splitlines()
    assert "left" in last[1]
    assert any("it crashed | 0.0 min left" in line for line in last)


def test_a_line_says_how_an_case_fared() -> None:
    assert describe(record(case(), error="it crashed")).endswith("| failed: it crashed")
    assert describe(record(case(), skipped="too large")).endswith("| skipped: too large")
    timed = record(case(), step_s=[0.1, 0.1, 0.12], tokens_per_s=1000.0)
    assert "repeat 0 | 100.0 ms a step, within 20% over 3 | 1,000 tokens/s" in describe(timed)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--links", "100,99999999999", r"links_mbit_per_s\[1\] must be at most 100000, got"),
        ("--timeout", "0", "timeout_s must be above 0, got"),
        ("--timeout", "nan", "timeout_s must be a finite number"),
        ("--steps", "many", r"steps: Input should be a valid integer"),
        ("--strategies", "ddp,zero9", r"strategies\[1\] must be 'single', 'ddp'"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_made(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"the command line: .*{message}"):
        run.main(["--out", str(tmp_path / "new"), option, value])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", [sweep_module.main, run.main])
def test_commands_explain_themselves(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command(["--help"])
    assert "--retry-failed" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.distributed
def test_a_killed_sweep_resumes_and_a_killed_rank_is_a_record(tmp_path: Path) -> None:
    """A real sweep: killed once, then one case's rank killed, another case out of data."""
    cases = [
        axes(strategies=["ddp", "fsdp2"], grad_accum_steps=[2], world_sizes=[2]),
        axes(grad_accum_steps=[1], data=["real"]),
    ]
    sweep = Sweep.model_validate(
        {"repeats": 2, "seconds": 2.0, "shards": [str(tmp_path / "none")], "cases": cases}
    )
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(sweep_module.dump_yaml(sweep.model_dump(mode="json")))

    first = start(file, out)
    wait_for(lambda: len(records_of(out)) >= 2, first)
    family = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    with (out / RECORDS).open("a") as written:
        written.write('{"case": {"strat')

    second = start(file, out)
    wait_for(lambda: ranks_of(second, "fsdp2"), second)
    ranks_of(second, "fsdp2")[0].kill()
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said

    records = records_of(out)
    errors = {one.case.strategy: one.error for one in records if one.error}
    assert "killed by SIGKILL" in str(errors["fsdp2"])
    assert "none" in str(errors["single"])
    good = [one for one in records if not one.error]
    assert {(one.case.strategy, one.repeat) for one in good} >= {("ddp", 0), ("ddp", 1)}
    assert len({(one.case, one.repeat) for one in good}) == len(good)
    for one in good:
        assert one.agreement is not None
        assert one.agreement.ok
        assert one.collectives is not None
        assert one.collectives["all_reduce"].bytes == 4 * one.case.model.parameter_count


def start(file: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sweep", str(file), "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records_of(out: Path) -> list[Record]:
    return read_records(out)


def ranks_of(driver: subprocess.Popen[str], strategy: str) -> list[psutil.Process]:
    """Ranks of a case, whose launcher names its launch file."""
    launchers = [
        process
        for process in psutil.Process(driver.pid).children()
        if any(word.endswith(f"/{strategy}.yaml") for word in process.cmdline())
    ]
    return [rank for launcher in launchers for rank in launcher.children()]


def wait_for(happens: Any, driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not happens():
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
