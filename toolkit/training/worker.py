"""One launched process, from its arguments to its exit code."""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.config import RunConfig, load_run_config, notes_on
from toolkit.engines.launched import Launched, find_launch_file, leave_to_the_run, read_launch
from toolkit.engines.mixture import to_config
from toolkit.engines.strategies import check_installed
from toolkit.errors import HangError, NonFiniteError, Preempted, ToolkitError
from toolkit.home import expand_words
from toolkit.launch.check import check_launched
from toolkit.launch.exit_code import end_process
from toolkit.launch.ownership import follow
from toolkit.memory.advice import estimate_run, warning_before
from toolkit.training.budget import spend_budget
from toolkit.training.callback import Callback
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
from toolkit.training.summary import Summary
from toolkit.training.trackers import tracked

if TYPE_CHECKING:
    from toolkit.engines.engine import Engine
    from toolkit.training.watchdog import Watchdog

_FIRST_RANK_S = 3.0


@dataclass(frozen=True)
class Start:
    """One process's part in a start of a run.

    Attributes:
        notes: what is done otherwise than written.
        options: `strict`, `verbose` and `quiet`, as `--help` shows them.
        callbacks: called by the loop after its own.
        summary: what is known of the run; filled in as it goes.
    """

    config: RunConfig
    launched: Launched
    notes: list[str]
    folder: Path
    options: argparse.Namespace
    callbacks: Sequence[Callback]
    summary: Summary

    @property
    def rank(self) -> int:
        """This process among all processes."""
        return self.launched.rank

    def log(self, line: str) -> None:
        """Print a line on rank 0, until whoever reads closes the pipe, as `head` does."""
        if self.rank or (self.options.quiet and not line.startswith("warning")):
            return
        try:
            print(line, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str], callbacks: Sequence[Callback] = ()) -> int:
    """Train as `--config FILE [section.key=value ...]` asks; return the process's exit code."""
    options = _parse(arguments)
    try:
        start = _prepare(options, callbacks)
        with sole_user(start.folder) if start.rank == 0 else nullcontext():
            return _train(start)
    except ToolkitError as error:
        report_error(int(os.environ.get("RANK", "0")), str(error))
        return error.exit_code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="launch/train.py",
        description="Train GPT-2. Started by `accelerate launch`, which decides where and how.",
    )
    parser.add_argument("--config", required=True, metavar="RUN.yaml", help="what is trained")
    parser.add_argument("--strict", action="store_true", help="refuse to skip a damaged checkpoint")
    parser.add_argument("--verbose", action="store_true", help="print every check")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors alone")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(expand_words(arguments))


def _prepare(options: argparse.Namespace, callbacks: Sequence[Callback]) -> Start:
    """Read the configuration and the launch, check the pair, make the run folder."""
    config = load_run_config(options.config, options.overrides)
    launched = read_launch(os.environ)
    check_installed(launched.strategy)
    launched, notes = check_launched(config, launched, find_launch_file())
    leave_to_the_run(os.environ, on_cpu=launched.on_cpu)
    config, spent = spend_budget(config, launched)
    return Start(
        config,
        launched,
        [*notes_on(config, options.overrides), *notes, *spent],
        make_run_folder(config),
        options,
        callbacks,
        Summary(
            strategy=launched.strategy,
            accumulation=to_config(config.accumulation),
            world_size=launched.world_size,
            parameters=config.model.sizes().parameter_count,
        ),
    )


def _train(start: Start) -> int:
    """Train, and leave in the run folder how it ended; return the exit code."""
    if start.rank == 0:
        begin_start(start.folder)
    stop = StopRequest()
    if "ACCELERATE_MIXED_PRECISION" in os.environ:  # started by a launcher
        follow(signal.SIGTERM)
    # A signal must not cut the summary short; the launcher sends one as soon as one rank has ended.
    with stop.listening():
        try:
            _run(start, stop)
        except ToolkitError as error:
            failure = error
            is_known = _record_failure(start, error)
        except Exception as error:
            return _record_unforeseen(start, error)
        else:
            if start.rank == 0:
                finish_start(start.folder, start.summary.ended(0, "done"))
            return 0
    # All ranks are stopped together and know it.
    if not isinstance(failure, Preempted) or start.rank == 0:
        report_error(start.rank, str(failure), is_known=is_known)
    return failure.exit_code


