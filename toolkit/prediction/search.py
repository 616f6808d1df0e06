"""Every configuration of a run on a number of GPUs, and the fastest of those that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.config import RunConfig
from toolkit.engines.strategies import Strategy, supported_pairs
from toolkit.memory.hardware import Gpu
from toolkit.memory.largest import StepTokens, largest_micro_batch
from toolkit.memory.rows import whole_micro_steps
from toolkit.model.flops import flops_per_token
from toolkit.prediction.devices import CALIBRATED_PARAMETERS, DeviceSpeed, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict_range
from toolkit.program.readers.peak import read_peak
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs and how they are linked; `between` is a machine's rate in bytes per second."""

    gpu: Gpu
    speed: DeviceSpeed
    gpus: int
    per_machine: int
    between: float | None


@dataclass(frozen=True)
class PlanRow:
    """One configuration. `middle_s` orders rows; it is printed only where `is_calibrated`.

    That is a measured GPU and model size in bf16 on one machine: links between machines are taken
    at their nominal rate, which nothing here was measured over.
    """

    settings: StepSettings
    peak: int
    fits: bool
    middle_s: float
    range_s: tuple[float, float]
    communication_s: float
    exposed_s: float
    model_flops_per_s: float
    peak_flops: float
    is_calibrated: bool

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks."""
        step = self.settings
        return step.micro_batch_size * step.seq_len * step.grad_accum_steps * step.world_size

    def as_json(self) -> dict[str, Any]:
        """Return the row with the names that scripts rely on; null beyond the calibration."""
        step = self.settings

        def known(figure: float) -> float | None:
            return figure if self.is_calibrated else None

        return {
            "strategy": step.strategy,
            "accumulation": step.accumulation,
            "replica_groups": step.replicas,
            "micro_batch_size": step.micro_batch_size,
            "grad_accum_steps": step.grad_accum_steps,
            "world_size": step.world_size,
            "tokens_per_step": self.tokens_per_step,
            "seq_len": step.seq_len,
            "activation_checkpointing": step.activation_checkpointing,
            "loss": step.loss,
            "step_s": known(self.middle_s),
            "step_s_range": list(self.range_s),
            "tokens_per_s": known(self.tokens_per_step / self.middle_s),
            "mfu": known(self.model_flops_per_s / self.peak_flops),
            "peak_bytes": self.peak,
            "fits": self.fits,
            "communication_s": known(self.communication_s),
            "exposed_s": known(self.exposed_s),
        }


@dataclass(frozen=True)
class Answer:
    """Rows that fit, the fastest first, then the others; and how many candidates stand behind."""

    rows: list[PlanRow]
    candidates: int

    @property
    def best(self) -> PlanRow | None:
        """The fastest that fits."""
        return self.rows[0] if self.rows and self.rows[0].fits else None

    def best_per_strategy(self) -> list[PlanRow]:
        """Return each strategy's fastest row."""
        found: dict[Strategy, PlanRow] = {}
        for row in self.rows:
            found.setdefault(row.settings.strategy, row)
        return list(found.values())


def search(
    config: RunConfig, tokens: StepTokens, cluster: Cluster, strategies: Sequence[Strategy]
) -> Answer:
    """Return the rows of every shape: strategy, mode, checkpointing, loss and replica groups.

    A larger micro-batch is never slower in this model (compute is proportional to tokens, gathers
    and reductions are as many or fewer), so of each shape the largest that fits is timed.
    """
    sizes = tokens.micro_batches(seq_len=config.data.seq_len, world_size=cluster.gpus)
    shapes = list(_shapes(config, tokens, cluster, strategies))
    rows = [_row(shape, tokens, cluster) for shape in shapes]
    rows.sort(key=lambda row: (not row.fits, row.middle_s if row.fits else row.peak))
    return Answer(rows, len(shapes) * len(sizes))


def _shapes(
    config: RunConfig, tokens: StepTokens, cluster: Cluster, strategies: Sequence[Strategy]
) -> Iterator[StepSettings]:
    smallest = config.model_copy(
        update={"batch": config.batch.model_copy(update={"micro_batch_size": 1})}
    )
    whole = whole_micro_steps(smallest, tokens, cluster.gpus)
    for strategy, mode in supported_pairs():
        if strategy not in strategies or (strategy == "single") != (cluster.gpus == 1):
            continue
        for replicas in _replica_groups(strategy, cluster):
            step = settings_of_run(
                whole, strategy, world_size=cluster.gpus, replicas=replicas, accumulation=mode
            )
            for checkpointing in (False, True):
                for loss in ("plain", "chunked"):
                    yield replace(step, activation_checkpointing=checkpointing, loss=loss)


def _replica_groups(strategy: Strategy, cluster: Cluster) -> list[int]:
    """Groups of whole machines, or equal parts of a single one."""
    if strategy != "hsdp":
        return [1]
    machines = cluster.gpus // cluster.per_machine
    units = machines if machines > 1 else cluster.gpus
    return [n for n in range(2, units + 1) if units % n == 0 and n < cluster.gpus]


def _row(shape: StepSettings, tokens: StepTokens, cluster: Cluster) -> PlanRow:
    size = largest_micro_batch(shape, tokens, cluster.gpu)
    steps = tokens.grad_accum_steps(
        max(1, size), seq_len=shape.seq_len, world_size=shape.world_size
    )
    step = replace(shape, micro_batch_size=max(1, size), grad_accum_steps=steps)
    program = write_step(step)
    network = RingNetwork(
        step, cluster.per_machine, cluster.speed.link_bytes_per_s, cluster.between
    )
    parameters = step.sizes.parameter_count
    use = cluster.speed.use
    is_calibrated = (
        use is not None
        and parameters in CALIBRATED_PARAMETERS
        and step.precision == "bf16"
        and cluster.gpus <= cluster.per_machine
    )
    times = predict_range(program, cluster.speed, use or widest_use(), network)
    tokens_per_rank = step.micro_batch_size * step.seq_len * steps
    per_token = flops_per_token(step.sizes, seq_len=step.seq_len)
    return PlanRow(
        settings=step,
        peak=read_peak(program).total,
        fits=size > 0,
        middle_s=times.middle.step_s,
        range_s=(times.fastest.step_s, times.slowest.step_s),
        communication_s=times.middle.communication_s,
        exposed_s=times.middle.exposed_s,
        model_flops_per_s=per_token * tokens_per_rank / times.middle.step_s,
        peak_flops=cluster.speed.peak_flops,
        is_calibrated=is_calibrated,
    )
