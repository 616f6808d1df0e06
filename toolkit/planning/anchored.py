"""A measured run as an anchor of a GPU's speed."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import UsageError
from toolkit.planning.cluster import Cluster
from toolkit.prediction.anchor import Anchor, anchor
from toolkit.prediction.costs import Costs
from toolkit.prediction.devices import DeviceSpeed, Shares
from toolkit.prediction.network import RingNetwork
from toolkit.program.step import write_step
from toolkit.runs.explain import settings_of_record
from toolkit.runs.record import read_run


@dataclass(frozen=True)
class AnchoredSpeed(DeviceSpeed):
    """A GPU whose computation takes what it took in a measured run."""

    anchor: Anchor

    def costs(self, shares: Shares) -> Costs:
        """Return the seconds of a unit of work."""
        return self.anchor.scaled(super().costs(shares))


def anchored(cluster: Cluster, path: Path) -> AnchoredSpeed:
    """Return the cluster's GPU as a run on it was measured.

    Args:
        cluster: with the GPU and the links that the run had.
        path: the run's folder, or its configuration.

    Raises:
        UsageError: it is no run that has trained, it ran on another device, or its step is none
            that the model can give.
    """
    run = read_run(path)
    step_s = run.summary.get("step_s") if run.summary else None
    if not run.launch or not step_s:
        raise UsageError(f"--measured {path}: holds no run with a measured step; train it first")
    speed = cluster.speed
    if speed is None:
        raise UsageError("--measured: with --here the machine itself is measured; give one of both")
    names = run.environment["devices"].get("names") or ["an unknown device"]
    if names[0] not in (*cluster.gpu.reported_as, cluster.gpu.name):
        raise UsageError(f"--measured {path}: ran on {names[0]}, not on {cluster.gpu.name}")
    settings = settings_of_record(run)
    network = RingNetwork(settings, cluster.per_machine, speed.link_bytes_per_s, cluster.between)
    costs = speed.costs(speed.nearest_use.middle)
    found = anchor(write_step(settings), costs, network, step_s)
    return AnchoredSpeed(**vars(speed), anchor=found)
