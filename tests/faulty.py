"""The main job with faults put in: `FAULT="point:rank:step:action"`, several separated by commas.

Rank and step are a number or `*`; the step is that of the update, or of the checkpoint for the
points of saving. Nothing in the toolkit knows of this: what is patched here is what a real fault
would hit.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from toolkit.checkpoint import saver, store
from toolkit.checkpoint.store import CheckpointStore
from toolkit.data import durable
from toolkit.engines.engine import Engine
from toolkit.launch.exit_code import end_process
from toolkit.training import loop, validation
from toolkit.training.step import StepResult, train_step
from toolkit.training.worker import main

RANK = os.environ.get("RANK", "0")


def _raise() -> None:
    raise ValueError("put in by the test")


def _out_of_memory() -> None:
    raise torch.OutOfMemoryError("Tried to allocate 2 GiB.")


def _sleep_with_lock() -> None:
    """In C, without giving up the interpreter's lock."""
    ctypes.PyDLL(None).sleep(1000)


def _limit_files(size: int) -> None:
    """Writing beyond `size` bytes fails in this process, whichever file it is."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _reduce_once_more() -> None:
    torch.distributed.all_reduce(torch.zeros(7))


def _signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "term": _signal(signal.SIGTERM),
    "usr1": _signal(signal.SIGUSR1),
    "int": _signal(signal.SIGINT),
    "segfault": _signal(signal.SIGSEGV),
    "exit0": lambda: os._exit(0),
    "exit7": lambda: os._exit(7),
    "raise": _raise,
    "oom": _out_of_memory,
    "hang": lambda: time.sleep(1000),
    "hang_in_c": _sleep_with_lock,
    "slow": lambda: time.sleep(0.3),
    "late": lambda: time.sleep(0.05),
    "file_limit": lambda: _limit_files(10_000),
    "no_space": lambda: _limit_files(0),
    "one_more_reduction": _reduce_once_more,
}


class Faults:
    """The faults of this process, effective while entered."""

    def __init__(self, description: str) -> None:
        faults = [fault.split(":") for fault in description.split(",") if fault]
        self.own = {
            (point, step): action for point, rank, step, action in faults if rank in ("*", RANK)
        }
        self.step = 0

    def at(self, point: str, step: int) -> str | None:
        return self.own.get((point, str(step)), self.own.get((point, "*")))

    def reach(self, point: str, step: int) -> str | None:
        """Act if there is a fault at this point; a marker file makes it happen once per run."""
        action = self.at(point, step)
        once = os.environ.get("FAULT_ONCE")
        if action and once:
            try:
                os.close(os.open(f"{once}.{RANK}.{point}.{step}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return None
        if action in ACTIONS:
            ACTIONS[action]()
        return action

    def patched(self) -> ExitStack:
        stack = ExitStack()
        for target, name, wrapper in (
            (loop, "train_step", self._train_step),
            (Engine, "backward", self._backward(Engine.backward)),
            (saver.Saver, "begin", self._begin(saver.Saver.begin)),
            (saver, "write_tensors", self._write_tensors(saver.write_tensors)),
            (CheckpointStore, "commit", self._commit(CheckpointStore.commit)),
            (store, "write_durably", self._write_durably),
            (Path, "rename", self._rename(Path.rename)),
            (store.shutil, "rmtree", self._rmtree(store.shutil.rmtree)),
            (validation, "evaluate", self._at("evaluate", validation.evaluate)),
            (validation, "sample_tokens", self._at("sample", validation.sample_tokens)),
        ):
            stack.enter_context(patch.object(target, name, wrapper))
        if any(point == "gradient" for point, _ in self.own):
            from toolkit.engines.zero import ZeroEngine

            backward = self._backward(ZeroEngine.backward)
            stack.enter_context(patch.object(ZeroEngine, "backward", backward))
        return stack

    def _train_step(self, engine: Engine, *arguments: Any, **settings: Any) -> StepResult:
        self.step += 1
        self.reach("step", self.step)
        result = train_step(engine, *arguments, **settings)
        if self.reach("updated", self.step) == "flip":
            weight = next(engine.module.parameters()).detach().view(torch.int32)
            weight.view(-1)[0] ^= 1
        return result

    def _backward(self, original: Any) -> Any:
        def backward(engine: Engine, loss: torch.Tensor) -> None:
            self.reach("backward", self.step)
            action = self.reach("gradient", self.step)
            original(engine, loss * float(action) if action in ("nan", "inf") else loss)

        return backward

    def _at(self, point: str, original: Any) -> Any:
        def call(*arguments: Any, **settings: Any) -> Any:
            self.reach(point, self.step)
            return original(*arguments, **settings)

        return call

    def _begin(self, original: Any) -> Any:
        def begin(own: Any, state: Any) -> None:
            self.reach("begin", state.step)
            original(own, state)

        return begin

    def _write_tensors(self, original: Any) -> Any:
        def write_tensors(path: Path, entries: Any) -> Any:
            step = int(path.parent.stem.removeprefix("step_"))
            if self.at("half", step):
                original(path, entries[: len(entries) // 2])
                self.reach("half", step)
            found = original(path, entries)
            self.reach("part", step)
            return found

        return write_tensors

    def _commit(self, original: Any) -> Any:
        def commit(own: Any, step: int, *arguments: Any, **settings: Any) -> Path:
            self.reach("commit", step)
            final = original(own, step, *arguments, **settings)
            self.reach("committed", step)
            return final

        return commit

    def _write_durably(self, path: Path, data: bytes) -> None:
        step = int(path.parent.stem.removeprefix("step_"))
        if path.name == store.MANIFEST and self.at("manifest", step):
            durable.temporary_name(path).write_bytes(data)
            self.reach("manifest", step)
        durable.write_durably(path, data)

    def _rename(self, original: Any) -> Any:
        def rename(own: Path, target: Path) -> Path:
            if own.suffix == ".partial":
                self.reach("rename", int(own.stem.removeprefix("step_")))
            return original(own, target)

        return rename

    def _rmtree(self, original: Any) -> Any:
        def rmtree(path: Path, **settings: Any) -> None:
            if path.suffix == ".deleted":
                step = int(path.stem.removeprefix("step_"))
                if self.at("prune", step):
                    min(path.iterdir()).unlink()
                    self.reach("prune", step)
            original(path, **settings)

        return rmtree


def faulty_main(arguments: list[str]) -> int:
    with Faults(os.environ.get("FAULT", "")).patched():
        return main(arguments)


if __name__ == "__main__":
    end_process(faulty_main(sys.argv[1:]))
