"""The measured side of the error table: one launch for each strategy and number of ranks."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import arm
from benchmarks.memory.configurations import Configuration
from toolkit.launch.processes import launch


def measure_all(configurations: Sequence[Configuration]) -> dict[Configuration, dict[str, Any]]:
    """Return what each configuration's second step held on a CPU, in bytes."""
    grouped: dict[tuple[str, int], list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        grouped[configuration.strategy, configuration.world_size].append(configuration)
    found: dict[Configuration, dict[str, Any]] = {}
    for (strategy, world_size), group in grouped.items():
        found |= dict(zip(group, measure_group(strategy, world_size, group), strict=True))
    return found


def measure_group(
    strategy: Any, world_size: int, group: Sequence[Configuration]
) -> list[dict[str, Any]]:
    """Measure configurations of one strategy and number of ranks in one launch."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        order = {"configurations": [c.row() for c in group], "results": str(results)}
        order_file = Path(folder) / "order.json"
        order_file.write_text(json.dumps(order))
        launch(
            strategy,
            world_size,
            [arm.__file__, str(order_file)],
            timeout_s=600.0,
        )
        measured: list[dict[str, Any]] = json.loads(results.read_text())
        return measured
