"""Bytes for each weight: what parameters, gradients and optimizer take, strategy by strategy."""

from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.config import RunConfig
from toolkit.engines.strategies import (
    ALONE,
    STRATEGIES,
    Accumulation,
    Strategy,
    possible_accumulations,
)
from toolkit.memory.hardware import in_gib
from toolkit.memory.states import checkpoint_bytes
from toolkit.planning.candidates import replica_groups
from toolkit.planning.cluster import Cluster
from toolkit.program.events import Alloc, Free, Part, Program
from toolkit.program.readers.peak import highest
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step

STATES: tuple[Part, ...] = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class StatesRow:
    """The model's states of one rank right before the update, and the peak of the step."""

    settings: StepSettings
    bytes: dict[Part, int]
    peak: int

    def per_weight(self, part: Part) -> float:
        """Return bytes of a part for each weight of the model."""
        return self.bytes[part] / self.settings.sizes.parameter_count


def states_rows(run: RunConfig, cluster: Cluster) -> list[StatesRow]:
    """Return every strategy in each of its modes, one GPU first."""
    return [
        _row(run, strategy, accumulation, cluster)
        for strategy in STRATEGIES
        for accumulation in possible_accumulations(strategy)
        if strategy == ALONE or (cluster.gpus > 1 and replica_groups(strategy, cluster))
    ]


def _row(
    run: RunConfig, strategy: Strategy, accumulation: Accumulation, cluster: Cluster
) -> StatesRow:
    replicas = replica_groups(strategy, cluster)
    size = 1 if strategy == ALONE else cluster.gpus
    batch = run.batch.model_copy(
        update={"tokens_per_step": 3 * size * run.batch.micro_batch_size * run.data.seq_len}
    )
    step = settings_of_run(
        run.model_copy(update={"batch": batch}),
        strategy,
        world_size=size,
        replicas=replicas[-1],
        device=cluster.device,
        accumulation=accumulation,
    )
    program = write_step(step)
    return StatesRow(step, states_before_update(program), highest(program))


def states_before_update(program: Program) -> dict[Part, int]:
    """Return the bytes of each state once all micro-steps of a step are done."""
    held: dict[Part, int] = dict.fromkeys(STATES, 0)
    for section in program.sections[:-1]:
        for event in section.events:
            if isinstance(event, Alloc | Free) and event.part in held:
                held[event.part] += event.bytes if isinstance(event, Alloc) else -event.bytes
    return held


def describe_states(rows: list[StatesRow], *, adam: bool) -> Iterator[str]:
    """Yield the table and the size of a checkpoint.

    `single` and `ddp` keep fp32 weights and gradients and two fp32 moments: 16 bytes. Sharded
    engines compute in working copies of bf16, which ZeRO keeps whole in stages 1 and 2 (Rajbhandari
    et al. 2020, section 5).
    """
    step = rows[0].settings
    parameters = step.sizes.parameter_count
    yield (
        f"bytes per weight on each GPU before the update, {parameters:,} weights; peak with "
        f"micro-batch {step.micro_batch_size}"
    )
    yield "  parameters  gradients  optimizer     sum      GiB     peak"
    for row in rows:
        parts = [row.per_weight(part) for part in STATES]
        total = sum(row.bytes.values())
        yield (
            f"{parts[0]:>12.2f} {parts[1]:>10.2f} {parts[2]:>10.2f} {sum(parts):>7.2f} "
            f"{in_gib(total):>8} {in_gib(row.peak):>8}  {_name(row.settings)}"
        )
    moments = " and 8 of AdamW's two fp32 moments" if adam else ""
    size = checkpoint_bytes(parameters, adam=adam)
    yield f"a checkpoint holds 4 bytes of fp32 weight{moments} each: {in_gib(size)} GiB"


def _name(step: StepSettings) -> str:
    groups = f" in {step.replicas} replica groups" if step.replicas > 1 else ""
    gpus = "1 GPU" if step.world_size == 1 else f"{step.world_size:,} GPUs"
    return f"{step.strategy} {step.accumulation}{groups}, {gpus}"
