"""What a whole run takes: time, GPU-hours, price and energy."""

from collections.abc import Iterator

from toolkit.planning.answer import PlanRow

_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def describe_run(row: PlanRow, tokens: int) -> str:
    """Return hours, GPU-hours, price and kWh of a run of so many tokens, as far as they are known.

    Energy is the GPUs' alone at their rated power; hosts, network and cooling are not in it.
    """
    hours = [tokens / row.tokens_per_step * seconds / 3600 for seconds in row.step_s]
    return f"{tokens:,} tokens: " + ", ".join(_parts(row, hours))


def _parts(row: PlanRow, hours: list[float]) -> Iterator[str]:
    cluster = row.cluster
    gpu_hours = [cluster.gpus * each for each in hours]
    yield f"{span(hours)} hours"
    yield f"{span(gpu_hours)} GPU-hours"
    if cluster.price_per_gpu_hour is not None:
        price = cluster.price_per_gpu_hour
        yield f"{span([price * each for each in gpu_hours])} at {price:g} per GPU-hour"
    if cluster.watts_per_gpu is not None:
        watts = cluster.watts_per_gpu
        energy = span([watts / 1e3 * each for each in gpu_hours])
        yield f"{energy} kWh of GPUs at their rated {watts:g} W"


def span(ends: list[float]) -> str:
    """Return a range, or one number where both ends round to the same."""
    low, high = (f"{end:,.0f}" if end >= 100 else f"{end:.3g}" for end in ends)
    return low if low == high else f"{low} to {high}"
