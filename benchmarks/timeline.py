"""Two clocks, of what computes and of what communicates, and what a step moves them by. Pure.

One process group carries out its collectives one after another, in the order in which they are
started. What waits for one stands still until it is over; what does not is overlapped. On CPUs the
backend's threads need cores, too (`Timeline.start`); what a GPU's collectives take from the kernels
beside them is not in the model.
"""

from dataclasses import dataclass

from benchmarks.machine_profile import Kind, MachineProfile


@dataclass(frozen=True)
class Compute:
    """Seconds that one rank computes, communication left out.

    Attributes:
        forward_s: of one micro-step.
        backward_s: of one micro-step.
        update_s: clipping and optimizer, once per step.
    """

    forward_s: float
    backward_s: float
    update_s: float

    def scaled(self, factor: float) -> "Compute":
        """Return the same for `factor` times the tokens per micro-step: both passes follow."""
        return Compute(self.forward_s * factor, self.backward_s * factor, self.update_s)


class Timeline:
    """Where computation and communication of one rank have got to.

    Attributes:
        now_s: the computation's clock.
        network_s: when the last collective that was started is over.
        communication_s: of all collectives together.
        exposed_s: of which the computation stood still.
        carried: kind and payload in bytes of each collective, in order.
    """

    def __init__(self, profile: MachineProfile) -> None:
        self.profile = profile
        self.busy_cores = _busy_cores(profile)
        self.now_s = 0.0
        self.network_s = 0.0
        self.communication_s = 0.0
        self.exposed_s = 0.0
        self.carried: list[tuple[Kind, int]] = []

    def compute(self, seconds: float) -> None:
        """Compute for a while."""
        self.now_s += seconds

    def start(self, kind: Kind, payload_bytes: int) -> float:
        """Start a collective without waiting for it; return when it will be over.

        What a backend's threads compute meanwhile is taken from the computation where no core is
        left for them.
        """
        over_s = self._carry_out(kind, payload_bytes)
        cpu_s_per_byte = self.profile.collectives[kind].cpu_s_per_byte or 0.0
        self.compute(self.busy_cores * cpu_s_per_byte * payload_bytes)
        return over_s

    def block(self, kind: Kind, payload_bytes: int) -> float:
        """Carry out a collective and stand still meanwhile; return when it is over."""
        over_s = self._carry_out(kind, payload_bytes)
        self.wait(over_s)
        return over_s

    def wait(self, until_s: float) -> None:
        """Stand still until then, unless it is past."""
        self.exposed_s += max(0.0, until_s - self.now_s)
        self.now_s = max(self.now_s, until_s)

    def _carry_out(self, kind: Kind, payload_bytes: int) -> float:
        seconds = self.profile.collectives[kind].seconds(payload_bytes)
        self.communication_s += seconds
        self.carried.append((kind, payload_bytes))
        self.network_s = max(self.network_s, self.now_s) + seconds
        return self.network_s


def _busy_cores(profile: MachineProfile) -> float:
    """Return the share of a rank's communication threads that has no core of its own, 0 to 1."""
    environment = profile.environment
    free = environment.cores - profile.world_size * environment.threads
    return 1 - min(1.0, max(0.0, free / profile.world_size))
