"""A recorded run as the page's data: measured figures beside those of the step's program."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.config import load_run_config
from toolkit.engines.mixture import to_config
from toolkit.engines.traffic import KINDS
from toolkit.errors import UsageError
from toolkit.program.events import PARTS, Program
from toolkit.program.readers.phases import read_phases
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step
from toolkit.runs.record import RunRecord, read_run
from toolkit.training.record import FOLDER
from toolkit.watch.formula import explain
from toolkit.watch.seconds import predict_seconds

_MICROSECONDS = 1e6


def run_data(path: Path) -> dict[str, Any]:
    """Return the data of a run's page.

    Args:
        path: a run folder, or the run's configuration.

    Raises:
        UsageError: it is no run, nothing was recorded, a rank's record is missing, or a record is
            not of the steps that `metrics.jsonl` holds.
    """
    run = read_run(path)
    settings = _settings(run)
    of_ranks = [_read_rank(run, rank) for rank in range(settings.world_size)]
    program = write_step(settings)
    steps = [
        _step(run, settings, [recorded[number] for recorded in of_ranks])
        for number in sorted(set.intersection(*(set(recorded) for recorded in of_ranks)))
    ]
    return {
        "name": run.name,
        "strategy": settings.strategy,
        "accumulation": str(to_config(settings.accumulation)),
        "ranks": settings.world_size,
        "backend": "nccl" if settings.device == "cuda" else "gloo",
        "device": _device(run),
        "parameters": settings.sizes.parameter_count,
        "symbols": _symbols(settings),
        "steps": steps,
        "predicted": {**_predicted(program, settings), **predict_seconds(program, settings, run)},
    }


def _settings(run: RunRecord) -> StepSettings:
    if not run.launch:
        raise UsageError(f"{run.folder}: the run has not started yet")
    return settings_of_run(
        load_run_config(run.folder / "config.yaml"),
        run.launch["strategy"],
        world_size=run.launch["world_size"],
        replicas=run.launch["replicas"],
        device="cuda" if run.environment["devices"]["type"] == "cuda" else "cpu",
    )


def _device(run: RunRecord) -> str:
    devices = run.environment["devices"]
    return ", ".join(sorted(set(devices.get("names", [])))) or f"CPU, {devices['cpu_count']} cores"


def _symbols(settings: StepSettings) -> dict[str, int]:
    sizes = settings.sizes
    return {
        "d": sizes.n_embd,
        "V": sizes.vocab_size,
        "T": sizes.block_size,
        "L": sizes.n_layer,
        "N": settings.world_size,
    }


def _read_rank(run: RunRecord, rank: int) -> dict[int, dict[str, Any]]:
    """Return what a rank recorded, by step; of a step that was done twice, the last time."""
    file = run.folder / FOLDER / f"rank_{rank:05d}.jsonl"
    try:
        lines = file.read_text().splitlines()
        return {recorded["step"]: recorded for recorded in map(json.loads, lines)}
    except FileNotFoundError:
        raise UsageError(
            f"{file} is missing; record some steps of the run with training.record=[3,4]"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file}: no record of steps: {error}") from None


def _step(run: RunRecord, settings: StepSettings, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    number = ranks[0]["step"]
    reported = next((each for each in run.train if each["step"] == number), None)
    if reported is None or reported["loss"] != ranks[0]["loss"]:
        raise UsageError(
            f"{run.folder}: step {number} in {FOLDER}/ is not the one in metrics.jsonl; record the "
            "run again"
        )
    shapes: dict[tuple[Any, ...], int] = {}
    of_ranks = [_rank(recorded, shapes) for recorded in ranks]
    return {
        "step": number,
        **{key: reported[key] for key in ("loss", "grad_norm", "step_s", "peak_memory_bytes")},
        "phases": ranks[0]["phases"],
        "shapes": [
            [kind, elements, width, group, explain(settings, kind, elements)]
            for kind, elements, width, group in shapes
        ],
        "ranks": of_ranks,
    }


def _rank(recorded: dict[str, Any], shapes: dict[tuple[Any, ...], int]) -> dict[str, Any]:
    """Return a rank's record with whole microseconds, and its collectives by their shape."""
    return {
        "marks": [_whole(mark) for mark in recorded["marks"]],
        "calls": list(_calls(recorded["collectives"], shapes)),
        "gradients": recorded["gradient_bytes"],
        "allocated": recorded["allocated_bytes"],
        "parameters": recorded["parameter_bytes"],
        "optimizer": recorded["optimizer_bytes"],
        "losses": recorded["losses"],
    }


def _calls(collectives: list[Any], shapes: dict[tuple[Any, ...], int]) -> Iterator[list[int]]:
    for kind, elements, width, ranks, phase, *times in collectives:
        shape = shapes.setdefault((kind, elements, width, tuple(ranks)), len(shapes))
        yield [shape, phase, *map(_whole, times)]


def _whole(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _predicted(program: Program, settings: StepSettings) -> dict[str, Any]:
    traffic = read_traffic(program, settings)
    return {
        "traffic": {kind: [traffic[kind].calls, traffic[kind].bytes] for kind in KINDS},
        "parts": PARTS,
        "memory": [list(held.values()) for held in read_phases(program)],
    }
