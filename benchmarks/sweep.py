"""Measure all cases of a sweep, and resume one that was interrupted.

    python -m benchmarks.sweep cpu-quick --out benchmarks/out/cpu-quick

The folder's records show what is done: a repeat that is there is not measured again, and neither is
a case that failed or was skipped. What cannot fit by the memory estimate is skipped; a case that
fails is a record with its error, and the others go on.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.axes import SWEEPS, Sweep, load_sweep
from benchmarks.record import Case, Record, append_record, read_records
from toolkit.config.strict_yaml import dump_yaml
from toolkit.errors import Preempted, ToolkitError, UsageError
from toolkit.home import expand_words

READY_MADE = ", ".join(sorted(path.stem for path in SWEEPS.glob("*.yaml")))
OUT = "folder for the records; resumed if there"
RETRY_FAILED = "measure cases again that failed or were skipped"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the sweep of the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("sweep", help=f"{READY_MADE}, or a file of your own")
    parser.add_argument("--out", type=Path, required=True, help=OUT)
    parser.add_argument("--retry-failed", action="store_true", help=RETRY_FAILED)
    asked = parser.parse_args(expand_words(sys.argv[1:] if arguments is None else arguments))
    name, sweep = load_sweep(asked.sweep)
    measure_missing(name, sweep, asked.out, retry_failed=asked.retry_failed)
    return 0


def measure_missing(
    name: str | None, sweep: Sweep, out: Path, *, retry_failed: bool = False
) -> None:
    """Measure what the folder has no records of yet, and print each as it is done.

    Raises:
        UsageError: the sweep has no possible case, the folder cannot be written, its records cannot
            be read, or another process is at work there.
    """
    # These load torch, which the command's help need not wait for.
    from benchmarks.driver import Driver
    from benchmarks.machine import find_machine
    from benchmarks.progress import show
    from toolkit.training.run_folder import sole_user

    cases = sweep.all_cases()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made a folder: {error.strerror}") from None
    with sole_user(out, instead="folder"):
        missing = missing_repeats(
            cases, read_records(out), repeats=sweep.repeats, retry_failed=retry_failed
        )
        if not missing:
            print(f"nothing to do: {out} has a record of each of the {len(cases)} cases")
            return
        (out / "sweep.yaml").write_text(dump_yaml(sweep.model_dump(mode="json")))
        records = Driver(name, sweep, find_machine()).measure_all(missing)
        for record in show(records, {case: len(left) for case, left in missing.items()}):
            append_record(out, record)


def missing_repeats(
    cases: Sequence[Case], records: Iterable[Record], *, repeats: int, retry_failed: bool
) -> dict[Case, list[int]]:
    """Return which repeats of which cases are still to be measured, in the order of the cases."""
    done: dict[Case, set[int]] = {case: set() for case in cases}
    for record in records:
        given_up = record.error is not None or record.skipped is not None
        if record.case in done and not (given_up and retry_failed):
            done[record.case] |= set(range(repeats)) if given_up else {record.repeat}
    missing = {case: [n for n in range(repeats) if n not in there] for case, there in done.items()}
    return {case: numbers for case, numbers in missing.items() if numbers}


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run a command; an error that a person can cause is one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        command()
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _stop(number: int, frame: Any) -> NoReturn:
    raise Preempted(f"stopped by {signal.Signals(number).name}; start it again to resume")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
