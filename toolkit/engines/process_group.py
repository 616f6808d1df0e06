"""Make the launched processes one world, on GPUs and on hosts that have none.

Without a GPU, Accelerate 1.15 leaves every launched process believing it is alone and exits 0
(measured; `ACCELERATE_USE_CPU` would turn FSDP into DDP). Creating its `PartialState` first, over
gloo, makes all engines real; the same launch file then serves both kinds of host.
"""

import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from toolkit.counted import counted
from toolkit.engines.agreement import differences
from toolkit.engines.launched import Launched, leave_to_the_run
from toolkit.engines.packages import LOST
from toolkit.engines.torch_internals import all_groups, set_time_limit
from toolkit.errors import HangError, UsageError

_ATTEMPT = "attempt"
_NO_LIMIT = timedelta(days=365)
STALE_LOCK_S = 300.0
"""A build takes some 20 s; one that holds its lock for this long is not running any more."""


def start_process_group(launched: Launched, *, timeout: timedelta) -> torch.device:
    """Join the processes of one launch and return this process's device.

    Must run before `accelerate.Accelerator()` is made.

    Raises:
        UsageError: the group that came up is not the one that was launched, or does not add, or
            has two processes of one rank.
        HangError: not all processes came within `timeout`.
    """
    leave_to_the_run(os.environ, on_cpu=launched.on_cpu)
    # Accelerate would pick Apple's GPU, which has neither collectives nor fp64 for sums.
    if not torch.cuda.is_available():
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    _quieten_engines()
    if torch.cuda.is_available():
        _take_gpu(launched)
    elif launched.strategy.startswith("zero"):
        build_extensions_here(announce=launched.rank == 0)
    from accelerate import PartialState

    if launched.strategy == "single":
        return PartialState().device
    backend: dict[str, Any] = {"backend": "gloo"}
    if torch.cuda.is_available():
        backend = {}
    elif launched.strategy == "ddp":
        backend = {"cpu": True}
    try:
        # DeepSpeed prints that it has found its extension; what goes wrong it raises.
        with redirect_stdout(StringIO()):
            state = PartialState(**backend, init_method=f"{_ATTEMPT}://", timeout=timeout)
        _check_world(launched)
        _check_reduction(state.device)
    except dist.DistBackendError as error:
        raise UsageError(
            f"NCCL cannot connect the {launched.world_size} processes "
            f"({_last_line(str(error))}); NCCL_DEBUG=WARN prints why"
        ) from None
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        raise HangError(
            f"the {launched.world_size} processes did not all come together within "
            f"{timeout.total_seconds():g} s ({str(error).splitlines()[0]}); start a launcher on "
            "every machine, each with a node rank of its own"
        ) from None
    return state.device


def _take_gpu(launched: Launched) -> None:
    """Make a GPU of its own this process's, before anything else looks for one.

    Accelerate 1.16 does so after the group has started, and gives two processes one GPU where there
    are more processes; NCCL then fails at the first collective, in words of its own.

    Raises:
        UsageError: this machine has fewer GPUs than processes.
    """
    gpus = torch.cuda.device_count()
    if launched.local_rank >= gpus:
        processes = os.environ.get("LOCAL_WORLD_SIZE", str(launched.local_rank + 1))
        raise UsageError(
            f"{processes} processes were started on {socket.gethostname()}, where PyTorch sees "
            f"{counted(gpus, 'GPU')}; each process needs one of its own: lower --num_processes, "
            "or unset CUDA_VISIBLE_DEVICES if it hides some"
        )
    torch.cuda.set_device(launched.local_rank)


def leave_process_group() -> None:
    """Part from the other processes, if there are any, once all work with them is done."""
    # Left to the interpreter's end, gloo's threads now and then abort the process.
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_connection(error: Exception) -> bool:
    """Whether a collective failed because another process is gone or cannot be reached."""
    return any(words in str(error) for words in LOST)


