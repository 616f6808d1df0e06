"""Network namespaces on one machine, joined as several machines are by a switch, at a given rate.

Each namespace has one end of a veth pair behind a token bucket (tc-tbf(8)), which delays what is
sent faster than the rate; the other ends meet in a bridge, which has no limit. Processes in them
use the same sockets as on several machines. To `accelerate launch` they are machines as well, and
DeepSpeed's ranks need `--deepspeed_multinode_launcher standard`: its own launchers use ssh.

The namespaces are removed by a process of their own, which waits for its input to end. It ends with
the `with` block, and equally when this process is killed; whatever runs in the namespaces by then
is killed as well.
"""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.errors import UsageError

INTERFACE = "link0"
MOST_MACHINES = 64
LEAST_MBIT_PER_S = 0.01
MOST_MBIT_PER_S = 100_000.0
"""Links were made at both ends; far above the upper one tc finds the bucket's size illegal."""
BURST_S = 1e-3
"""How long the bucket may fill in a pause, unless that is under `LEAST_BURST_BYTES`: what passes at
once must be more than the kernel's timers are late, and little beside what is sent."""
LEAST_BURST_BYTES = 16 * 1024
QUEUE_BYTES = 16 * 1024 * 1024
"""Room for all that TCP may have under way (tcp(7): windows of some 6 MB), so none is lost."""
CONGESTION_CONTROL = "reno"
"""In every Linux kernel, and steady where nothing is lost; others pause now and then to probe."""

_NAME = re.compile(r"scaling-(\d+)-[0-9a-f]+-(?:\d+|hub)")
_RATE = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[MG])bit")
_KILL = """
for name; do
    while pids=$(ip netns pids "$name") && [ -n "$pids" ]; do
        kill -KILL $pids
        sleep 0.02
    done
done
"""
_REMOVE = f"""
exec 2>/dev/null
{_KILL}
for name; do ip netns delete "$name"; done
"""
_REMOVE_AT_END_OF_INPUT = "read -r _" + _REMOVE
# Where distributions keep administrators' programs, which a container's PATH may omit.
_ENVIRONMENT = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


