"""What is known of a GPU's speed, from `devices.csv`, which names its sources.

`low_use`, `median_use` and `high_use` are the 10th, 50th and 90th percentile of the share of the
peak that published training runs reached, recomputation counted as work: 78 rows on A100-40 and 52
on H100-80 of llm-foundry's benchmarks (bf16, FSDP, 124 million to 65 billion parameters). Those
runs communicated too, so their share is a lower bound of what computation alone reaches.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import UsageError

CALIBRATED_PARAMETERS = range(124_131_840, 64_862_437_377)
"""Sizes of the models that the shares were measured with."""


@dataclass(frozen=True)
class Use:
    """Share of the peak that training reaches: 10th percentile, median, 90th percentile."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class DeviceSpeed:
    """A GPU's speed.

    Attributes:
        peak_flops: dense bf16 operations per second.
        link_bytes_per_s: bus bandwidth of a ring of the GPUs of one machine, measured.
        use: share of the peak that was measured on this GPU; None where nothing was.
    """

    name: str
    peak_flops: float
    link_bytes_per_s: float
    use: Use | None


def find_speed(gpu: str) -> DeviceSpeed:
    """Return the speed of a GPU of `toolkit/memory/hardware.csv`.

    Raises:
        UsageError: nothing is known of its speed.
    """
    speeds = _load()
    if gpu not in speeds:
        raise UsageError(
            f"--gpu {gpu}: its speed is not known, only its memory (toolkit estimate --gpu "
            f"'{gpu}'); plan knows {', '.join(speeds)}"
        )
    return speeds[gpu]


def widest_use() -> Use:
    """Return the span over all GPUs that were measured, for one that was not."""
    known = [speed.use for speed in _load().values() if speed.use]
    low, high = min(use.low for use in known), max(use.high for use in known)
    return Use(low, (low + high) / 2, high)


def _load() -> dict[str, DeviceSpeed]:
    with Path(__file__).with_name("devices.csv").open() as file:
        return {row["gpu"]: _speed(row) for row in csv.DictReader(file)}


def _speed(row: dict[str, str]) -> DeviceSpeed:
    use = None
    if row["median_use"]:
        use = Use(float(row["low_use"]), float(row["median_use"]), float(row["high_use"]))
    return DeviceSpeed(
        row["gpu"], 1e12 * float(row["peak_tflops"]), 1e9 * float(row["busbw_gbs"]), use
    )
