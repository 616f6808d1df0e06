"""One launched process, from its arguments to its exit code."""

import argparse
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from toolkit.config import RunConfig, load_run_config, notes_on
from toolkit.engines.launched import Launched, find_launch_file, leave_to_the_run, read_launch
from toolkit.engines.strategies import check_installed
from toolkit.errors import HangError, OutOfMemoryError, Preempted, ToolkitError
from toolkit.home import expand_words
from toolkit.launch.check import check_launched
from toolkit.launch.exit_code import leave_exit_code
from toolkit.launch.ownership import follow
from toolkit.memory.advice import estimate_run, warning_before, what_to_lower
from toolkit.memory.hardware import with_unit
from toolkit.memory.report import describe_parts
from toolkit.training.run_folder import (
    begin_start,
    end_start,
    finish_start,
    make_run_folder,
    read_last_start,
    sole_user,
    write_description,
)
from toolkit.training.stop import StopRequest
from toolkit.training.trackers import start_trackers

_FIRST_WORD_S = 3.0


def main(arguments: Sequence[str]) -> int:
    """Train as `--config FILE [section.key=value ...]` says; return the process's exit code."""
    parser = argparse.ArgumentParser(
        prog="launch/train.py",
        description="Train GPT-2. Started by `accelerate launch`, which decides where and how.",
    )
    parser.add_argument("--config", required=True, metavar="RUN.yaml", help="what is trained")
    parser.add_argument(
        "--strict", action="store_true", help="refuse to pass over a damaged checkpoint"
    )
    parser.add_argument("--verbose", action="store_true", help="print every check")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors alone")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    options = parser.parse_intermixed_args(expand_words(arguments))
    rank = int(os.environ.get("RANK", "0"))
    try:
        config = load_run_config(options.config, options.overrides)
        launched = read_launch(os.environ)
        check_installed(launched.strategy)
        launched, notes = check_launched(config, launched, find_launch_file())
        launch = {**launched.describe(), "notes": [*notes_on(config, options.overrides), *notes]}
        leave_to_the_run(os.environ, on_cpu=launched.on_cpu)
        folder = make_run_folder(config)
        with sole_user(folder) if launched.rank == 0 else nullcontext():
            return _train(config, launched, launch, folder, options)
    except ToolkitError as error:
        _speak(rank, str(error))
        return error.exit_code


