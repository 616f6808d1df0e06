"""The table and the JSON of `toolkit verify`."""

from typing import Any

from rich.table import Table

from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import MASKED_SHARE, SEQUENCES_PER_STEP
from toolkit.verify.run import Caught
from toolkit.verify.verdict import Arm, Verdict

KIB = 2**10


def build_table(verdicts: list[Verdict]) -> Table:
    """Return one row per case: distances from the exact update, traffic, and the verdict."""
    table = Table(title="Largest differences from the exact (fp64) update")
    for column in ("strategy", "ranks", "accumulation", "A", "precision", "optimizer", "variant"):
        table.add_column(column)
    for column in ("loss", "grad_norm", "gradient", "parameters"):
        table.add_column(column, justify="right")
    for column in ("KiB reduced", "KiB gathered", "KiB held"):
        table.add_column(column, justify="right")
    table.add_column("replicas")
    table.add_column("verdict")
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    return table


def _cells(verdict: Verdict) -> list[str]:
    case, difference, traffic = verdict.case, verdict.difference, verdict.outcome.traffic
    held = verdict.outcome.held_gradient_bytes
    reduced = traffic["all_reduce"].bytes + traffic["reduce_scatter"].bytes
    return [
        verdict.arm.strategy,
        str(verdict.arm.world_size),
        case.accumulation,
        str(case.grad_accum_steps),
        case.precision,
        case.optimizer,
        case.variant,
        *(
            f"{getattr(difference, name):.1e}" if name in verdict.limits else "-"
            for name in ("loss_max_abs", "grad_norm_max_rel", "gradient_max_rel", "param_max_rel")
        ),
        f"{reduced / KIB:,.0f}",
        f"{traffic['all_gather'].bytes / KIB:,.0f}",
        "-" if held is None else f"{held / KIB:,.0f}",
        _replicas(verdict),
        "; ".join(verdict.problems) or "equal",
    ]


def _replicas(verdict: Verdict) -> str:
    """Whether the ranks that should hold the same bits do; "-" where every rank has its own."""
    if not verdict.outcome.replica_groups:
        return "-"
    return "differ" if verdict.outcome.replica_problems else "same"


def build_controls_table(controls: list[Caught]) -> Table:
    """Return one row per fault that was put in: where, and the check that caught it."""
    table = Table(title="Faults put in on purpose")
    for column in ("fault", "strategy", "caught by"):
        table.add_column(column)
    for control in controls:
        table.add_row(control.name, control.strategy, control.by or "nothing")
    return table


def build_json(
    verdicts: list[Verdict],
    controls: list[Caught],
    others: dict[Arm, str],
    sizes: ModelSizes,
    *,
    steps: int,
) -> dict[str, Any]:
    """Return the object that `--json` prints; `others` are arms that were not run or failed."""
    failed = [reason for reason in others.values() if reason.startswith("failed")]
    return {
        "ok": bool(verdicts)
        and not failed
        and all(not verdict.problems for verdict in verdicts)
        and all(control.by is not None for control in controls),
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
        "controls": [control.to_json() for control in controls],
    }
