"""The container's entry point as a pod runs it: as the first process, ended by a signal."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.distributed.started import wait_until
from tests.distributed.test_machines import free_port
from tests.training.runs import folder_of, summary
from toolkit.shipped import ROOT

ENTRYPOINT = ROOT / "launch" / "kubernetes" / "entrypoint.sh"
# A namespace of processes, in which it is number 1, as in a container.
UNSHARE = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
CONTAINER = UNSHARE if os.geteuid() == 0 else []


class Pod:
    """One pod, here a process."""

    def __init__(self, index: int | None, out: Path, *words: str, **settings: str) -> None:
        own = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **settings, **own}
        self.out = out
        with out.open("w") as printed:
            self.process = subprocess.Popen(
                [*CONTAINER, "bash", str(ENTRYPOINT), *words],
                env=environment,
                stdout=printed,
                stderr=printed,
            )

    def terminate(self) -> None:
        """Send what the kubelet sends, to the first process of the container."""
        outer = psutil.Process(self.process.pid)
        (outer.children()[0] if CONTAINER else outer).send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    started: list[Pod] = []
    yield started
    for pod in started:
        pod.process.kill()
        pod.process.wait()


def test_a_job_that_is_not_indexed_is_refused(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(Pod(None, tmp_path / "log"))
    assert pods[0].wait(20) == 1
    assert "JOB_COMPLETION_INDEX: the pod of a job that is not Indexed" in pods[0].out.read_text()


def test_an_address_that_nobody_gets_ends_it_in_time(tmp_path: Path, pods: list[Pod]) -> None:
    settings = {"MAIN_ADDRESS": "pod-0.invalid", "ADDRESS_TIMEOUT_S": "1"}
    pods.append(Pod(1, tmp_path / "log", **settings))
    assert pods[0].wait(30) == 4
    assert pods[0].out.read_text() == (
        "error: MAIN_ADDRESS=pod-0.invalid is no known name after 1 s\n"
    )


def test_a_signal_ends_it_while_it_waits_for_the_address(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(Pod(1, tmp_path / "log", MAIN_ADDRESS="pod-0.invalid"))
    wait_until(
        lambda: bool(psutil.Process(pods[0].process.pid).children(recursive=True)), limit_s=10
    )
    time.sleep(0.5)
    pods[0].terminate()
    assert pods[0].wait(30) == 75
    assert "start it again" in pods[0].out.read_text()


def test_rank_and_address_reach_the_launcher(tmp_path: Path, pods: list[Pod]) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    shutil.copy(python, python.with_name("accelerate"))
    settings = {"NODES": "2", "MAIN_ADDRESS": "localhost", "PROCESSES_PER_NODE": "4"}
    path = f"{python.parent}:{os.environ['PATH']}"
    pods.append(Pod(1, tmp_path / "log", "seed=7", **settings, PATH=path))
    assert pods[0].wait(20) == 0
    words = pods[0].out.read_text().split()
    for flag, value in {
        "--num_machines": "2",
        "--machine_rank": "1",
        "--main_process_ip": "localhost",
        "--num_processes": "8",
    }.items():
        assert words[words.index(flag) + 1] == value
    assert words[-1] == "seed=7"


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_terminated_job_saves_ends_with_75_and_resumes(
    tmp_path: Path, run_file: Path, pods: list[Pod]
) -> None:
    """Two pods on two machines, here two processes; the kubelet ends both."""
    run = yaml.safe_load(run_file.read_text())
    run["training"] = {"steps": 4000, "checkpoint_every": 2000, "timeout_s": 60}
    run_file.write_text(yaml.safe_dump(run))
    settings = {
        "NODES": "2",
        "MAIN_ADDRESS": "localhost",
        "MAIN_PORT": str(free_port()),
        "PROCESSES_PER_NODE": "1",
        "STRATEGY": "fsdp2",
        "CONFIG": str(run_file),
        "HF_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    pods += [Pod(index, tmp_path / f"{index}.log", **settings) for index in range(2)]
    metrics = folder_of(run_file) / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, limit_s=200)
    for pod in pods:
        pod.terminate()
    assert [pod.wait(120) for pod in pods] == [75, 75], pods[0].out.read_text()
    assert "which is saved; start again to resume" in pods[0].out.read_text()
    stopped = summary(run_file)["steps"]
    settings["MAIN_PORT"] = str(free_port())
    words = (f"training.stop_at={stopped + 2}",)
    again = [Pod(index, tmp_path / f"{index}.again", *words, **settings) for index in range(2)]
    pods += again
    assert [pod.wait(200) for pod in again] == [0, 0], again[0].out.read_text()
    assert summary(run_file)["steps"] == stopped + 2
