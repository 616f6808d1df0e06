"""Start arms through the real launch path and read back what they did."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from toolkit.engines.strategies import Strategy
from toolkit.errors import HangError, ToolkitError
from toolkit.launch.ownership import owned
from toolkit.model.sizes import ModelSizes
from toolkit.running_time import RunningTime
from toolkit.shipped import find_launch_file
from toolkit.verify import arm
from toolkit.verify.cases import Case
from toolkit.verify.outcome import Outcome, read_outcome

Result = Outcome | str
_LOOK_EVERY_S = 0.5


class ArmError(ToolkitError):
    """The processes of an arm failed; the message ends with the last thing they said."""


def run_arm(
    strategy: Strategy,
    world_size: int,
    cases: Sequence[Case],
    sizes: ModelSizes,
    *,
    controls: Sequence[str] = (),
    timeout_s: float = 280.0,
) -> tuple[list[Outcome], list[Result]]:
    """Run all cases and controls of one strategy and world size in one launch.

    Returns:
        An outcome for each case, and for each control its outcome or the sentence that refused it.

    Raises:
        ArmError: a process failed.
        HangError: they did not finish within `timeout_s` seconds; they have been ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        order = {
            "cases": [asdict(case) for case in cases],
            "controls": list(controls),
            "sizes": asdict(sizes),
            "results": folder,
            "timeout_s": timeout_s,
        }
        order_file = Path(folder) / "order.json"
        order_file.write_text(json.dumps(order))
        launch(strategy, world_size, [arm.__file__, str(order_file)], timeout_s=timeout_s)
        outcomes = [read_outcome(Path(folder) / f"case_{n:03d}") for n in range(len(cases))]
        broken = [_read_result(Path(folder) / f"control_{n:03d}") for n in range(len(controls))]
        return outcomes, broken


def _read_result(stem: Path) -> Result:
    refused = stem.with_suffix(".refused")
    return refused.read_text() if refused.exists() else read_outcome(stem)


def launch(
    strategy: Strategy,
    world_size: int,
    script: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a script under `accelerate launch` with a shipped launch file; return what it printed.

    Raises:
        ArmError: it failed.
        HangError: it did not finish in time; its processes have been ended.
    """
    command = [sys.executable, "-m", "toolkit.launch.launcher", "launch"]
    command += ["--config_file", str(find_launch_file(strategy))]
    command += ["--num_processes", str(world_size), *script]
    with tempfile.TemporaryDirectory() as empty:
        # A person's own `accelerate config` must not leak into a proof.
        settings = {"HF_HOME": empty, "OMP_NUM_THREADS": "1", **(environment or {})}
        with owned(
            command,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            printed = _await_output(process, timeout_s)
    if printed is None:
        raise HangError(
            f"{strategy} on {world_size} processes did not finish within {timeout_s:g} s"
        )
    if process.returncode:
        raise ArmError(f"{strategy} on {world_size} processes failed:\n{printed[-4000:]}")
    return printed


def _await_output(process: "subprocess.Popen[str]", timeout_s: float) -> str | None:
    """Return all that a process prints until it ends, or None if it does not end in time."""
    clock = RunningTime()
    while clock.read() < timeout_s:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK_EVERY_S)[0]
    return None
