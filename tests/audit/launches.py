"""Commands run with and without an audit, each in a process group that is ended with the test."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(*command: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python with arguments, where the museum's parts can be imported."""
    path = f"{ROOT}{os.pathsep}{HERE}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for its end, and end whatever it leaves behind."""
    try:
        output, errors = process.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments."""
    return finish(start(*command, **variables))


def audit(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `toolkit audit` with arguments."""
    return run("-m", "toolkit", "audit", *command, **variables)
