"""How far predicted steps are from published ones of other sources, with one row as anchor.

`published_other.csv` has the rows of IBM's fms-fsdp README and of flash-attention's training README
whose model, batch and throughput are stated (both as of 2024). Llama's and GPT-3's blocks are taken
as GPT-2's of the same width, of as many layers as the parameters come to. fms-fsdp checkpoints
every block unless set otherwise (its docs/configurations.md), which "selective" is taken as; a
micro-batch of 8 sequences is assumed for flash-attention, whose page names the global one alone.

Rows of one source and GPU are a machine. Costs are those of llm-foundry's rows on the same chip;
one row scales their computation (`toolkit.prediction.anchor`) and the others are predicted.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from benchmarks.published import Published
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.anchor import anchor
from toolkit.prediction.costs import Costs
from toolkit.prediction.devices import DeviceSpeed, find_speed
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict
from toolkit.program.settings import StepSettings

PER_MACHINE = 8
BIGGEST_TIED = 3e9
"""Parameters of the largest model here whose head is its embedding."""
Method = Callable[["Row", "Row"], float]
HEAD = ("method", "source", "GPU", "rows", "mape, first row", "mape, any row", "fitted on")


@dataclass(frozen=True)
class Row(Published):
    """A published row and the step that stands for it."""

    @property
    def machine(self) -> tuple[str, str]:
        """Source and GPU."""
        return self.row["source"], self.row["gpu"].removesuffix("-SXM")

    @cached_property
    def speed(self) -> DeviceSpeed:
        """What is known of the GPU."""
        return find_speed(self.machine[1])

    @property
    def costs(self) -> Costs:
        """Costs of the same chip, before any anchor."""
        return self.speed.costs(self.speed.nearest_use.middle)

    @cached_property
    def settings(self) -> StepSettings:
        """The step, of as many layers as the parameters come to."""
        width, vocabulary, gpus = self._int("d_model"), self._int("vocab"), self._int("n_gpus")
        parameters, strategy = self._int("n_params"), self.row["strategy"]
        tables = vocabulary * width * (1 if parameters < BIGGEST_TIED else 2)
        return StepSettings(
            sizes=ModelSizes(
                n_layer=round((parameters - tables) / (12 * width**2)),
                n_head=1,
                n_embd=width,
                vocab_size=vocabulary,
                block_size=self._int("seq"),
            ),
            strategy=strategy,  # type: ignore[arg-type]
            accumulation="replicated" if strategy == "ddp" else "sharded",
            replicas=gpus // PER_MACHINE if strategy == "hsdp" else 1,
            **self.batch,
        )

    @property
    def network(self) -> RingNetwork:
        """Its links; a machine's rate to the others is as stated."""
        stated = self.row["between_gbit"]
        between = 1e9 / 8 * float(stated) if stated else None
        return RingNetwork(self.settings, PER_MACHINE, self.speed.link_bytes_per_s, between)

    @property
    def model_flops(self) -> float:
        """Operations of a step: 6 a parameter and token, and attention over the whole square."""
        step = self.settings
        tokens = step.micro_batch_size * step.seq_len * step.grad_accum_steps
        square = 12 * step.sizes.n_layer * step.sizes.n_embd * step.seq_len
        return tokens * (6 * self._int("n_params") + square)


def read_rows() -> list[Row]:
    """Return the published rows."""
    with Path(__file__).with_name("published_other.csv").open() as file:
        return [Row(row) for row in csv.DictReader(file)]


def anchored(first: Row, other: Row) -> float:
    """Return the other's predicted seconds with the first as anchor."""
    found = anchor(first.program, first.costs, first.network, first.step_s)
    return predict(other.program, found.scaled(other.costs), other.network).step_s


def same_mfu(first: Row, other: Row) -> float:
    """Return the other's seconds at the first's MFU."""
    return first.step_s * other.model_flops / first.model_flops


def anchor_error_rows(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the table: errors with each machine's first row as anchor, and with any of its."""
    table: list[tuple[str, ...]] = [HEAD]
    fitted = "one row of the same source and GPU; costs on llm-foundry's rows"
    machines = list(dict.fromkeys(row.machine for row in rows))
    for name, method in (("anchor", anchored), ("constant MFU", same_mfu)):
        firsts: list[float] = []
        every: list[float] = []
        for machine in machines:
            same = [row for row in rows if row.machine == machine]
            errors = list(_errors(same, method))
            firsts += errors[: len(same) - 1]
            every += errors
            figures = (fmean(errors[: len(same) - 1]), fmean(errors))
            shown = (f"{figure:.1%}" for figure in figures)
            table.append((name, *machine, str(len(same)), *shown, fitted))
        shown = (f"{fmean(errors):.1%}" for errors in (firsts, every))
        table.append((name, "all", "all", str(len(rows)), *shown, fitted))
    return table


def _errors(same: list[Row], method: Method) -> Iterator[float]:
    """Yield the relative error of every other row, with each row in turn as anchor."""
    for first in same:
        yield from (
            abs(method(first, other) / other.step_s - 1) for other in same if other is not first
        )
