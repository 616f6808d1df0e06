"""How far predicted steps are from published ones, fitted without any row of the same model size.

The rows of `published_throughput.csv` are from mosaicml/llm-foundry,
scripts/train/benchmarking/README.md (MPT, FSDP, bf16), taken as sharded fsdp2 steps of a GPT-2 of
the same sizes. For each GPU five costs (`toolkit.prediction.costs`) are fitted to all other model
names by least squares of relative errors, none negative. The costs of all rows and the errors of
the held-out rows are written to `toolkit/prediction/use.csv`.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, quantiles

import numpy as np
from scipy.optimize import nnls

from benchmarks.anchor_errors import anchor_error_rows, read_rows
from benchmarks.own_errors import pair_rows, read_sweeps, regret_rows
from benchmarks.published import Published
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.costs import Costs, amounts_of
from toolkit.prediction.devices import DeviceSpeed, Shares, find_speed, measured_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict
from toolkit.program.settings import StepSettings

_HERE = Path(__file__).parent
MACHINE_LINK = {"A100-40": 200e9, "H100-80": 400e9}
"""Bytes per second between machines: 1600 Gbit/s by the source for A100; 3200 assumed for H100."""
ROUNDS = 4
"""Of fit and exposed time in turn; neither moves after them."""


@dataclass(frozen=True)
class Example(Published):
    """A published row and the step that stands for it."""

    @property
    def gpu(self) -> str:
        """The GPU's name in `toolkit/model/devices.csv`."""
        return self.row["gpu"].removesuffix("-SXM")

    @property
    def speed(self) -> DeviceSpeed:
        """What is known of the GPU."""
        return find_speed(self.gpu)

    @cached_property
    def settings(self) -> StepSettings:
        """The step; heads change no time."""
        sizes = ModelSizes(
            n_layer=self._int("n_layer"),
            n_head=1,
            n_embd=self._int("d_model"),
            vocab_size=self._int("vocab"),
            block_size=self._int("seq"),
        )
        return StepSettings(
            sizes=sizes,
            strategy="fsdp2",
            accumulation="sharded",
            **self.batch,
        )

    @property
    def network(self) -> RingNetwork:
        """Its links."""
        return RingNetwork(self.settings, 8, self.speed.link_bytes_per_s, MACHINE_LINK[self.gpu])

    @property
    def model_flops(self) -> float:
        """Operations per token: 6 a parameter, and attention over the whole square."""
        layers, width, seq = (self._int(name) for name in ("n_layer", "d_model", "seq"))
        return 6 * self._int("n_params") + 12 * layers * width * seq


Table = list[tuple[str, ...]]
Fit = Callable[[list[Example]], Callable[[Example], float]]


def read_examples() -> list[Example]:
    """Return the published rows."""
    with (_HERE / "published_throughput.csv").open() as file:
        return [Example(row) for row in csv.DictReader(file)]


def fit_costs(examples: list[Example]) -> Costs:
    """Return the costs with the least sum of squares of relative errors, none negative."""
    step_s = np.array([each.step_s for each in examples])
    amounts = np.array([amounts_of(each.program) for each in examples]) / step_s[:, None]
    scale = amounts.max(axis=0)
    exposed = np.zeros(len(examples))
    for _ in range(ROUNDS):
        found, _ = nnls(amounts / scale, 1 - exposed / step_s)
        costs = Costs(*(float(cost) for cost in found / scale))
        exposed = np.array([predict(e.program, costs, e.network).exposed_s for e in examples])
    return costs


def by_kind(others: list[Example]) -> Callable[[Example], float]:
    """Return what predicts seconds by costs fitted to the others."""
    costs = fit_costs(others)
    return lambda one: predict(one.program, costs, one.network).step_s


def constant_mfu(others: list[Example]) -> Callable[[Example], float]:
    """Return what predicts seconds by the median MFU of the others, all on one GPU."""
    rate = median(each.model_flops * float(each.row["tokens_per_s_per_gpu"]) for each in others)
    return lambda one: one.step_s * float(one.row["tokens_per_s_per_gpu"]) * one.model_flops / rate


def left_out(examples: list[Example], fit: Fit) -> Iterator[tuple[Example, float]]:
    """Yield each example with predicted by published seconds, from a fit without its own model."""
    for gpu, model in dict.fromkeys((each.gpu, each.row["model"]) for each in examples):
        same = [each for each in examples if each.gpu == gpu]
        predict_s = fit([each for each in same if each.row["model"] != model])
        for one in (each for each in same if each.row["model"] == model):
            yield one, predict_s(one) / one.step_s


def error_rows(examples: list[Example]) -> list[tuple[str, ...]]:
    """Return the error table."""
    table: list[tuple[str, ...]] = [("method", "GPU", "rows", "mape", "p90", "fitted on")]
    for name, fit in (("by kind", by_kind), ("constant MFU", constant_mfu)):
        ratios = list(left_out(examples, fit))
        for gpu in ("all", *dict.fromkeys(each.gpu for each in examples)):
            errors = [abs(ratio - 1) for one, ratio in ratios if gpu in ("all", one.gpu)]
            p90 = quantiles(errors, n=10)[-1]
            fitted = "the same GPU's rows of all other model sizes"
            table.append(
                (name, gpu, str(len(errors)), f"{fmean(errors):.1%}", f"{p90:.1%}", fitted)
            )
    return table


def use_rows(examples: list[Example]) -> list[tuple[str, ...]]:
    """Return what `toolkit/prediction/use.csv` holds."""
    ratios = list(left_out(examples, by_kind))
    table: list[tuple[str, ...]] = [("gpu", *Shares._fields, "least", "most", "rows", "source")]
    for gpu in dict.fromkeys(each.gpu for each in examples):
        same = [each for each in examples if each.gpu == gpu]
        shares = find_speed(gpu).shares(fit_costs(same))
        off = quantiles([1 / ratio for one, ratio in ratios if one.gpu == gpu], n=10)
        figures = [f"{figure:.4g}" for figure in (*shares, off[0], off[-1])]
        source = "mosaicml/llm-foundry scripts/train/benchmarking/README.md (bf16 FSDP)"
        table.append((gpu, *figures, str(len(same)), source))
    return table


def main() -> None:
    """Write the errors as CSV and as Markdown, and the shares."""
    examples = read_examples()
    _write_csv(_HERE.parent / "toolkit" / "prediction" / "use.csv", use_rows(examples))
    measured_use.cache_clear()
    sweeps = read_sweeps()
    tables = {
        "plan_errors": ("Published throughput, each model size held out", error_rows(examples)),
        "anchor_errors": ("Other sources, one row as anchor", anchor_error_rows(read_rows())),
        "pair_errors": ("Sharded by replicated step time, CPU sweeps", pair_rows(sweeps)),
        "regret": ("What the predicted choice loses, CPU sweeps", regret_rows(sweeps)),
    }
    for name, (_, table) in tables.items():
        _write_csv(_HERE / "results" / f"{name}.csv", table)
    parts = [f"## {title}\n\n{_as_markdown(table)}" for title, table in tables.values()]
    (_HERE / "results" / "plan_errors.md").write_text("\n".join(parts))


def _write_csv(path: Path, rows: Table) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _as_markdown(table: Table) -> str:
    head, *rows = (f"| {' | '.join(line)} |" for line in table)
    rule = "| " + " | ".join("---" for _ in table[0]) + " |"
    return "\n".join([head, rule, *rows]) + "\n"


if __name__ == "__main__":
    main()
