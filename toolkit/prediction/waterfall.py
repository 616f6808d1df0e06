"""Where a step's time goes: predicted by part, beside what the run measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.prediction.calibration import Calibration
from toolkit.program.events import KINDS, Compute, Kind, Program
from toolkit.program.readers.seconds import StepTime

NAMES: dict[Kind, str] = {
    "matmul": "matrix products",
    "attention": "attention",
    "pointwise": "element-wise",
    "update": "optimizer",
}


@dataclass(frozen=True)
class Part:
    """One line; seconds of a step, None where they are not known or in another line."""

    name: str
    predicted_s: float | None
    measured_s: float | None = None


def waterfall(
    program: Program,
    calibration: Calibration | None,
    *,
    step_s: float | None,
    measured: Mapping[str, float] | None = None,
) -> list[Part]:
    """Return the parts of a step, the step and what the prediction leaves unexplained.

    Args:
        program: the step's.
        calibration: of its machine; None predicts nothing.
        step_s: measured.
        measured: seconds of `passes`, `optimizer`, `waiting` and `loop` on one rank; those of a GPU
            are not distinguished.
    """
    found = measured or {}
    parts = list(_predicted(program, calibration)) if calibration else []
    step = calibration.predict(program) if calibration else None
    predicted_s = step.step_s if step else None
    passes_s = sum(part.predicted_s or 0.0 for part in parts if part.name != NAMES["update"])
    both = passes_s if step else None
    update = next((p.predicted_s for p in parts if p.name == NAMES["update"]), None)
    lines = [part for part in parts if part.name != NAMES["update"]]
    lines.append(Part("both passes", both, found.get("passes")))
    lines.append(Part(NAMES["update"], update, found.get("optimizer")))
    lines += _collectives(step) if step else []
    lines.append(Part("waiting", step.exposed_s if step else None, found.get("waiting")))
    lines.append(Part("the loop", None, found.get("loop")))
    lines.append(Part("step", predicted_s, step_s))
    if step_s is not None and predicted_s is not None:
        lines.append(Part("unexplained", None, step_s - predicted_s))
    return lines


def as_lines(parts: list[Part]) -> Iterator[str]:
    """Yield a table in milliseconds."""
    width = max(len(part.name) for part in parts)
    yield f"{'ms':<{width}}  {'predicted':>10}  {'measured':>10}"
    for part in parts:
        figures = (_ms(seconds) for seconds in (part.predicted_s, part.measured_s))
        yield f"{part.name:<{width}}  " + "  ".join(f"{figure:>10}" for figure in figures)


def _predicted(program: Program, calibration: Calibration) -> Iterator[Part]:
    """Yield what computes: modules by kind, and the rest of the computation's clock."""
    by_kind = dict.fromkeys(KINDS, 0.0)
    for section in program.sections:
        for event in section.events:
            if isinstance(event, Compute):
                by_kind[event.kind] += section.times * calibration.compute_s(event)
    yield from (Part(NAMES[kind], seconds) for kind, seconds in by_kind.items())
    step = calibration.predict(program)
    around_s = step.step_s - step.exposed_s - sum(by_kind.values())
    yield Part("around collectives", around_s)


def _collectives(step: StepTime) -> Iterator[Part]:
    for kind, (sent_s, exposed_s) in step.by_kind.items():
        name = kind.replace("_", "-")
        yield Part(f"{name}, exposed", exposed_s)
        yield Part(f"({name}, hidden)", max(0.0, sent_s - exposed_s))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.1f}"
