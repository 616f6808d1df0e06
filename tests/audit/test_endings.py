"""Scripts that compile, hook, fork, spawn, crash or hang end as they would without an audit."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.audit.launches import HERE, TORCHRUN, audit, finish, run, start

ENDINGS = HERE / "endings"
WATCHED = {
    "compiled": ([*TORCHRUN, str(ENDINGS / "compiled.py")], "DDP", 3),
    "own hooks": ([*TORCHRUN, str(ENDINGS / "own_hooks.py")], "DDP", 3),
    "forked workers": ([str(ENDINGS / "workers.py"), "fork"], "plain", 3),
    "spawned workers": ([str(ENDINGS / "workers.py"), "spawn"], "plain", 3),
    "forked ranks": ([str(ENDINGS / "spawned.py"), "fork"], "DDP", 2),
    "spawned ranks": ([str(ENDINGS / "spawned.py"), "spawn"], "DDP", 2),
}


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize("name", WATCHED)
def test_losses_gradients_collectives_and_random_numbers_stay(name: str) -> None:
    command, engine, steps = WATCHED[name]
    plain = run(*command)
    assert plain.returncode == 0, plain.stderr
    watched = audit("--json", "--", sys.executable, *command)
    report = json.loads(watched.stdout)
    printed = sorted(line for line in watched.stderr.splitlines() if "0x" in line)
    assert printed == sorted(line for line in plain.stdout.splitlines() if "0x" in line)
    assert printed
    assert (report["engine"], len(report["steps"])) == (engine, steps)
    assert [rank["problem"] for rank in report["ranks"]] == [None] * report["world_size"]
    assert report["findings"] == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_hang_is_ended_by_a_signal_and_reported(number: signal.Signals) -> None:
    hanging = start("-m", "toolkit", "audit", "--", sys.executable, "-u", str(ENDINGS / "hangs.py"))
    assert hanging.stdout is not None
    assert hanging.stdout.readline() == "hangs\n"
    if number == signal.SIGINT:
        os.killpg(hanging.pid, number)  # as a terminal does
    else:
        os.kill(hanging.pid, number)
    ended = finish(hanging)
    assert ended.returncode == 1
    assert f"the command ended with signal {number.value}" in ended.stdout
    assert "Step 1" in ended.stdout


@pytest.mark.long
@pytest.mark.distributed
def test_a_rank_that_crashes_fails_the_launch_as_before(tmp_path: Path) -> None:
    script = tmp_path / "crashes.py"
    text = (HERE / "clean" / "ddp.py").read_text()
    crash = (
        "    if dist.get_rank() == 1 and tokens[0, 0] >= 0 and _ == 2:\n        raise KeyError(7)\n"
    )
    script.write_text(text.replace("    loss_of(", crash + "    loss_of("))
    plain = run(*TORCHRUN, str(script))
    watched = audit("--json", "--", sys.executable, *TORCHRUN, str(script))
    report = json.loads(watched.stdout)
    assert plain.returncode == report["exit_code"] == 1
    assert "KeyError: 7" in watched.stderr
    assert len(report["steps"]) == 2
    assert [finding["name"] for finding in report["findings"]] == ["command_failed"]
