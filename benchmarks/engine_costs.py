"""Turn the sweep `cpu-engines` into `toolkit/prediction/engines.csv`.

    python -m benchmarks.engine_costs benchmarks/results/cpu-engines

What an engine computes in both passes beyond DDP that reduces once is taken for its own work, by
the thread's processor time (`benchmarks.split`). It is split into tensors and bytes, of reductions
and of gathers, by least squares over three models and both modes, none negative. Gathers after the
update are in neither pass.
"""

import csv
import sys
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np

from benchmarks.fitting import settings_of
from benchmarks.record import Case, Record, read_records
from toolkit.engines.strategies import Strategy
from toolkit.prediction.engines import LIKE, EngineCosts, processor, tensors_in, torch_release
from toolkit.prediction.least_squares import nonnegative
from toolkit.program.events import Collective
from toolkit.program.step import write_step

SHIPPED = Path(__file__).parent.parent / "toolkit" / "prediction" / "engines.csv"
SOURCE = "benchmarks/results/cpu-engines"
COSTS = tuple(each.name for each in fields(EngineCosts))
HEAD = ("device", "torch", "strategy", *COSTS, "records", "source")


def engine_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return what `engines.csv` holds."""
    good = [record for record in records if record.split is not None and record.repeat == 0]
    table: list[tuple[str, ...]] = [HEAD]
    named = [LIKE.get(record.case.strategy, record.case.strategy) for record in good]
    for strategy in dict.fromkeys(named):
        mine = [record for record, name in zip(good, named, strict=True) if name == strategy]
        costs = fit_engine(mine, [_both_passes_s(_base(record.case, good)) for record in mine])
        where = (processor(mine[0].environment), torch_release(mine[0].environment), strategy)
        figures = (f"{figure:.4g}" for figure in astuple(costs))
        table.append((*where, *figures, str(len(mine)), SOURCE))
    return table


def fit_engine(records: Sequence[Record], base_s: Sequence[float]) -> EngineCosts:
    """Return the costs that come closest to what the passes take beyond the base."""
    beyond = [
        max(0.0, _both_passes_s(record) - base)
        for record, base in zip(records, base_s, strict=True)
    ]
    terms = np.array([_terms(record.case) for record in records])
    weights = 1 / np.array(base_s)
    return EngineCosts(*nonnegative(terms * weights[:, None], np.array(beyond) * weights))


def _terms(case: Case) -> list[float]:
    """Return tensors and bytes of a step's reductions, then of its gathers."""
    terms = [0.0, 0.0, 0.0, 0.0]
    for section in write_step(settings_of(case, "cpu")).sections:
        for event in section.events if section.name == "micro-step" else []:
            if isinstance(event, Collective):
                first = 2 if event.kind == "all_gather" else 0
                terms[first] += section.times * tensors_in(event, case.model)
                terms[first + 1] += section.times * event.bytes
    return terms


def _both_passes_s(record: Record) -> float:
    assert record.split is not None
    return record.split.forward_s + record.split.backward_s


def _base(case: Case, records: Sequence[Record]) -> Record:
    strategy: Strategy = "ddp"
    wanted = case.model_copy(update={"strategy": strategy, "accumulation": "replicated"})
    return next(record for record in records if record.case == wanted)


if __name__ == "__main__":
    rows = engine_rows(read_records(Path(sys.argv[1])))
    with SHIPPED.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