def _run(start: Start, stop: StopRequest) -> None:
    """Build everything, describe it, train."""
    import torch

    from toolkit.training.batches import describe_shared_data
    from toolkit.training.build import build_run
    from toolkit.training.callbacks import build_loop
    from toolkit.training.header import devices, header
    from toolkit.training.memory import available_memory, naming_out_of_memory
    from toolkit.training.progress_line import ProgressLine

    config, launched, folder = start.config, start.launched, start.folder
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    estimate = estimate_run(config, launched, device_type=device_type)
    start.summary.estimated_peak_memory_bytes = estimate.total
    with naming_out_of_memory(start.rank, estimate):
        run = build_run(config, launched, folder)
        for line in header(config, run, launched, folder, verbose=start.options.verbose):
            start.log(line)
        for note in start.notes:
            start.log(f"note       {note}")
        if start.rank == 0:
            for shared in describe_shared_data(config):
                start.log(f"warning: {shared}")
        if warning := warning_before(estimate, available_memory(run.engine.device)):
            start.log(warning)
        is_shown = start.rank == 0 and not start.options.quiet
        progress_line = ProgressLine(config.training.last_step, is_wanted=is_shown)
        with _watched(run.engine, start) as watchdog, progress_line:
            others = [*start.callbacks, watchdog, progress_line]
            loop, report = build_loop(
                run,
                folder,
                start.log,
                estimate=estimate,
                stop=stop,
                strict=start.options.strict,
                others=others,
            )
            if start.rank == 0:
                launch = {**launched.describe(), "notes": start.notes}
                write_description(folder, config, launch, devices(run.engine.device))
            try:
                with _leaving_together(), tracked(run.engine.accelerator, config, folder):
                    loop.fit()
            finally:
                report.complete(start.summary)


@contextmanager
def _leaving_together() -> Iterator[None]:
    """Leave the group where all ranks end: done, stopped or not finite.

    NCCL may still be sending to others what this rank has done with.
    """
    from toolkit.engines.process_group import leave_process_group

    try:
        yield
    except (Preempted, NonFiniteError):
        leave_process_group()
        raise
    leave_process_group()


@contextmanager
def _watched(engine: "Engine", start: Start) -> "Iterator[Watchdog]":
    """Watch for a hang, which ends the process with exit code 4."""
    from toolkit.engines.process_group import lift_time_limits
    from toolkit.training.watchdog import Watchdog

    def report_hang(sentence: str, stacks: str) -> None:
        end_start(start.folder, start.summary.ended(HangError.exit_code, sentence))
        sys.stderr.write(f"{stacks}\nerror: {sentence}\n")
        sys.stderr.flush()

    watchdog = Watchdog(
        start.folder,
        rank=engine.rank,
        world_size=engine.world_size,
        timeout_s=start.config.training.timeout_s,
        on_hang=report_hang,
    )
    engine.module.register_forward_pre_hook(lambda *_: watchdog.mark())
    engine.module.register_forward_hook(lambda *_: watchdog.mark())
    lift_time_limits()
    try:
        yield watchdog
    finally:
        watchdog.close()


def _record_failure(start: Start, error: ToolkitError) -> bool:
    """Write how the start ended; return whether another rank has ended in the same way before."""
    summary = start.summary.ended(error.exit_code, str(error))
    with suppress(OSError):  # a full disk has no room for it; the sentence and code count
        if not end_start(start.folder, summary):
            first = read_last_start(start.folder)
            return first == {"exit": summary["exit"], "reason": summary["reason"]}
    return False


def _record_unforeseen(start: Start, error: Exception) -> int:
    """Write how the start ended, and the traceback unless another rank has ended before.

    Returns:
        The exit code; a rank that is gone is one that does not answer.
    """
    from toolkit.engines.process_group import is_lost_connection

    place = f"rank {start.rank}, step {(start.summary.steps or 0) + 1}"
    if is_lost_connection(error):
        code, reason = HangError.exit_code, f"{place}: lost the connection to another rank"
        shown = f"error: {reason} ({error}); start again to resume\n"
    else:
        code, reason = 1, f"{place}: {type(error).__name__}: {error}"
        shown = f"{place}: failed\n{traceback.format_exc()}"
    if end_start(start.folder, start.summary.ended(code, reason)):
        sys.stderr.write(shown)
    return code


def report_error(rank: int, sentence: str, *, is_known: bool = False) -> None:
    """Print what is wrong, once per machine: ranks mostly fail alike, and a launcher ends its own
    when one of them has.

    A rank that gets its signal before it fails lives on; what another has printed it does not.
    """
    if int(os.environ.get("LOCAL_RANK", rank)):
        time.sleep(_FIRST_RANK_S)
        if is_known:
            return
    if rank and not is_known:
        sentence = f"rank {rank}: {sentence}"
    with suppress(OSError):
        sys.stderr.write(f"error: {sentence}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
