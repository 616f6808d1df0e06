"""Processes that stop, continue and end together with the one that started them.

A launcher puts each rank into a session of its own, which neither a terminal's signals nor those
to a process group reach. So whoever starts a launcher passes on what it is sent, and whatever has
been started ends when its owner does, even by SIGKILL.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import psutil

_OWNER = "SCALING_TOOLKIT_OWNER"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_EVERY_S = 0.5


def asking_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to save and end; not SIGHUP where `nohup` took it away."""
    always = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return always if is_ignored else (*always, signal.SIGHUP)


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a command in a session of its own, with this process as the owner it can `follow`.

    Call it from the main thread: to Linux the parent is the thread that starts a process.
    """
    environment = {**(options.pop("env", None) or os.environ), _OWNER: str(os.getpid())}
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def take_owner() -> int | None:
    """Return the process that started this one by `start`, and become the owner of all below."""
    owner = os.environ.get(_OWNER)
    os.environ[_OWNER] = str(os.getpid())
    return int(owner) if owner else None


def follow(number: signal.Signals, *, owner: int | None = None) -> None:
    """Get a signal when the owner ends, or at once where it has ended already.

    Args:
        number: which; SIGCONT also wakes a process that is stopped.
        owner: if None, the one that `start` or the launcher named, or else the parent.
    """
    owner = owner or int(os.environ.pop(_OWNER, 0)) or os.getppid()
    if sys.platform != "linux":
        Thread(target=_await_end, args=(owner, number), daemon=True).start()
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    # It may have ended before the kernel was asked to watch it.
    if not _is_alive(owner):
        os.kill(os.getpid(), number)


def _await_end(owner: int, number: signal.Signals) -> None:
    while _is_alive(owner):
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), number)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def stopping_together(on_continue: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let Ctrl-Z (SIGTSTP) stop this process and all below, and `fg` (SIGCONT) continue them.

    They get SIGSTOP: the kernel drops a SIGTSTP to a process in a session without a terminal.

    Args:
        on_continue: called after each SIGCONT.
    """

    def stop(number: int, frame: Any) -> None:
        stopped: set[psutil.Process] = set()
        # One that is not stopped yet may be starting another.
        while found := set(_descendants(os.getpid())) - stopped:
            _send(found, signal.SIGSTOP)
            stopped |= found
        os.kill(os.getpid(), signal.SIGSTOP)

    def resume(number: int, frame: Any) -> None:
        _send(_descendants(os.getpid()), signal.SIGCONT)
        on_continue()

    earlier = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGTSTP, stop), (signal.SIGCONT, resume))
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill what is left of a process and of all below it, and wait for it."""
    if process.poll() is None:
        kill(process)
        process.wait()


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and all below it; a signal handler may call this while `wait` does not return.

    Its caller must not have waited for the process yet: the number might be another's by then.
    """
    below = _descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    _send(below, signal.SIGKILL)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _send(processes: Any, number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
