"""Launchers of several machines, here all on one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.started import wait_until
from tests.distributed.test_runs import folder, summary
from toolkit.engines.strategies import Strategy
from toolkit.shipped import ROOT

__all__ = ["folder"]  # the fixture
pytestmark = [pytest.mark.distributed, pytest.mark.long]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def start(
    folder: Path,
    rank: int,
    port: int,
    *overrides: str,
    name: str,
    out: Path,
    strategy: Strategy = "ddp",
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    settings = {
        "NODES": "2",
        "NODE_RANK": str(rank),
        "MAIN_ADDRESS": "127.0.0.1",
        "MAIN_PORT": str(port),
        "PROCESSES_PER_NODE": "1",
        "STRATEGY": strategy,
        "CONFIG": str(folder / "run.yaml"),
        "HF_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with out.open("w") as printed:
        return subprocess.Popen(
            ["bash", str(ROOT / "launch" / "several_nodes.sh"), f"run_name={name}", *overrides],
            env={**os.environ, **settings},
            cwd=cwd,
            stdout=printed,
            stderr=printed,
        )


def test_a_second_launcher_of_one_rank_is_refused_and_the_run_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    port = free_port()
    outs = [tmp_path / f"{number}.log" for number in range(3)]
    machines = [
        start(folder, rank, port, name="machines", out=out)
        for rank, out in zip((0, 1, 1), outs, strict=True)
    ]
    codes = [machine.wait(timeout=100) for machine in machines]
    assert codes[0] == 0, outs[0].read_text()
    assert sorted(codes[1:]) == [0, 1]
    refused = outs[1 + codes[1:].index(1)].read_text()
    assert "another process is rank 1 already: two launchers have one node rank" in refused
    assert "Traceback" not in refused
    assert summary(folder, "machines")["steps"] == 6


def test_two_launchers_of_rank_0_are_told_within_half_a_minute(
    folder: Path, tmp_path: Path
) -> None:
    port = free_port()
    waits, refused = tmp_path / "first.log", tmp_path / "second.log"
    first = start(folder, 0, port, name="alone", out=waits)
    try:
        wait_until(lambda: is_taken(port), limit_s=60)
        assert start(folder, 0, port, name="alone", out=refused).wait(timeout=60) == 1
        assert refused.read_text().count("\n") == 1
        assert "This is machine 0 of 2; every machine needs a launcher" in refused.read_text()
        wait_until(lambda: "no process started in 30 s" in waits.read_text(), limit_s=45)
    finally:
        first.kill()
        first.wait()


def is_taken(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