def lift_time_limits() -> None:
    """Let collectives wait as long as they have to, for a caller that watches over time itself.

    Their own clock goes on while processes are stopped, as by Ctrl-Z: at the end of such a pause
    gloo (torch 2.13) and NCCL's watchdog would take it for a rank that does not answer. New groups
    have PyTorch's own limits again.
    """
    if not dist.is_initialized():
        return
    for group in all_groups():
        set_time_limit(group, _NO_LIMIT)


def _meet(url: str, **settings: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Meet as `env://` does, under keys of this attempt alone.

    A launcher that brings a crashed group back keeps its store (torch 2.13, static rendezvous):
    whoever comes first would find the addresses of processes that are gone.

    Raises:
        UsageError: another process came under the same rank, or on another kind of device.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    for store, rank, world_size in dist.rendezvous(url.replace(_ATTEMPT, "env", 1), **settings):
        own = dist.PrefixStore(f"{_ATTEMPT}_{attempt}", store)
        if own.add(f"came as {rank}", 1) > 1:
            raise UsageError(
                f"another process is rank {rank} already: two launchers have one node rank; "
                "start one on every machine, each with a node rank of its own"
            )
        _compare_devices(own, rank, world_size)
        yield own, rank, world_size


def _compare_devices(store: dist.Store, rank: int, world_size: int) -> None:
    """Refuse ranks with and without a GPU, which would wait for each other on two backends.

    Raises:
        UsageError: names one of each.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    store.set(f"device of {rank}", json.dumps([device, socket.gethostname()]))
    found = store.multi_get([f"device of {other}" for other in range(world_size)])
    devices, hosts = zip(*map(json.loads, found), strict=True)
    if clauses := differences([{"device": device} for device in devices], hosts):
        raise UsageError(
            f"the ranks differ in hardware: {clauses[0]}; where nvidia-smi lists a GPU, PyTorch "
            "must see it as well"
        )


dist.register_rendezvous_handler(_ATTEMPT, _meet)


def _quieten_engines() -> None:
    """Engines announce every setting at INFO; the run's own header has what matters."""
    import logging

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # PyTorch's own code and that of engines still call what PyTorch 2.13 means to rename.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    warnings.filterwarnings("ignore", message="Slicing a flattened dim", module="torch.distributed")
    # What builds DeepSpeed's extension has loaded the one before the other.
    warnings.filterwarnings("ignore", message="Setuptools is replacing distutils")


def build_extensions_here(*, announce: bool) -> None:
    """Let DeepSpeed compile its extension in a folder of this environment.

    PyTorch's default is one folder for all environments of a user, which build over each other; a
    build that was killed leaves a lock on which every later one waits for ever; and each version of
    ninja builds again what another has built, so it must not depend on the caller's path.
    """
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    if not os.access(sys.prefix, os.W_OK):
        return
    folder = os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/torch_extensions")
    for lock in Path(folder).glob("*/lock"):
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > STALE_LOCK_S:
                lock.unlink()
    if announce and not list(Path(folder).glob("*/*.so")):
        print("DeepSpeed compiles an extension once per environment ...", file=sys.stderr)


def _check_world(launched: Launched) -> None:
    joined = dist.get_world_size() if dist.is_initialized() else 1
    if joined != launched.world_size:
        raise UsageError(
            f"{launched.world_size} processes were launched but this one is in a world of {joined}"
        )


def _check_reduction(device: torch.device) -> None:
    """Reduce known values: rank r gives r + 1, so the sum is n (n + 1) / 2.

    It is the first collective, at which NCCL connects the ranks; under DeepSpeed it has before.
    """
    world_size = dist.get_world_size()
    expected = world_size * (world_size + 1) / 2
    value = torch.tensor(float(dist.get_rank() + 1), device=device)
    dist.all_reduce(value)
    if value.item() != expected:
        raise UsageError(
            f"the known sum over {world_size} ranks came out as {value.item()}, not {expected}: "
            "two processes have the same rank, or the communication backend does not add"
        )


def _last_line(text: str) -> str:
    """NCCL's own reason, which stands below PyTorch's trace of it."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"])[-1]
