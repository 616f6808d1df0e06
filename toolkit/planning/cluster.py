"""A cluster: GPUs, how many there are on a machine, their links, price and power.

`clusters/` has a file for each of some well-known machines, with its sources; one of one's own has
the same keys.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from pydantic import Field, ValidationError

from toolkit.config.problems import describe_problems, dotted_keys
from toolkit.config.section import NonEmpty, Section
from toolkit.config.strict_yaml import load_yaml_mapping
from toolkit.counted import counted
from toolkit.errors import UsageError
from toolkit.memory.hardware import Gpu, find_gpu
from toolkit.prediction.calibration import Here
from toolkit.prediction.devices import DeviceSpeed, find_speed
from toolkit.prediction.machine_profile import MachineProfile
from toolkit.program.settings import Device

_SHIPPED = Path(__file__).with_name("clusters")
_BITS = {"mbit": 1e6, "gbit": 1e9, "tbit": 1e12}


class ClusterFile(Section):
    """The keys of a cluster's file."""

    gpu: NonEmpty
    """As `--gpu` takes it."""
    per_machine: int = Field(ge=1, le=1_000_000)
    """GPUs on a machine."""
    machines: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many machines there are; `--gpus` takes another number of them."""
    within: NonEmpty | None = None
    """Bus bandwidth of a ring inside a machine; the GPU's own where not given."""
    between: NonEmpty | None = None
    """Rate of a machine's link to the others, in each direction."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0.0)
    """In any one currency."""
    watts_per_gpu: float | None = Field(default=None, gt=0.0)
    """Rated power of a GPU."""
    sources: list[NonEmpty] = Field(default_factory=list)
    """Where these figures are from."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs and how they are linked.

    Attributes:
        speed: by its data sheet and published training; None for the machine at hand, which has a
            profile.
        between: a machine's rate to the others in bytes per second; None where it is not known.
        price_per_gpu_hour: None where it is not known.
        watts_per_gpu: rated power; None where it is not known.
    """

    gpu: Gpu
    speed: DeviceSpeed | None
    gpus: int
    per_machine: int
    between: float | None
    price_per_gpu_hour: float | None = None
    watts_per_gpu: float | None = None
    here: Here | None = None
    profile: MachineProfile | None = None

    @property
    def device(self) -> Device:
        """What a step runs on."""
        is_cpu = self.profile is not None and self.profile.environment.device == "cpu"
        return "cpu" if is_cpu else "cuda"

    @property
    def peak_flops(self) -> float:
        """Dense operations per second: the data sheet's, or those of large measured products."""
        if self.profile is not None:
            return self.profile.matmul_flops_per_s
        assert self.speed is not None
        return self.speed.peak_flops

    @property
    def is_one_machine(self) -> bool:
        """Whether nothing crosses a link between machines."""
        return self.gpus <= self.per_machine

    def describe(self) -> str:
        """Return the cluster in one line."""
        if self.profile is not None:
            when = self.profile.environment.started_at
            return f"{counted(self.gpus, 'rank')} on this machine, {self.gpu.name}, measured {when}"
        words = f"{self.gpus:,} {self.gpu.name}"
        if self.is_one_machine or self.between is None:
            return f"{words} on one machine"
        return f"{words}, {self.per_machine} per machine, {8 * self.between / 1e9:g} Gbit/s between"


def parse_rate(text: str, name: str = "--between-machines") -> float:
    """Return a rate in bytes per second from `400Gbit`.

    Raises:
        UsageError: it is no rate; the message has the option or key by its `name`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([gmt]bit)(?:/s)?", text.strip().lower())
    if not found or not float(found[1]):
        raise UsageError(f"{name}: '{text}' is no rate such as 400Gbit or 800Mbit")
    return float(found[1]) * _BITS[found[2]] / 8


def shipped_clusters() -> list[str]:
    """Return the names of the machines that are known."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_cluster_file(name: str) -> ClusterFile:
    """Return the keys of a shipped machine or of a file.

    Raises:
        UsageError: there is no such machine or file, or one line for each key that is wrong.
    """
    path = _SHIPPED / f"{name}.yaml"
    if name not in shipped_clusters():
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            raise UsageError(f"--cluster {name}: {_nearest(name)}, and paths of YAML files")
    try:
        return ClusterFile.model_validate(load_yaml_mapping(path))
    except ValidationError as error:
        problems = describe_problems(error, dotted_keys(ClusterFile), lambda _: str(path), {})
        raise UsageError("\n".join(problems)) from None


def _nearest(name: str) -> str:
    near = get_close_matches(name, shipped_clusters(), n=3, cutoff=0.4)
    return f"there are {', '.join(near or shipped_clusters())}"


def build_cluster(
    file: ClusterFile, *, gpus: int | None, per_machine: int | None, between: str | None
) -> Cluster:
    """Return the cluster of a file, with what was given beside it in place of its own keys.

    Raises:
        UsageError: the GPU or its speed is not known, a rate is none, the GPUs do not fill whole
            machines, or several machines have no link.
    """
    gpu = find_gpu(file.gpu)
    speed = find_speed(gpu.name)
    if file.within is not None:
        speed = replace(speed, link_bytes_per_s=parse_rate(file.within, "within"))
    machine = per_machine or file.per_machine
    count = gpus or machine * (file.machines or 1)
    link = between or file.between
    if count > machine and count % machine:
        raise UsageError(_unfilled(count, machine))
    if count > machine and link is None:
        raise UsageError(
            f"{count} GPUs are {count // machine} machines of {machine}; give the link of a "
            "machine to the others, such as --between-machines 400Gbit, or --cluster with one of "
            f"{', '.join(shipped_clusters())}"
        )
    return Cluster(
        gpu=gpu,
        speed=speed,
        gpus=count,
        per_machine=machine,
        between=None if link is None else parse_rate(link),
        price_per_gpu_hour=file.price_per_gpu_hour,
        watts_per_gpu=file.watts_per_gpu,
    )


def _unfilled(gpus: int, per_machine: int) -> str:
    below = gpus // per_machine * per_machine
    return (
        f"{gpus} GPUs do not fill machines of {per_machine}; take --gpus {below} or "
        f"{below + per_machine}, or set --per-machine"
    )
