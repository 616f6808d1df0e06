"""What one unit of each kind of work takes on a device, and how much of each a step has.

    seconds = flops of products / rate + flops of attention / rate + bytes moved / bandwidth
              + launches x latency + bytes of overlapped collectives / rate

Products, attention and what goes element by element all move bytes, so a product of a small shape
takes longer per operation than a large one (the roofline of Williams et al. 2009, its two parts
added: kernels do not overlap one another). The last term is what kernels lose to collectives beside
them, which take multiprocessors and memory bandwidth.
"""

from typing import NamedTuple

from toolkit.program.events import Collective, Compute, Program


class Amounts(NamedTuple):
    """Work of one step on one rank.

    Attributes:
        launches: modules that compute, in each pass.
        collective_bytes: payload of collectives that do not block, twice for an all-reduce.
    """

    matmul_flops: float
    attention_flops: float
    moved_bytes: float
    launches: float
    collective_bytes: float


class Costs(NamedTuple):
    """Seconds per unit of `Amounts`, in the same order."""

    matmul_s: float
    attention_s: float
    moved_s: float
    launch_s: float
    collective_s: float

    def compute_s(self, event: Compute) -> float:
        """Return the seconds of one module, with nothing beside it."""
        per_flop = self.attention_s if event.kind == "attention" else self.matmul_s
        return event.flops * per_flop + event.bytes * self.moved_s + self.launch_s

    def taken_s(self, collective: Collective) -> float:
        """Return the seconds that a collective takes from the kernels beside it."""
        return self.collective_s * _sent(collective)

    def slower(self, factor: float) -> "Costs":
        """Return costs that are all `factor` times as high."""
        return Costs(*(factor * each for each in self))


def amounts_of(program: Program) -> Amounts:
    """Return what a step has of each kind of work."""
    matmul = attention = moved = launches = collective = 0
    for section in program.sections:
        for event in section.events:
            if isinstance(event, Compute):
                attention += section.times * event.flops * (event.kind == "attention")
                matmul += section.times * event.flops * (event.kind != "attention")
                moved += section.times * event.bytes
                launches += section.times
            elif isinstance(event, Collective) and not event.blocks:
                collective += section.times * _sent(event)
    return Amounts(matmul, attention, moved, launches, collective)


def seconds_by_kind(program: Program, costs: Costs) -> dict[str, float]:
    """Return the seconds of each kind of module in a step."""
    found: dict[str, float] = {}
    for section in program.sections:
        for event in section.events:
            if isinstance(event, Compute):
                seconds = section.times * costs.compute_s(event)
                found[event.kind] = found.get(event.kind, 0.0) + seconds
    return found


def _sent(collective: Collective) -> int:
    """An all-reduce passes its payload twice: it is reduced, then gathered."""
    return collective.bytes * (2 if collective.kind == "all_reduce" else 1)
