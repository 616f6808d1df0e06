"""One measured step as an anchor: it scales computation, and names which part it changed."""

from dataclasses import dataclass

from toolkit.errors import UsageError
from toolkit.prediction.costs import Costs
from toolkit.prediction.step_time import predict
from toolkit.program.events import Program
from toolkit.program.readers.seconds import Network

FACTORS = (1 / 64, 64.0)
"""Between which computation is scaled; what lies beyond is another machine."""
HALVINGS = 50
"""Of the interval of factors, after which it is narrower than a float distinguishes."""


@dataclass(frozen=True)
class Anchor:
    """A measured step and what makes the model give it.

    Attributes:
        factor: by which computation takes longer than its costs.
        measured_s: the step.
        predicted_s: the same step without the anchor.
        computed_s: of the measured step, what is not exposed communication.
    """

    factor: float
    measured_s: float
    predicted_s: float
    computed_s: float

    def scaled(self, costs: Costs) -> Costs:
        """Return costs with the anchor's computation; what collectives take is left."""
        return costs.slower(self.factor)._replace(collective_s=costs.collective_s)

    def describe(self) -> str:
        """Return in a sentence which part changed, and by how much."""
        step = f"{1e3 * self.predicted_s:,.0f} ms predicted, {1e3 * self.measured_s:,.0f} measured"
        return (
            f"anchor: {step}; computation ({self.computed_s / self.measured_s:.0%} of the step) "
            f"takes {self.factor:.2f} x the calibrated time; links are as they were"
        )


def anchor(program: Program, costs: Costs, network: Network, measured_s: float) -> Anchor:
    """Return the anchor under which a step's prediction is what was measured.

    Args:
        program: the measured step's.
        costs: of the device, as calibrated, or as on its data sheet.
        network: its links, which the anchor leaves as they are.
        measured_s: seconds of the step.

    Raises:
        UsageError: no factor from 1/64 to 64 gives the measured step.
    """

    def scaled(factor: float) -> Anchor:
        step = predict(program, Anchor(factor, 0, 0, 0).scaled(costs), network)
        return Anchor(factor, step.step_s, unscaled_s, step.step_s - step.exposed_s)

    unscaled_s = predict(program, costs, network).step_s
    low, high = FACTORS
    if not scaled(low).measured_s <= measured_s <= scaled(high).measured_s:
        raise UsageError(
            f"the measured step of {1e3 * measured_s:,.1f} ms is none of this configuration: "
            f"{1e3 * unscaled_s:,.1f} ms are predicted, {1e3 * scaled(low).measured_s:,.1f} ms "
            "with next to no computation"
        )
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if scaled(middle).measured_s < measured_s else (low, middle)
    return scaled(high)
