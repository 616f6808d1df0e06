"""Latency and bandwidth of collectives by payload, and the rate of matrix products.

    python -m benchmarks.collectives --out profile.json
    python -m benchmarks.collectives --link-mbit 100 --out profile_100.json
    python -m benchmarks.collectives --sweep FOLDER

Ranks run over NCCL where there are GPUs, one on each, else two over gloo; with `--link-mbit` at
both ends of a throttled link. The machine profile that this writes is what predictions read; with
`--sweep` one for each number of ranks and link in the folder's records, as profile*.json beside
them.

Bus bandwidth and payload are those of nccl-tests (doc/PERFORMANCE.md), so figures can be compared
with published ones: all-reduce counts 2 (n - 1) / n of its payload, the other two (n - 1) / n.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.fitting import settings_of
from benchmarks.links import check_rate, linked
from benchmarks.machine import describe_environment, find_machine
from benchmarks.prediction import group_sizes
from benchmarks.record import read_records
from benchmarks.sweep import exit_code_of
from toolkit.errors import UsageError
from toolkit.home import expand_words
from toolkit.prediction.machine_profile import (
    MachineProfile,
    bus_factor,
    read_profile,
)
from toolkit.prediction.measure import measure_machine


def measure_profile(*, world_size: int, link_mbit_per_s: float | None) -> MachineProfile:
    """Measure over the machine's own link or a throttled one.

    Raises:
        UsageError: a link was asked for with another number of ranks than two, or cannot be made.
        ProcessError: a rank failed.
        HangError: they took too long.
    """
    if link_mbit_per_s is not None and world_size != 2:
        raise UsageError(f"a link joins 2 ranks, not {world_size}")
    with ExitStack() as stack:
        link = None
        if link_mbit_per_s is not None:
            link = stack.enter_context(linked(link_mbit_per_s))
        found = measure_machine(world_size, link=link, link_mbit_per_s=link_mbit_per_s)
    environment = describe_environment(found.environment.device, threads=found.environment.threads)
    return found.model_copy(update={"environment": environment})


def print_profile(profile: MachineProfile, console: Console) -> None:
    """Show every payload beside the fitted line, and the lines themselves."""
    where = "the machine's own link"
    if profile.link_mbit_per_s is not None:
        where = f"a link of {profile.link_mbit_per_s:g} Mbit/s"
    environment = profile.environment
    on = environment.cpu if environment.device == "cpu" else environment.device
    title = f"{profile.backend}, {profile.world_size} ranks over {where}, {on}"
    table = Table("collective", title=title)
    for heading in ("KiB", "ms", "spread", "line, ms", "MB/s", "bus, MB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, curve in profile.collectives.items():
        factor = bus_factor(kind, profile.world_size)
        for point in curve.points:
            rate = point.bytes / point.seconds / 1e6
            line_s = curve.latency_s + point.bytes / curve.bytes_per_s
            table.add_row(
                kind,
                f"{point.bytes / 1024:,.0f}",
                f"{point.seconds * 1e3:.3f}",
                f"{point.spread:.0%}",
                f"{line_s * 1e3:.3f}",
                f"{rate:,.1f}",
                f"{rate * factor:,.1f}",
            )
        bus = curve.bytes_per_s * factor / 1e6
        line = f"{curve.latency_s * 1e6:,.0f} us + payload / {curve.bytes_per_s / 1e6:,.1f} MB/s"
        table.caption = f"{table.caption or ''}{kind}: {line} (bus {bus:,.1f})\n"
        table.add_section()
    rate = profile.matmul_flops_per_s / 1e9
    table.caption = f"{table.caption}matrix products: {rate:,.1f} GFLOP/s per rank"
    console.print(table)


def missing_profiles(folder: Path) -> dict[Path, tuple[int, float | None]]:
    """Return the profiles that the predictions of a sweep lack: file, ranks and link of each.

    Raises:
        UsageError: there are no records, or they cannot be read.
    """
    cases = [record.case for record in read_records(folder)]
    if not cases:
        raise UsageError(f"{folder}: no records, so there is no link to measure")
    there = [read_profile(path) for path in folder.glob("profile*.json")]
    known = {(profile.world_size, profile.link_mbit_per_s) for profile in there}
    wanted = {
        (ranks, case.link_mbit_per_s): None
        for case in cases
        for ranks in sorted(group_sizes(settings_of(case, "cpu")))
    }
    return {
        folder / _profile_name(ranks, rate): (ranks, rate)
        for ranks, rate in wanted
        if (ranks, rate) not in known
    }


def _profile_name(ranks: int, rate_mbit_per_s: float | None) -> str:
    link = "" if rate_mbit_per_s is None else f"_{rate_mbit_per_s:g}_mbit"
    return f"profile_{ranks}_ranks{link}.json"


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path}: a folder; name a file for the machine profile")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written here")


def main(
    out: Annotated[Path, typer.Option(help="Where the machine profile goes.")] = Path(
        "profile.json"
    ),
    world_size: Annotated[int, typer.Option(help="Ranks; 0: one per GPU, or two.", min=0)] = 0,
    link_mbit: Annotated[
        float | None, typer.Option(help="Throttle the link between two ranks (root only).")
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="Measure what this sweep's predictions need instead.")
    ] = None,
) -> None:
    """Measure this machine's collectives and matrix products."""
    wanted = {out: (world_size or find_machine().gpus or 2, link_mbit)}
    if sweep is not None:
        wanted = missing_profiles(sweep)
    for path, (_, rate) in wanted.items():
        _check_writable(path)
        if rate is not None:
            check_rate(rate)
    for path, (ranks, rate) in wanted.items():
        profile = measure_profile(world_size=ranks, link_mbit_per_s=rate)
        print_profile(profile, Console())
        try:
            path.write_text(profile.model_dump_json(indent=1))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    sys.exit(exit_code_of(lambda: app(expand_words(sys.argv[1:]))))
