"""What the workers of a launch are given, and what they find, as files that `torch.save` writes."""

from dataclasses import dataclass

from toolkit.engines.traffic import Kind, Traffic
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import Case
from toolkit.verify.controls import Control
from toolkit.verify.reference import Trajectory

FOUND = "found.pt"
"""Beside the file of a `Work`: an outcome for each case, and for each control its outcome or the
sentence that refused it."""


@dataclass(frozen=True)
class Work:
    """What one launch does, one after another in the same processes."""

    cases: list[Case]
    controls: list[Control]
    sizes: ModelSizes
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """What was found in one case.

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
