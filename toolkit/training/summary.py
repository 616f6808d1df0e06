"""What a start reports of its run in `summary.json`."""

from dataclasses import asdict, dataclass
from typing import Any

from toolkit.engines.mixture import Unit
from toolkit.engines.strategies import Strategy


@dataclass
class Summary:
    """The figures of a run, and how its last start that trained ended; None is not known.

    Attributes:
        exit: the exit code.
        reason: `done`, or one sentence.
        steps: completed steps.
        final_loss: of the last step that was trained on, in nats.
        tokens_per_s: median over steps, of all ranks together.
        peak_memory_bytes: the most that a rank had allocated.
        estimated_peak_memory_bytes: what was expected.
        strategy, accumulation, world_size: of the last start.
        parameters: of the model.
        step_s: median seconds of this start's steps but the first ones.
        step_parts_s: of which both passes, the optimizer, waiting and the loop, on rank 0.
        predicted_step_s: by the machine's calibration; None where none covers it.
    """

    exit: int = 0
    reason: str = "done"
    steps: int | None = None
    final_loss: float | None = None
    tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    estimated_peak_memory_bytes: int | None = None
    strategy: Strategy = "single"
    accumulation: str | dict[str, list[Unit]] = "replicated"
    world_size: int = 1
    parameters: int = 0
    step_s: float | None = None
    step_parts_s: dict[str, float] | None = None
    predicted_step_s: float | None = None

    def ended(self, exit_code: int, reason: str) -> dict[str, Any]:
        """Return the object of `summary.json` for a start that ended so."""
        return {**asdict(self), "exit": exit_code, "reason": reason}
