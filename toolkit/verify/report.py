"""The table and the JSON of `toolkit verify`."""

from typing import Any

from rich.table import Table

from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import MASKED_SHARE, SEQUENCES_PER_STEP
from toolkit.verify.run import Arm, Verdict

MIB = 2**20


def build_table(verdicts: list[Verdict]) -> Table:
    """Return one row per case: distances from the exact update, traffic, and the verdict."""
    table = Table(title="Largest differences from the exact (fp64) update")
    for column in ("strategy", "ranks", "accumulation", "A", "precision", "optimizer"):
        table.add_column(column)
    for column in ("loss", "grad_norm", "gradient", "parameters", "MiB reduced", "MiB gathered"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    return table


def _cells(verdict: Verdict) -> list[str]:
    case, difference, traffic = verdict.case, verdict.difference, verdict.outcome.traffic
    reduced = traffic["all_reduce"].bytes + traffic["reduce_scatter"].bytes
    return [
        verdict.arm.strategy,
        str(verdict.arm.world_size),
        case.accumulation,
        str(case.grad_accum_steps),
        case.precision,
        case.optimizer,
        f"{difference.loss_max_abs:.1e}",
        f"{difference.grad_norm_max_rel:.1e}",
        f"{difference.gradient_max_rel:.1e}",
        f"{difference.param_max_rel:.1e}",
        f"{reduced / MIB:.2f}",
        f"{traffic['all_gather'].bytes / MIB:.2f}",
        "; ".join(verdict.problems) or "equal",
    ]


def build_json(
    verdicts: list[Verdict], others: dict[Arm, str], sizes: ModelSizes, *, steps: int
) -> dict[str, Any]:
    """Return the object that `--json` prints; `others` are arms that were not run or failed."""
    failed = [reason for reason in others.values() if reason.startswith("failed")]
    return {
        "ok": bool(verdicts) and not failed and all(not v.problems for v in verdicts),
        "reference": {
            "model": vars(sizes),
            "parameters": sizes.parameter_count,
            "steps": steps,
            "sequences_per_step": SEQUENCES_PER_STEP,
            "ignored_share_of_targets": MASKED_SHARE,
            "dtype": "float64",
        },
        "cases": [verdict.to_json() for verdict in verdicts],
        "not_run": [
            {"strategy": arm.strategy, "world_size": arm.world_size, "reason": reason}
            for arm, reason in others.items()
        ],
        "controls": [],
    }
