"""How far a case may be from the exact update: as far as rounding alone can take it.

The same steps are computed twice more in one process: in fp64, which counts as exact, and in the
case's precision as plain PyTorch computes it. The distance between those two is the rounding error
of this model, this data and this number of steps. A worker does the same arithmetic and differs in
the order of its additions, over A micro-steps and N ranks, so its error is another draw of it.

Only the gradient's norm is not plain PyTorch's. On a CPU that one is wrong by more than rounding
where tensors are large (`toolkit.engines.norm`), and what may be wrong cannot be the measure: the
squares are added in fp64 here too, and how far PyTorch's own norm is from that is shown beside it.

Rounding errors of n additions in any order are bounded by (n - 1) u sum|x| (Higham 2002, Accuracy
and Stability of Numerical Algorithms, section 4.2), and behave like sqrt(n) u times that in
practice; cutting a sum into A N parts leaves n as it is. The largest of a few dozen such draws
stays within a small multiple of one: `DRAWS`. Faults are of another size altogether: a gradient
averaged twice is off by a factor, not by a few times 1e-7.

Engines that hold the whole module in bf16 also round the residual stream, once a branch, which
autocast keeps in fp32. That makes more roundings of the same size, which `DRAWS` covers.
"""

import math
from dataclasses import dataclass

import torch

from toolkit.engines.strategies import Precision
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import Case
from toolkit.verify.compare import Difference, compare
from toolkit.verify.reference import Trajectory, reference_trajectory

DRAWS = 8.0
ROUNDOFF: dict[Precision, float] = {"fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-12}
"""Half the distance from 1 to the next number of the precision (IEEE 754-2019, table 3.5)."""


@dataclass(frozen=True)
class Yardstick:
    """The exact trajectory of a case and the distance from it that rounding explains.

    Attributes:
        torch_norm_max_rel: how far from the exact norms those are that PyTorch's own clipping would
            find. Nothing is measured by it: it may itself be wrong.
    """

    exact: Trajectory
    rounding: Difference
    torch_norm_max_rel: float

    def limit(self, name: str, precision: Precision, extra: float = 0.0) -> float:
        """Return the largest admissible value of a `Difference` field.

        Args:
            name: the field.
            precision: of the case.
            extra: `reduction_error` of the case.

        Never below a few units of the precision itself: the rounding error of one quantity can by
        chance be nearly zero. The norm that a case finds of its own gradient is fp32's business
        under every precision, for that is what gradients are held in.
        """
        precision = "fp32" if name == "own_norm_rel" else precision
        floor = 4 * ROUNDOFF[precision]
        scale = max(self.exact.losses) if name == "loss_max_abs" else 1.0
        extra = 0.0 if name == "own_norm_rel" else extra
        return DRAWS * (max(getattr(self.rounding, name), floor * scale) + extra * scale)


def reduction_error(case: Case, *, world_size: int) -> float:
    """Return the relative error that a case's reduction adds to the averaged gradient.

    What is rounded once before fp32 adds it up, each rank's and micro-step's gradient by itself, is
    off by at most u, the roundoff of bf16: independent errors u |g_i| add up to
    u sqrt(sum |g_i|^2), which is u |sum g_i| where the g_i are noise about a mean and less where
    they agree. A sum in bf16 is rounded anew with each of its terms, over N ranks and, held in bf16
    or averaged again into one bucket, over A micro-steps: sqrt(n) u for n roundings, as above. A
    micro-step's gradient that is bf16 already, as FSDP2's, is not rounded.
    """
    is_exact = case.precision == "bf16" and case.accumulation in ("sharded", "deferred")
    if case.reduce in (None, "fp32") or (case.reduce == "bf16-fp32sum" and is_exact):
        return 0.0
    roundings = case.grad_accum_steps + world_size if case.reduce == "bf16" else 1
    return math.sqrt(roundings) * ROUNDOFF["bf16"]


def yardstick(case: Case, sizes: ModelSizes) -> Yardstick:
    """Compute the exact trajectory of a case and the rounding error of its precision."""
    exact = reference_trajectory(case, sizes, dtype=torch.float64)
    rounded = reference_trajectory(case, sizes, dtype=torch.float32)
    norms = zip(rounded.torch_grad_norms, exact.grad_norms, strict=True)
    return Yardstick(
        exact, compare(rounded, exact), torch_norm_max_rel=max(abs(a / b - 1) for a, b in norms)
    )


COMPARED = (
    "gradient_max_rel",
    "own_norm_rel",
    "grad_norm_max_rel",
    "loss_max_abs",
    "param_max_rel",
)
"""Fields of a `Difference` that have a limit, nearest to where a fault would begin first."""
