"""Start arms through the real launch path and read back what they did."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import launch
from toolkit.model.sizes import ModelSizes
from toolkit.verify import arm
from toolkit.verify.cases import Case
from toolkit.verify.outcome import Outcome, read_outcome

Result = Outcome | str


def run_arm(
    strategy: Strategy,
    world_size: int,
    cases: Sequence[Case],
    sizes: ModelSizes,
    *,
    controls: Sequence[str] = (),
    timeout_s: float = 280.0,
) -> tuple[list[Outcome], list[Result]]:
    """Run all cases and controls of one strategy and world size in one launch.

    Returns:
        An outcome for each case, and for each control its outcome or the sentence that refused it.

    Raises:
        ProcessError: a process failed.
        HangError: they did not finish within `timeout_s` seconds; they have been ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        order = {
            "cases": [asdict(case) for case in cases],
            "controls": list(controls),
            "sizes": asdict(sizes),
            "results": folder,
            "timeout_s": timeout_s,
        }
        order_file = Path(folder) / "order.json"
        order_file.write_text(json.dumps(order))
        launch(strategy, world_size, [arm.__file__, str(order_file)], timeout_s=timeout_s)
        outcomes = [read_outcome(Path(folder) / f"case_{n:03d}") for n in range(len(cases))]
        broken = [_read_result(Path(folder) / f"control_{n:03d}") for n in range(len(controls))]
        return outcomes, broken


def _read_result(stem: Path) -> Result:
    refused = stem.with_suffix(".refused")
    return refused.read_text() if refused.exists() else read_outcome(stem)
