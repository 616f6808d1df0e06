"""How many ranks there are, and how they lie on machines."""

from dataclasses import dataclass

from toolkit.engines.strategies import Strategy, replica_groups
from toolkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks on machines of one size."""

    world_size: int
    per_machine: int

    def of(self, strategy: Strategy) -> int:
        """Ranks that a strategy runs on."""
        return 1 if strategy == "single" else self.world_size

    def replicas(self, strategy: Strategy) -> int:
        """Return the replica groups: one per machine, and two on a single one.

        Raises:
            UsageError: the ranks cannot form them.
        """
        if strategy != "hsdp":
            return 1
        machines, rest = divmod(self.world_size, self.per_machine)
        if machines and rest:
            raise UsageError(
                f"{self.world_size} ranks do not fill machines of {self.per_machine}; "
                "set --per-machine"
            )
        return replica_groups(
            groups=1, shards=1, world_size=self.world_size, machines=max(1, machines)
        )
