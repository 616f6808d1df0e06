"""What an arm did in one case, as files between its processes and the command that judges it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from toolkit.engines.traffic import KINDS, Kind, Traffic
from toolkit.verify.reference import Trajectory


@dataclass(frozen=True)
class Outcome:
    """What an arm did in one case.

    Attributes:
        traffic: of its last step by kind, without payloads as small as a vector of norms.
        held_gradient_bytes: between the last step's micro-steps, on the rank that holds most; None
            with only one micro-step.
        held_gradient_dtypes: of those, on rank 0.
        replica_groups: groups of ranks that should hold the same bits and were compared.
        replica_problems: sentences about ranks that should hold the same bits and do not.
    """

    trajectory: Trajectory
    traffic: dict[Kind, Traffic]
    held_gradient_bytes: int | None
    held_gradient_dtypes: list[str]
    replica_groups: int
    replica_problems: list[str]


def write_outcome(stem: Path, outcome: Outcome) -> None:
    """Write `stem`.json and two safetensors files beside it."""
    did = outcome.trajectory
    figures = {
        "losses": did.losses,
        "grad_norms": did.grad_norms,
        "traffic": {kind: asdict(traffic) for kind, traffic in outcome.traffic.items()},
        "held_gradient_bytes": outcome.held_gradient_bytes,
        "held_gradient_dtypes": outcome.held_gradient_dtypes,
        "replica_groups": outcome.replica_groups,
        "replica_problems": outcome.replica_problems,
    }
    stem.with_suffix(".json").write_text(json.dumps(figures))
    for part, tensors in (("gradients", did.gradients), ("parameters", did.parameters)):
        whole = {name: tensor.float().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(whole, stem.with_name(f"{stem.name}.{part}.safetensors"))


def read_outcome(stem: Path) -> Outcome:
    """Return what an arm left under this name."""
    figures = json.loads(stem.with_suffix(".json").read_text())
    gradients, parameters = (
        load_file(stem.with_name(f"{stem.name}.{part}.safetensors"))
        for part in ("gradients", "parameters")
    )
    return Outcome(
        Trajectory(figures["losses"], figures["grad_norms"], gradients, parameters),
        {kind: _traffic(figures["traffic"][kind]) for kind in KINDS},
        held_gradient_bytes=figures["held_gradient_bytes"],
        held_gradient_dtypes=figures["held_gradient_dtypes"],
        replica_groups=figures["replica_groups"],
        replica_problems=figures["replica_problems"],
    )


def _traffic(figures: dict[str, int | list[int]]) -> Traffic:
    sizes = figures.pop("group_sizes")
    assert isinstance(sizes, list)
    return Traffic(group_sizes=tuple(sizes), **figures)  # type: ignore[arg-type]
