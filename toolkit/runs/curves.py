"""What is drawn of a run: named panels, and in each the points of a curve."""

from dataclasses import dataclass

from toolkit.memory.hardware import GIB
from toolkit.runs.record import Axis, RunRecord

AXES: dict[Axis, str] = {"step": "step", "tokens": "tokens", "hours": "hours of training steps"}


@dataclass(frozen=True)
class Panel:
    """One set of axes: the key of a record, what a unit of it is, and how it is scaled."""

    title: str
    key: str
    unit: float = 1.0
    is_log: bool = False


@dataclass(frozen=True)
class Curve:
    """Points of one run in one panel."""

    name: str
    x: list[float]
    y: list[float]
    is_validation: bool = False


PANELS = (
    Panel("loss", "loss"),
    Panel("gradient norm before clipping", "grad_norm", is_log=True),
    Panel("learning rate", "lr"),
    Panel("tokens/s", "tokens_per_s"),
    Panel("peak memory of rank 0, GiB", "peak_memory_bytes", unit=GIB),
)


def curves_of(run: RunRecord, panel: Panel, axis: Axis) -> list[Curve]:
    """Return the curves of a run in a panel, none where it recorded nothing for it."""
    points = [
        (place, record[panel.key] / panel.unit)
        for place, record in zip(run.places(axis), run.train, strict=True)
        if record.get(panel.key) is not None
    ]
    curves = [_curve(run.name, points)] if points else []
    if panel.key == "loss" and run.evaluations:
        places = run.places_of([found["step"] for found in run.evaluations], axis)
        points = list(zip(places, (found["loss"] for found in run.evaluations), strict=True))
        curves.append(_curve(f"{run.name}, validation", points, is_validation=True))
    return curves


def _curve(name: str, points: list[tuple[float, float]], *, is_validation: bool = False) -> Curve:
    return Curve(name, [x for x, _ in points], [y for _, y in points], is_validation)
