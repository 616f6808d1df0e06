"""Run the audited command, watched, and return what its ranks wrote."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import UsageError

_PACKAGE = Path(__file__).parent.parent
_STARTUP = Path(__file__).parent / "startup"


def watched_environment(
    environment: Mapping[str, str], folder: Path, *, steps: int, stops: bool
) -> dict[str, str]:
    """Return the environment in which every Python process is watched.

    Args:
        environment: the one to add to.
        folder: for the ranks' reports.
        steps: optimizer steps to watch.
        stops: end the ranks after them.
    """
    path = os.pathsep.join(filter(None, (str(_STARTUP), environment.get("PYTHONPATH"))))
    return {
        **environment,
        "PYTHONPATH": path,
        "TOOLKIT_AUDIT_OUT": str(folder),
        "TOOLKIT_AUDIT_PACKAGE": str(_PACKAGE),
        "TOOLKIT_AUDIT_STEPS": str(steps),
        "TOOLKIT_AUDIT_STOP": "1" if stops else "0",
    }


def run_command(
    command: Sequence[str], folder: Path, *, steps: int, stops: bool, quiet: bool
) -> int:
    """Run a command to its end and return its exit code, negative for a signal.

    Ctrl-C reaches it from the terminal; a SIGTERM is passed on.

    Args:
        command: as it would be typed.
        folder: for the ranks' reports.
        steps: optimizer steps to watch.
        stops: end the ranks after them.
        quiet: print what it prints to standard error, for a report on standard output.

    Raises:
        UsageError: there is no such command.
    """
    environment = watched_environment(os.environ, folder, steps=steps, stops=stops)
    output = sys.stderr.fileno() if quiet else None
    try:
        process = subprocess.Popen(command, env=environment, stdout=output)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None
    handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        return process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _read_process(path: Path) -> dict[str, Any]:
    """Join a process's lines: facts, of which later ones hold, and steps."""
    report: dict[str, Any] = {"steps": []}
    for line in path.read_text().splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the process ended while it wrote
            break
        if "step" in found:
            report["steps"].append(found["step"])
        else:
            report.update(found)
    return report


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of all ranks, in their order.

    Of several processes with one rank, such as its data workers, the one that trained counts.
    """
    ranks: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        report = _read_process(path)
        if "rank" not in report:
            continue
        known = ranks.get(report["rank"])
        if known is None or len(report["steps"]) > len(known["steps"]):
            ranks[report["rank"]] = report
    return [ranks[rank] for rank in sorted(ranks)]
