"""A SLURM cluster of several nodes on this machine, from Debian's own daemons."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
# What looks after a step leaves its daemon's process tree and wipes its own environment; only a
# namespace of processes holds it, which ends whole with its first process, or with the test's.
_OWNED = ("setpriv", "--pdeathsig", "KILL")
_MACHINE = (*_OWNED, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONFIGURATION = """
ClusterName=rehearsal
SlurmctldHost={host}
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
# How long a job that goes back into the queue is held there: until its credential has run out.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
SlurmdTimeout=10
KillWait=60
SchedulerParameters=sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=60 PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10
"""


class Cluster:
    """Running daemons.

    Attributes:
        environment: what SLURM's programs need to find this cluster.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, nodes: int) -> None:
        """Start the daemons of n1 to n`nodes`, and wait until all are at hand."""
        names = [f"n{number}" for number in range(1, nodes + 1)]
        controller, *ports = _free_ports(nodes + 1)
        host = socket.gethostname()
        text = _CONFIGURATION.format(host=host, controller=controller, folder=self._folder)
        for name, port in zip(names, ports, strict=True):
            text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2\n"
        (self._folder / "slurm.conf").write_text(text)
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        self._start_munge()
        self._start("slurmctld", "-D")
        for name in names:
            self._start_node(name)
        await_that(lambda: self._idle() == nodes, 30)

    def _idle(self) -> int:
        command = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return int(done.stdout or 0)

    def _start_munge(self) -> None:
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        options = [f"--{option}={self._folder}/munge.{end}" for option, end in places.items()]
        # Whose folder it is must not matter on a machine of one's own.
        self._start(
            "munged", "--foreground", "--force", f"--seed-file={self._folder}/seed", *options
        )
        await_that((self._folder / "munge.socket").exists, 10)

    def _start_node(self, name: str) -> None:
        self._start("slurmd", "-D", "-N", name, name=name)

    def _start(self, *command: str, name: str = "") -> None:
        name = name or command[0]
        with (self._folder / f"{name}.log").open("a") as log:
            self._daemons[name] = subprocess.Popen(
                [*_MACHINE, *command],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, *command: str, **settings: str) -> str:
        """Return what one of SLURM's programs prints; its errors end the test."""
        done = subprocess.run(
            command, env=self.environment | settings, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def state_of(self, job: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def kill_node(self, name: str) -> None:
        """End everything that runs on a node, as a loss of power would."""
        daemon = self._daemons.pop(name)
        for first in psutil.Process(daemon.pid).children():
            first.kill()
        # Which is when the last process of the namespace has ended.
        daemon.wait()

    def revive_node(self, name: str) -> None:
        """Start the node's daemon again, and have SLURM use it."""
        self._start_node(name)
        time.sleep(1)
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def close(self) -> None:
        """End all daemons and what they have started, the controller first."""
        for name in sorted(self._daemons, key="slurmctld".__ne__):
            self.kill_node(name)


@contextmanager
def running_cluster(folder: Path, *, nodes: int) -> Iterator[Cluster]:
    """Start a cluster with its files in an empty folder, and end it."""
    cluster = Cluster(folder)
    try:
        cluster.start(nodes)
        yield cluster
    finally:
        cluster.close()


def why_not() -> str | None:
    """Return why there can be no cluster here, or nothing."""
    if os.geteuid():
        return "SLURM's daemons want root"
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    return (
        f"not installed: {', '.join(missing)}; `make test-slurm` installs them" if missing else None
    )


def await_that(is_so: Callable[[], object], limit_s: float) -> None:
    """Wait until something is so; it not being so in time ends the test."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, f"not within {limit_s:g} s"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
