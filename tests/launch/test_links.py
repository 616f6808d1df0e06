"""Links between network namespaces: their rate, their end, and the reason where there are none."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.errors import UsageError
from toolkit.launch.links import Link, linked, links_unavailable

ROOT = Path(__file__).parent.parent.parent
TRIES = 5

# Rank 0 sends, rank 1 says how many bytes came per second since it connected.
SEND = """
import socket, sys
out = socket.create_server(("", 5000)).accept()[0]
out.sendall(bytes(int(sys.argv[1])))
"""
RECEIVE = """
import socket, sys, time
while True:
    try:
        incoming = socket.create_connection((sys.argv[1], 5000))
        break
    except OSError:
        time.sleep(0.01)
started, received = time.perf_counter(), 0
while part := incoming.recv(1 << 20):
    received += len(part)
print(received / (time.perf_counter() - started))
"""
HOLD = """
import subprocess, sys, time
from toolkit.launch.links import linked
with linked(100) as link:
    child = subprocess.Popen(link.command(1, ["sleep", "600"]))
    print(*link.namespaces, child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def _links() -> None:
    if reason := links_unavailable():
        pytest.skip(reason)


def bytes_per_s(link: Link, size: int) -> float:
    sender = subprocess.Popen(link.command(0, [sys.executable, "-c", SEND, str(size)]))
    receive = [sys.executable, "-c", RECEIVE, link.master_address]
    said = subprocess.run(link.command(1, receive), capture_output=True, text=True, check=True)
    assert sender.wait() == 0
    return float(said.stdout)


@pytest.mark.usefixtures("_links")
@pytest.mark.parametrize("rate_mbit_per_s", [20, 80])
def test_a_link_carries_its_rate(rate_mbit_per_s: float) -> None:
    # A busy machine can delay what is sent, so the rate must be reached once; it is never exceeded.
    # Headers take 66 of every 1,514 bytes, which outweighs what the bucket lets through at once.
    with linked(rate_mbit_per_s) as link:
        for _ in range(TRIES):
            found = bytes_per_s(link, 1_000_000) * 8 / 1e6
            assert found <= rate_mbit_per_s
            if found > 0.9 * rate_mbit_per_s:
                return
    pytest.fail(f"{found:.1f} Mbit/s, {TRIES} times")


@pytest.mark.usefixtures("_links")
def test_two_links_at_once_know_nothing_of_each_other() -> None:
    with linked(10) as slow, linked(100) as fast:
        assert bytes_per_s(fast, 1_000_000) > 3 * bytes_per_s(slow, 500_000)


def names() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()]


def eventually(condition: Iterator[bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if next(condition):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.usefixtures("_links")
def test_a_killed_owner_leaves_neither_namespaces_nor_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    *namespaces, child = owner.stdout.readline().split()
    assert set(namespaces) <= set(names())
    owner.kill()
    owner.wait()
    assert eventually(not set(namespaces) & set(names()) for _ in iter(int, 1))
    assert eventually(not Path(f"/proc/{child}").exists() for _ in iter(int, 1))


@pytest.mark.usefixtures("_links")
def test_namespaces_of_a_dead_process_are_removed_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover = f"scaling-{dead.pid}-abcdef-0"
    subprocess.run(["ip", "netns", "add", leftover], check=True)
    with linked(100):
        assert leftover not in names()


def test_the_reason_is_given_where_links_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert links_unavailable() == "links need root, to make network namespaces"


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.01 to 100,000 Mbit/s, got 0"), linked(0):
        pass
