"""What capping ZeRO's buckets costs in time and saves in memory.

`python -m benchmarks.bucket_cap` writes `results/bucket_cap.md`.

Calls are counted by DeepSpeed's rule, a tensor above the bucket as one; payloads are fp32, and
what a payload takes is read off published all-reduce curves (`published_all_reduce.csv`), straight
between their points over the logarithm of the payload. Nothing here was timed: it is arithmetic on
other people's measurements.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log
from pathlib import Path
from unittest.mock import patch

from toolkit.engines import deepspeed_config
from toolkit.engines.deepspeed_config import DEEPSPEED_BUCKET, LARGEST_BUCKET, bucket_elements
from toolkit.memory.hardware import GIB
from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import model_tensors
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak

MODELS = {
    "13B on 64 ranks": (ModelSizes(40, 40, 5120, 50_304, 1024), 64),
    "175B on 1,024 ranks": (ModelSizes(96, 96, 12_288, 50_304, 1024), 1024),
}
CAPS = {"none: P / 8": 10**12, "DeepSpeed's, 5e8": DEEPSPEED_BUCKET, "here, 2.5e8": LARGEST_BUCKET}
RESULT = Path(__file__).with_name("results") / "bucket_cap.md"
_GRADIENT_BYTES, _MIB = 4, 2**20


@dataclass(frozen=True)
class Curve:
    """Bus bandwidth of all-reduce by payload: points of MiB and 10^9 byte/s."""

    link: str
    ranks: int
    points: Sequence[tuple[float, float]]

    def seconds(self, payload_bytes: int) -> float:
        """Return what one all-reduce takes; beyond the curve's ends its last value holds."""
        rank_share = 2 * (self.ranks - 1) / self.ranks
        return rank_share * payload_bytes / (self._bandwidth(payload_bytes / _MIB) * 1e9)

    def _bandwidth(self, mib: float) -> float:
        (low, slowest), *_, (high, fastest) = self.points
        if mib <= low or mib >= high:
            return slowest if mib <= low else fastest
        pairs = zip(self.points, self.points[1:], strict=False)
        (a, slow), (b, fast) = next(pair for pair in pairs if mib <= pair[1][0])
        return slow + (fast - slow) * log(mib / a) / log(b / a)


def load_curves() -> list[Curve]:
    """Return the published curves."""
    with Path(__file__).with_name("published_all_reduce.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        Curve(link, ranks, [(float(r["payload_mib"]), float(r["busbw_gb_per_s"])) for r in some])
        for (link, ranks), some in groupby(rows, lambda row: (row["link"], int(row["ranks"])))
    ]


def payloads(sizes: ModelSizes) -> Iterator[int]:
    """Yield the elements of each all-reduce of one reduction, in the order of the backward pass."""
    limit, held = bucket_elements(sizes), 0
    for tensor in reversed(model_tensors(sizes)):
        if held and held + tensor.elements > limit:
            yield held
            held = 0
        held += tensor.elements
    yield held


def table() -> list[str]:
    """Return the Markdown table."""
    curves = load_curves()
    links = " | ".join(f"reduction, {curve.link}" for curve in curves)
    lines = [f"| ZeRO-2, bf16 | largest bucket | calls | buffers | {links} |"]
    lines += ["| --- " * (4 + len(curves)) + "|"]
    for name, (sizes, ranks) in MODELS.items():
        uncapped_s = [0.0 for _ in curves]
        for cap, elements in CAPS.items():
            with patch.object(deepspeed_config, "LARGEST_BUCKET", elements):
                calls = [_GRADIENT_BYTES * count for count in payloads(sizes)]
                buffers = _buffer_bytes(sizes, ranks)
            taken_s = [sum(map(curve.seconds, calls)) for curve in curves]
            uncapped_s = uncapped_s if any(uncapped_s) else taken_s
            times = " | ".join(
                f"{s:.2f} s ({s / first - 1:+.1%})"
                for s, first in zip(taken_s, uncapped_s, strict=True)
            )
            lines.append(f"| {name} | {cap} | {len(calls)} | {buffers / GIB:.1f} GiB | {times} |")
    return lines


def _buffer_bytes(sizes: ModelSizes, ranks: int) -> int:
    settings = StepSettings(
        sizes=sizes,
        strategy="zero2",
        accumulation="sharded",
        world_size=ranks,
        grad_accum_steps=2,
        activation_checkpointing=True,
    )
    return estimate_peak(settings).parts["communication"]


def page() -> str:
    """Return the whole file."""
    return "\n".join(["# What a cap on ZeRO's buckets costs", "", _EXPLAINED, "", *table(), ""])


_EXPLAINED = """\
Times of one reduction of all gradients, computed from published all-reduce curves
(`benchmarks/published_all_reduce.csv`), not measured here; the number of ranks changes them little.
Stages 1 and 2 wait for it at every micro-step that reduces."""


if __name__ == "__main__":
    RESULT.write_text(page())
