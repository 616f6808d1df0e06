"""What the loop reports about memory: before a run, after it, and when there was not enough."""

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.memory.hardware import with_unit
from toolkit.memory.report import describe_parts
from toolkit.program.readers.peak import Peak
from toolkit.program.settings import Device, settings_of_run
from toolkit.program.step import estimate_peak


def estimate_run(config: RunConfig, launched: Launched, *, device_type: str) -> Peak:
    """Return the estimate for the run that was launched, on the kind of device it is on."""
    device: Device = "cuda" if device_type == "cuda" else "cpu"
    settings = settings_of_run(
        config,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
        device=device,
    )
    return estimate_peak(settings)


def warning_before(estimate: Peak, available: int) -> str | None:
    """Return a sentence if the estimate exceeds the device, else None.

    Args:
        estimate: of one rank.
        available: bytes that this rank may allocate.
    """
    if estimate.total <= available:
        return None
    return (
        f"warning: the estimate of {with_unit(estimate.total)} per rank exceeds the "
        f"{with_unit(available)} there are: {describe_parts(estimate.parts)}; "
        f"{what_to_lower(estimate)}"
    )


def comparison_after(estimate: Peak, measured: int) -> str:
    """Return the line at the end of a run."""
    expected = with_unit(estimate.total)
    found = f"difference {estimate.total / measured - 1:+.2%}"
    if estimate.least < estimate.total:
        expected = f"{with_unit(estimate.least)} to {expected}"
        is_inside = estimate.least <= measured <= estimate.total
        found = "inside that range" if is_inside else "outside that range"
    return (
        f"memory     estimated {expected}, measured {with_unit(measured)}, {found}; "
        f"estimated peak at {estimate.moment}: {describe_parts(estimate.parts)}"
    )


def what_to_lower(estimate: Peak) -> str:
    """Return the advice that follows from the largest part."""
    largest = max(estimate.parts, key=lambda part: estimate.parts[part])
    if largest == "loss":
        return "set model.loss: chunked or lower batch.micro_batch_size"
    if largest == "activations":
        return "lower batch.micro_batch_size or set model.activation_checkpointing: true"
    return "use more ranks with fsdp2 or zero3, accumulation: sharded, or a smaller model"
