"""Measure the machine at hand: collectives by payload, modules by shape; about a minute."""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from toolkit.launch.processes import processes
from toolkit.prediction.machine_profile import (
    KINDS,
    Environment,
    MachineProfile,
    MicroStep,
    Point,
    WorkPoint,
    fit_curve,
)

TIMEOUT_S = 600.0
RANK = "toolkit.prediction.measure_rank"


class Link(Protocol):
    """A link that ranks are started at the ends of."""

    @property
    def interface(self) -> str:
        """Return the name of the network interface at both ends."""

    def command(self, rank: int, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs `argv` at a rank's end."""


def measure_machine(
    world_size: int, *, link: Link | None = None, link_mbit_per_s: float | None = None
) -> MachineProfile:
    """Start the ranks, one per GPU or on the CPU's cores, and return what they measured.

    Args:
        world_size: ranks; on GPUs as many as there are, or fewer.
        link: where the ranks are to run, if not side by side.
        link_mbit_per_s: its rate.

    Raises:
        ProcessError: a rank failed.
        HangError: they took longer than `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = _run_ranks(Path(folder), world_size, link)
    return MachineProfile(
        environment=describe_machine(found["device"], found["threads"]),
        world_size=world_size,
        backend=found["backend"],
        link_mbit_per_s=link_mbit_per_s,
        collectives={
            kind: fit_curve([Point(**point) for point in found["collectives"][kind]])
            for kind in KINDS
        },
        matmul_flops_per_s=found["matmul_flops_per_s"],
        work=tuple(WorkPoint(**point) for point in found["work"]),
        micro_steps=tuple(MicroStep(**one) for one in found["micro_steps"]),
    )


def describe_machine(device: str, threads: int) -> Environment:
    """Return what a calibration holds for: the device, and the torch version."""
    return Environment(
        versions={"python": platform.python_version(), "torch": version("torch")},
        device=device,
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
        git=None,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


@cache
def cpu_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _run_ranks(folder: Path, world_size: int, link: Link | None) -> dict[str, Any]:
    results = folder / "results.json"
    meeting = [str(world_size), str(folder / "meeting"), str(results)]
    commands = [[sys.executable, "-m", RANK, str(rank), *meeting] for rank in range(world_size)]
    if link:
        commands = [link.command(rank, command) for rank, command in enumerate(commands)]
    with processes(
        commands,
        folder=folder,
        threads=max(1, len(os.sched_getaffinity(0)) // world_size),
        environment={"GLOO_SOCKET_IFNAME": link.interface} if link else {},
    ) as group:
        group.finish("the ranks", timeout_s=TIMEOUT_S)
    found: dict[str, Any] = json.loads(results.read_text())
    return found
