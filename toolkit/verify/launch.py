"""Start arms through the real launch path and read back what they did."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.backends.strategies import Strategy
from toolkit.errors import HangError, ToolkitError
from toolkit.model.sizes import ModelSizes
from toolkit.shipped import find_launch_file
from toolkit.verify import arm
from toolkit.verify.cases import Case
from toolkit.verify.outcome import Outcome, read_outcome

Result = Outcome | str


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
        HangError: it did not finish in time; the whole process group has been ended.
    """
    # As a module, since the program need not lie beside this interpreter.
    command: list[Any] = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", find_launch_file(strategy), "--num_processes", str(world_size)]
    with tempfile.TemporaryDirectory() as empty:
        # A person's own `accelerate config` must not leak into a proof.
        settings = {"HF_HOME": empty, "OMP_NUM_THREADS": "1", **(environment or {})}
        process = subprocess.Popen(
            [*command, *script],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise HangError(
                f"{strategy} on {world_size} processes did not finish within {timeout_s:g} s"
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise ArmError(f"{strategy} on {world_size} processes failed:\n{printed[-4000:]}")
    return printed