def end_process(code: int) -> NoReturn:
    """End at once, without taking the interpreter down first.

    A thread of gloo may just be dropping its last reference to a tensor, for which it needs the
    interpreter's lock; a process that is being taken down aborts on that (torch 2.13, one exit in
    some twelve of four processes on two busy cores).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    leave_exit_code(code)
    os._exit(code)


def _train(
    config: RunConfig,
    launched: Launched,
    launch: dict[str, Any],
    folder: Path,
    options: argparse.Namespace,
) -> int:
    summary: dict[str, Any] = {
        "exit": 0,
        "reason": "done",
        "steps": None,
        "final_loss": None,
        "tokens_per_s": None,
        "peak_memory_bytes": None,
        "estimated_peak_memory_bytes": None,
        "strategy": launched.strategy,
        "accumulation": config.accumulation,
        "world_size": launched.world_size,
        "parameters": config.model.sizes().parameter_count,
    }
    say = _printer(launched.rank, quiet=options.quiet)
    if launched.rank == 0:
        begin_start(folder)
    stop = StopRequest()
    if "ACCELERATE_MIXED_PRECISION" in os.environ:  # started by a launcher
        follow(signal.SIGTERM)
    # A signal must not cut the summary short; the launcher sends one as soon as one rank has ended.
    with stop.listening():
        try:
            _run(config, launched, launch, folder, say, summary, options, stop=stop)
        except ToolkitError as error:
            sentence = str(error)
            how: dict[str, Any] = {"exit": error.exit_code, "reason": sentence}
            is_said = False
            with suppress(OSError):  # a full disk has no room for it; the sentence and code count
                is_first = end_start(folder, summary | how)
                is_said = not is_first and read_last_start(folder) == how
        except Exception as error:
            place = f"rank {launched.rank}, step {(summary['steps'] or 0) + 1}"
            reason = f"{place}: {type(error).__name__}: {error}"
            if end_start(folder, {**summary, "exit": 1, "reason": reason}):
                sys.stderr.write(f"{place}: failed\n{traceback.format_exc()}")
            return 1
        else:
            if launched.rank == 0:
                finish_start(folder, summary)
            return 0
    # All ranks are stopped together and know it.
    if how["exit"] != Preempted.exit_code or launched.rank == 0:
        _speak(launched.rank, sentence, is_said=is_said)
    return int(how["exit"])


def _run(
    config: RunConfig,
    launched: Launched,
    launch: dict[str, Any],
    folder: Path,
    say: Callable[[str], None],
    summary: dict[str, Any],
    options: argparse.Namespace,
    *,
    stop: StopRequest,
) -> None:
    # PyTorch's own code and DeepSpeed's still call what PyTorch 2.13 means to rename.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import torch

    from toolkit.training.build import build_run
    from toolkit.training.loop import Loop

    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    estimate = estimate_run(config, launched, device_type=device_type)
    summary["estimated_peak_memory_bytes"] = estimate.total
    try:
        run = build_run(config, launched, folder)
        for line in header(config, run, launched, folder, verbose=options.verbose):
            say(line)
        for note in launch["notes"]:
            say(f"note       {note}")
        if warning := warning_before(estimate, _memory_of(run.engine.device)):
            say(warning)
        with _watched(run.engine, config, folder, summary) as mark:
            loop = Loop(
                run,
                folder,
                say,
                estimate=estimate,
                stop=stop,
                mark=mark,
                strict=options.strict,
            )
            if launched.rank == 0:
                write_description(folder, config, launch, _devices(run.engine.device))
            start_trackers(run.engine.accelerator, config)
            try:
                loop.fit()
            finally:
                summary.update(loop.figures())
            run.engine.accelerator.end_training()
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["the allocator gave no reason"])[0].rstrip(". ")
        raise OutOfMemoryError(
            f"out of memory on rank {launched.rank}: {reason}; "
            f"estimated {with_unit(estimate.total)} per rank at {estimate.moment}: "
            f"{describe_parts(estimate.parts)}; {what_to_lower(estimate)}"
        ) from None


@contextmanager
def _watched(
    engine: Any, config: RunConfig, folder: Path, summary: dict[str, Any]
) -> Iterator[Callable[[int], None]]:
    """Watch for a hang, which ends the process with exit code 4; yields what marks progress."""
    from toolkit.engines.process_group import lift_time_limits
    from toolkit.training.watchdog import Watchdog

    def tell(sentence: str, stacks: str) -> None:
        end_start(folder, {**summary, "exit": HangError.exit_code, "reason": sentence})
        sys.stderr.write(f"{stacks}\nerror: {sentence}\n")
        sys.stderr.flush()

    watchdog = Watchdog(
        folder,
        rank=engine.rank,
        world_size=engine.world_size,
        timeout_s=config.training.timeout_s,
        tell=tell,
    )
    engine.module.register_forward_pre_hook(lambda *_: watchdog.mark())
    engine.module.register_forward_hook(lambda *_: watchdog.mark())
    lift_time_limits()
    try:
        yield watchdog.mark
    finally:
        watchdog.close()


def _memory_of(device: Any) -> int:
    """Bytes of this rank's GPU, or its share of the host's memory."""
    import psutil
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(psutil.virtual_memory().total) // ranks_here


def _is_out_of_memory(error: Exception) -> bool:
    """On a CPU PyTorch raises a plain RuntimeError that names its allocator."""
    import torch

    own = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return own or "DefaultCPUAllocator: can't allocate memory" in str(error)


def header(
    config: RunConfig, run: Any, launched: Launched, folder: Path, *, verbose: bool
) -> list[str]:
    """Return the lines printed before the first step; `verbose` shows every check."""
    import torch.distributed as dist

    backend = dist.get_backend() if dist.is_initialized() else "none"
    sizes = config.model.sizes()
    return [
        f"run        {folder}",
        f"strategy   {launched.strategy}{_groups(launched)}, accumulation {config.accumulation}, "
        f"{launched.world_size} x {run.engine.device.type}, backend {backend}",
        f"model      {sizes.parameter_count:,} parameters, {config.precision}",
        f"batch      {run.plan.describe()}",
        f"data       {len(run.batches.dataset.stream):,} tokens, "
        f"{len(run.batches.dataset) // run.plan.sequences_per_step:,} steps per epoch",
        *_checks(run.facts, verbose=verbose),
        *(f"differs    {difference}" for difference in run.differing),
    ]


def _checks(facts: Sequence[str], *, verbose: bool) -> list[str]:
    if verbose:
        return [f"check      {fact}" for fact in facts]
    return [f"checks     {len(facts)} checks passed (--verbose shows each)"]


def _groups(launched: Launched) -> str:
    shards = launched.world_size // launched.replicas
    return f" in {launched.replicas} groups of {shards}" if launched.replicas > 1 else ""


def _devices(device: Any) -> dict[str, Any]:
    import torch

    if device.type == "cuda":
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"type": "cuda", "names": names}
    return {"type": device.type, "cpu_count": os.cpu_count()}


def print_line(line: str) -> None:
    """Print a line at once, until whoever reads closes the pipe, as `head` does, or has no room."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printer(rank: int, *, quiet: bool) -> Callable[[str], None]:
    """Return what prints a line of the run on rank 0, or warnings alone, and nothing elsewhere."""
    if rank:
        return lambda line: None
    if not quiet:
        return print_line
    return lambda line: print_line(line) if line.startswith("warning") else None


def _speak(rank: int, sentence: str, *, is_said: bool = False) -> None:
    """Print what is wrong, once per machine: ranks mostly fail alike, and a launcher ends its own
    when one of them has.

    A rank that gets its signal before it fails lives on; what another has printed it does not.
    """
    if int(os.environ.get("LOCAL_RANK", rank)):
        time.sleep(_FIRST_WORD_S)
        if is_said:
            return
    if rank and not is_said:
        sentence = f"rank {rank}: {sentence}"
    with suppress(OSError):
        sys.stderr.write(f"error: {sentence}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
