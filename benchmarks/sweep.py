"""Measure all cases of a sweep, and carry on with one that was broken off.

    python -m benchmarks.sweep cpu-quick --out benchmarks/out/cpu-quick

The folder's records say what is done: a repeat that is there is not measured again, and neither is
a case that failed or was skipped. What cannot fit by the memory estimate is skipped; a case that
fails is a record with its error, and the others go on.
"""

import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from benchmarks.axes import SWEEPS, Sweep, load_sweep
from benchmarks.record import Case, Record, append_record, read_records
from toolkit.config.strict_yaml import dump_yaml
from toolkit.errors import Preempted, ToolkitError, UsageError
from toolkit.home import expand_words

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
READY_MADE = ", ".join(sorted(path.stem for path in SWEEPS.glob("*.yaml")))
Out = Annotated[Path, typer.Option(help="Folder for the records; carried on with if there.")]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Measure cases again that failed or were skipped.")
]


@app.command(help=f"Measure the cases of a sweep: {READY_MADE}, or a file of your own.")
def sweep(
    name: Annotated[str, typer.Argument(metavar="SWEEP", show_default=False)],
    out: Out,
    retry_failed: RetryFailed = False,
) -> None:
    """Load the sweep and carry it out."""
    stem, loaded = load_sweep(name)
    carry_out(stem, loaded, out, retry_failed=retry_failed)


def carry_out(name: str | None, sweep: Sweep, out: Path, *, retry_failed: bool = False) -> None:
    """Measure what the folder has no records of yet, and print each as it is done.

    Raises:
        UsageError: the sweep has no possible case, the folder cannot be written, its records cannot
            be read, or another process is at work there.
    """
    # These load torch, which the command's help need not wait for.
    from benchmarks.driver import Driver
    from benchmarks.machine import find_machine
    from benchmarks.progress import SweepProgress
    from toolkit.training.run_folder import sole_user

    cases = sweep.all_cases()
    _make_folder(out)
    with sole_user(out, instead="folder"):
        missing = missing_repeats(
            cases, read_records(out), repeats=sweep.repeats, retry_failed=retry_failed
        )
        if not missing:
            print(f"nothing to do: {out} has a record of each of the {len(cases)} cases")
            return
        driver = Driver(name, sweep, find_machine())
        (out / "sweep.yaml").write_text(dump_yaml(sweep.model_dump(mode="json")))
        with SweepProgress({case: len(repeats) for case, repeats in missing.items()}) as progress:
            for record in driver.measure_all(missing):
                append_record(out, record)
                progress.show(record)


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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be made a folder: {error.strerror}") from None


def _stop(number: int, frame: Any) -> NoReturn:
    raise Preempted(f"stopped by {signal.Signals(number).name}; start it again to carry on")


def run_app(application: typer.Typer) -> None:
    """Run a command; an error that a person can cause is one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        application(expand_words(sys.argv[1:]))
    except ToolkitError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run_app(app)
