"""What an engine computes around its collectives: hooks, copies into buckets and out of buffers.

    seconds = tensors x tensor_s + bytes x byte_s

for each collective, whose tensors are its share of the model's: a payload of half a model's bytes
is half of its tensors. `engines.csv` is written by `python -m benchmarks.engine_costs` from models
of other shapes than any prediction is judged on, for one device and torch version.
"""

import csv
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from toolkit.engines.strategies import Strategy
from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import model_tensors
from toolkit.prediction.machine_profile import Environment
from toolkit.program.events import Collective

LIKE: dict[Strategy, Strategy] = {
    "hsdp": "fsdp2",
    "fsdp2_no_reshard": "fsdp2",
    "zero1": "zero2",
}
"""Strategies whose hooks are another's."""


@dataclass(frozen=True)
class EngineCosts:
    """Seconds of reducing and of gathering, per tensor and per byte of payload."""

    reduce_tensor_s: float
    reduce_byte_s: float
    gather_tensor_s: float
    gather_byte_s: float

    def seconds(self, collective: Collective, sizes: ModelSizes) -> float:
        """Return what the engine computes around one call."""
        tensors = tensors_in(collective, sizes)
        if collective.kind == "all_gather":
            return tensors * self.gather_tensor_s + collective.bytes * self.gather_byte_s
        return tensors * self.reduce_tensor_s + collective.bytes * self.reduce_byte_s


def tensors_in(collective: Collective, sizes: ModelSizes) -> float:
    """Return a collective's share of the model's tensors."""
    passes = collective.bytes / (collective.width * sizes.parameter_count)
    return passes * tensor_count(sizes)


@cache
def tensor_count(sizes: ModelSizes) -> int:
    """Return how many trainable tensors a model has."""
    return len(model_tensors(sizes))


def find_engine_costs(strategy: Strategy, environment: Environment) -> EngineCosts | None:
    """Return an engine's costs on a device and torch version, or None where none were measured."""
    named = LIKE.get(strategy, strategy)
    key = (processor(environment), torch_release(environment), named)
    return _read().get(key)


def processor(environment: Environment) -> str:
    """Return the name of what computes."""
    return environment.cpu if environment.device == "cpu" else environment.device


def torch_release(environment: Environment) -> str:
    """Return torch's release without the build: `2.13.0`."""
    return environment.versions.get("torch", "").partition("+")[0]


@cache
def _read() -> dict[tuple[str, str, str], EngineCosts]:
    with Path(__file__).with_name("engines.csv").open() as file:
        return {
            (row["device"], row["torch"], row["strategy"]): EngineCosts(
                **{each.name: float(row[each.name]) for each in fields(EngineCosts)}
            )
            for row in csv.DictReader(file)
        }
