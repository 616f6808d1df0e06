"""What is known of a GPU's speed: its data sheet, and what training reaches of it in `use.csv`.

`use.csv` is written by `make plan-errors`: shares of a GPU's peaks that were fitted to published
steps, and how far predictions of a size of model were off whose rows had no part in the fit.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from toolkit.errors import UsageError
from toolkit.model.flops import read_devices
from toolkit.prediction.costs import Costs

CALIBRATED_PARAMETERS = range(124_131_840, 64_862_437_377)
"""Sizes of the models that the shares were measured with."""


class Shares(NamedTuple):
    """What training reaches of a GPU's peaks.

    Attributes:
        matmul, attention: of the peak of operations; attention's count the whole square of
            positions, of which a causal kernel computes half.
        memory: of the bandwidth.
        link: bytes of collectives per second of computation that they take, of the link's rate.
        launch_s: seconds of a module beside its operations and bytes.
    """

    matmul: float
    attention: float
    memory: float
    link: float
    launch_s: float


@dataclass(frozen=True)
class Use:
    """Shares, and the ratios of measured to predicted steps within which 8 in 10 of them lie."""

    slow: Shares
    middle: Shares
    fast: Shares
    least: float = 1.0
    most: float = 1.0


@dataclass(frozen=True)
class DeviceSpeed:
    """A GPU's speed.

    Attributes:
        peak_flops: dense bf16 operations per second.
        memory_bytes_per_s: bandwidth of its memory.
        link_bytes_per_s: bus bandwidth of a ring of the GPUs of one machine, measured.
        use: what was measured on this GPU; None where nothing was.
    """

    name: str
    chip: str
    peak_flops: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    use: Use | None

    @property
    def nearest_use(self) -> Use:
        """What was measured on this GPU; else the span over all, with the same chip's as middle."""
        if self.use is not None:
            return self.use
        span = widest_use()
        alike = (find_speed(gpu) for gpu in measured_use())
        same = next((speed.use for speed in alike if speed.chip == self.chip), None)
        return span if same is None else replace(span, middle=same.middle)

    def costs(self, shares: Shares) -> Costs:
        """Return the seconds of a unit of work."""
        return Costs(
            matmul_s=1 / (shares.matmul * self.peak_flops),
            attention_s=1 / (shares.attention * self.peak_flops),
            moved_s=1 / (shares.memory * self.memory_bytes_per_s),
            launch_s=shares.launch_s,
            collective_s=1 / (shares.link * self.link_bytes_per_s),
        )

    def shares(self, costs: Costs) -> Shares:
        """Return the shares of the peaks that costs, all positive but the launches', stand for."""
        return Shares(
            matmul=1 / (costs.matmul_s * self.peak_flops),
            attention=1 / (costs.attention_s * self.peak_flops),
            memory=1 / (costs.moved_s * self.memory_bytes_per_s),
            link=1 / (costs.collective_s * self.link_bytes_per_s),
            launch_s=costs.launch_s,
        )


def find_speed(gpu: str) -> DeviceSpeed:
    """Return the speed of a GPU of `toolkit/memory/hardware.csv`.

    Raises:
        UsageError: nothing is known of its speed.
    """
    rows = {row["gpu"]: row for row in read_devices() if row["busbw_gbs"]}
    if gpu not in rows:
        raise UsageError(
            f"--gpu {gpu}: its speed is not known, only its memory (toolkit estimate --gpu "
            f"'{gpu}'); plan knows {', '.join(rows)}"
        )
    row = rows[gpu]
    return DeviceSpeed(
        name=gpu,
        chip=row["chip"],
        peak_flops=1e12 * float(row["bf16_tflops"]),
        memory_bytes_per_s=1e9 * float(row["memory_gbs"]),
        link_bytes_per_s=1e9 * float(row["busbw_gbs"]),
        use=measured_use().get(gpu),
    )


def widest_use() -> Use:
    """Return the span over all GPUs that were measured, for one that was not."""
    known = list(measured_use().values())
    columns = list(zip(*(use.middle for use in known), strict=True))
    slow, fast = Shares(*map(min, columns)), Shares(*map(max, columns))
    return Use(
        slow=slow._replace(launch_s=fast.launch_s),
        middle=Shares(*map(fmean, columns)),
        fast=fast._replace(launch_s=slow.launch_s),
        least=min(use.least for use in known),
        most=max(use.most for use in known),
    )


@cache
def measured_use() -> dict[str, Use]:
    """Return what `use.csv` holds, by GPU."""
    found = {}
    with Path(__file__).with_name("use.csv").open() as file:
        rows = {row["gpu"]: row for row in csv.DictReader(file)}
    for gpu, row in rows.items():
        shares = Shares(*(float(row[name]) for name in Shares.__annotations__))
        found[gpu] = Use(shares, shares, shares, float(row["least"]), float(row["most"]))
    return found
