"""What a machine's communication and arithmetic can do: `profile.json`, from which steps are
predicted. Needs no torch.

A payload is the whole tensor that a rank takes part in, as `toolkit.engines.collectives` and
nccl-tests count it.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import log
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.engines.traffic import EngineKind
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.program.events import Kind

KINDS: tuple[EngineKind, ...] = get_args(EngineKind)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Model):
    """Where and when; `git` is None outside a checkout, `started_at` UTC in ISO 8601."""

    versions: dict[str, str]
    device: str
    cpu: str
    cores: int
    threads: int
    git: dict[str, Any] | None
    started_at: str


class Point(_Model):
    """One payload.

    Attributes:
        seconds: mean over all calls but the slowest tenth; on a CPU each comes after computation
            and is the mean of the ranks, on GPUs each is as long as on its slowest rank.
        spread: (third quartile - first quartile) / median of the same.
        cpu_s: processor seconds that one rank's process takes in a call; None on GPUs.
    """

    bytes: int
    seconds: float
    spread: float
    cpu_s: float | None = None


class Curve(_Model):
    """One kind of collective: what was measured, and a line through it.

    The line, t = latency + bytes / rate, sums a curve up in two numbers; times are read off the
    measured points, which know of switches between algorithms, of buckets and of buffers.

    Attributes:
        points: of growing payload, at least two.
        bytes_per_s: payload per second once under way ("algorithm bandwidth").
        cpu_s_per_byte: processor seconds of one rank per byte of payload; None on GPUs.
    """

    points: tuple[Point, ...] = Field(min_length=2)
    latency_s: float
    bytes_per_s: float
    cpu_s_per_byte: float | None = None

    def seconds(self, payload_bytes: float) -> float:
        """Return the time of one call: between points straight, beyond the last by the rate."""
        first, last = self.points[0], self.points[-1]
        if payload_bytes <= first.bytes:
            return first.seconds
        if payload_bytes >= last.bytes:
            return last.seconds + (payload_bytes - last.bytes) / self.bytes_per_s
        below, above = next(
            (a, b) for a, b in pairwise(self.points) if a.bytes <= payload_bytes <= b.bytes
        )
        share = (payload_bytes - below.bytes) / (above.bytes - below.bytes)
        return below.seconds + share * (above.seconds - below.seconds)


class WorkPoint(_Model):
    """One pass of one module, of one shape.

    Attributes:
        flops, bytes: as a step's program counts them (`toolkit.program.work`).
        seconds: median over calls, while all ranks do the same.
    """

    kind: Kind
    flops: int
    bytes: int
    seconds: float


class MicroStep(_Model):
    """Both passes of a whole model without an engine, measured like a `WorkPoint`."""

    sizes: ModelSizes
    micro_batch_size: int
    seq_len: int
    forward_s: float
    backward_s: float


class MachineProfile(_Model):
    """All that was measured, with where and how.

    Attributes:
        environment: what the calibration holds for: device and torch version.
        backend: `nccl` or `gloo`.
        link_mbit_per_s: rate of the link between the ranks; None where it is the machine's own.
        matmul_flops_per_s: of one rank, while all ranks multiply.
        work: modules by shape, on one rank while all compute; none in a profile of links alone.
        micro_steps: of small models; none likewise.
    """

    environment: Environment
    world_size: int
    backend: str
    link_mbit_per_s: float | None
    collectives: dict[EngineKind, Curve]
    matmul_flops_per_s: float
    work: tuple[WorkPoint, ...] = ()
    micro_steps: tuple[MicroStep, ...] = ()


def fit_curve(points: Sequence[Point]) -> Curve:
    """Return measured points with the line that has the least sum of errors in log time.

    The latency-and-rate model of Hockney 1994 ("The communication challenge for MPP"). Errors are
    ratios, since payloads span orders of magnitude, and not squared, so that a few points off the
    line (a payload that a token bucket lets pass, a call that was disturbed) do not bend it. The
    line is one through two of the points.

    Raises:
        ValueError: no two points grow together.
    """

    def error(line: tuple[float, float]) -> float:
        latency_s, bytes_per_s = line
        return sum(abs(log((latency_s + p.bytes / bytes_per_s) / p.seconds)) for p in points)

    lines = [line for pair in combinations(points, 2) if (line := _line_through(*pair))]
    if not lines:
        raise ValueError("times do not grow with the payload")
    latency_s, bytes_per_s = min(lines, key=error)
    largest = points[-1]
    return Curve(
        points=tuple(points),
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        cpu_s_per_byte=None if largest.cpu_s is None else largest.cpu_s / largest.bytes,
    )


def _line_through(lower: Point, upper: Point) -> tuple[float, float] | None:
    """Return latency, at least 0, and rate; None for a line that falls."""
    if upper.seconds <= lower.seconds:
        return None
    bytes_per_s = (upper.bytes - lower.bytes) / (upper.seconds - lower.seconds)
    return max(0.0, lower.seconds - lower.bytes / bytes_per_s), bytes_per_s


def bus_factor(kind: EngineKind, world_size: int) -> float:
    """Return bus bandwidth per algorithm bandwidth: what the slowest wire carries per payload byte.

    nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n for all-reduce, (n - 1) / n for the other two.
    """
    passes = 2 if kind == "all_reduce" else 1
    return passes * (world_size - 1) / world_size


def read_profile(path: Path) -> MachineProfile:
    """Read a profile.

    Raises:
        UsageError: it is missing or something else; the message names the file and the key.
    """
    try:
        return MachineProfile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path}: not a machine profile: {key}: {first['msg']}") from None