@dataclass(frozen=True)
class Link:
    """Machines that reach each other.

    Attributes:
        namespaces: the name of each machine's network namespace.
        interface: the network interface, under the same name on each (GLOO_SOCKET_IFNAME).
        master_address: where machine 0 can be reached from all.
    """

    namespaces: tuple[str, ...]
    interface: str = INTERFACE
    master_address: str = "10.77.0.1"

    def command(self, machine: int, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs `argv` on a machine, in the same process."""
        return [_ip(), "netns", "exec", self.namespaces[machine], *argv]

    def take_down(self, machine: int) -> None:
        """Unplug a machine."""
        _run(_ip(), "-n", self.namespaces[machine], "link", "set", INTERFACE, "down")

    def set_rate(self, machine: int, rate_mbit_per_s: float) -> None:
        """Change the rate at which a machine sends.

        Raises:
            UsageError: no link can have this rate.
        """
        check_rate(rate_mbit_per_s)
        name = self.namespaces[machine]
        _run(_program("tc"), "-n", name, *_shape("replace", rate_mbit_per_s))

    def processes(self, machine: int) -> list[int]:
        """Return the numbers of the processes that run on a machine."""
        return [int(pid) for pid in _run(_ip(), "netns", "pids", self.namespaces[machine]).split()]

    def kill(self, machine: int) -> None:
        """End all that runs on a machine, as a loss of power would."""
        kill = ["sh", "-c", _KILL, "sh", self.namespaces[machine]]
        subprocess.run(kill, env=_ENVIRONMENT, stderr=subprocess.DEVNULL, check=False)


def links_unavailable() -> str | None:
    """Return why no link can be made on this machine, or None; found out by making one."""
    try:
        with linked(rate_mbit_per_s=1000):
            return None
    except UsageError as error:
        return str(error)


def read_rate(text: str) -> float:
    """Return the 10^6 bits per second of a rate such as `1Gbit` or `100Mbit`.

    Raises:
        UsageError: it is no rate that a link can have.
    """
    match = _RATE.fullmatch(text)
    if match is None:
        raise UsageError(f"--link {text}: the form is NUMBERMbit or NUMBERGbit, as in 1Gbit")
    rate = float(match["number"]) * (1000 if match["unit"] == "G" else 1)
    check_rate(rate)
    return rate


def check_rate(rate_mbit_per_s: float) -> None:
    """Refuse a rate that no link can have.

    Raises:
        UsageError: it is no number from `LEAST_MBIT_PER_S` to `MOST_MBIT_PER_S`.
    """
    if not LEAST_MBIT_PER_S <= rate_mbit_per_s <= MOST_MBIT_PER_S:
        raise UsageError(
            f"a link's rate must be {LEAST_MBIT_PER_S:g} to {MOST_MBIT_PER_S:,.0f} Mbit/s, "
            f"got {rate_mbit_per_s:g}"
        )


@contextmanager
def linked(rate_mbit_per_s: float, *, machines: int = 2) -> Iterator[Link]:
    """Join machines for as long as the block lasts.

    Args:
        rate_mbit_per_s: at which each of them sends, 10^6 bits per second, headers included.
        machines: how many, at most `MOST_MACHINES`.

    Raises:
        UsageError: the rate is refused, not root, a program is missing, or the kernel refuses.
    """
    check_rate(rate_mbit_per_s)
    if not 1 <= machines <= MOST_MACHINES:
        raise UsageError(f"machines must be 1 to {MOST_MACHINES}, got {machines}")
    if os.geteuid() != 0:
        raise UsageError("links need root, to make network namespaces")
    _remove_leftovers()
    prefix = f"scaling-{os.getpid()}-{secrets.token_hex(3)}"
    namespaces = tuple(f"{prefix}-{machine}" for machine in range(machines))
    hub = f"{prefix}-hub"
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE_AT_END_OF_INPUT, "sh", *namespaces, hub],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        # Signals to this process's group, such as Ctrl-C, are not for the one that cleans up.
        start_new_session=True,
    )
    try:
        _make(namespaces, hub, rate_mbit_per_s)
        yield Link(namespaces)
    finally:
        remover.communicate()


def _make(namespaces: tuple[str, ...], hub: str, rate_mbit_per_s: float) -> None:
    _run(_ip(), "netns", "add", hub)
    _run(_ip(), "-n", hub, "link", "add", "bridge", "type", "bridge")
    _run(_ip(), "-n", hub, "link", "set", "bridge", "up")
    choose = f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
    for number, name in enumerate(namespaces):
        _run(_ip(), "netns", "add", name)
        port = f"port{number}"
        pair = ["link", "add", INTERFACE, "netns", name, "type", "veth"]
        _run(_ip(), *pair, "peer", "name", port, "netns", hub)
        _run(_ip(), "-n", hub, "link", "set", port, "master", "bridge", "up")
        _run(_ip(), "netns", "exec", name, "sh", "-c", choose)
        _run(_ip(), "-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", INTERFACE)
        _run(_ip(), "-n", name, "link", "set", "lo", "up")
        _run(_ip(), "-n", name, "link", "set", INTERFACE, "up")
        _run(_program("tc"), "-n", name, *_shape("add", rate_mbit_per_s))


def _shape(verb: str, rate_mbit_per_s: float) -> list[str]:
    return ["qdisc", verb, "dev", INTERFACE, "root", "tbf", *_bucket(rate_mbit_per_s)]


def _bucket(rate_mbit_per_s: float) -> list[str]:
    bits_per_s = round(rate_mbit_per_s * 1e6)
    burst = max(LEAST_BURST_BYTES, round(BURST_S * bits_per_s / 8))
    return ["rate", f"{bits_per_s}bit", "burst", f"{burst}b", "limit", f"{QUEUE_BYTES}b"]


def _remove_leftovers() -> None:
    """Remove namespaces of processes that are gone, should their remover have been killed too."""
    names = [line.partition(" ")[0] for line in _run(_ip(), "netns", "list").splitlines()]
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    gone = [match[0] for match in found if not os.path.exists(f"/proc/{match[1]}")]
    if gone:
        subprocess.run(["sh", "-c", _REMOVE, "sh", *gone], env=_ENVIRONMENT, check=False)


def _ip() -> str:
    return _program("ip")


def _program(name: str) -> str:
    path = shutil.which(name, path=_ENVIRONMENT["PATH"])
    if path is None:
        raise UsageError(f"links need the program '{name}' (package iproute2)")
    return path


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        printed = " ".join(done.stderr.split())
        raise UsageError(f"'{' '.join(command)}' failed: {printed}")
    return done.stdout
