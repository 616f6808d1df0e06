"""The table and the JSON of `toolkit verify`."""

from typing import Any

from rich.table import Table

from toolkit.engines.traffic import REDUCING
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import MASKED_SHARE, SEQUENCES_PER_STEP
from toolkit.verify.run import Caught
from toolkit.verify.verdict import Launch, Verdict

KIB = 2**10
WIDTH, WIDEST = 100, 200
"""Characters in a row, without and with `--wide`."""

CASE_COLUMNS = ("strategy", "ranks", "accumulation", "A", "update", "variant")
NUMBER_COLUMNS = ("loss", "grad_norm", "params")
WIDE_COLUMNS = ("gradient", "own norm", "KiB reduced", "KiB gathered", "KiB held", "replicas")


def build_table(verdicts: list[Verdict], *, wide: bool = False) -> Table:
    """Return one row per case: distances from the exact update, and whether it equals it.

    Args:
        verdicts: the rows.
        wide: add the gradients' distances, what was communicated and held, and the replicas. A row
            without them has at most `WIDTH` characters.
    """
    columns = [*CASE_COLUMNS, *NUMBER_COLUMNS, *(WIDE_COLUMNS if wide else ()), "equal"]
    right = (*NUMBER_COLUMNS, *WIDE_COLUMNS)
    title = "Largest differences from the exact (fp64) update"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for verdict in verdicts:
        cells = _cells(verdict)
        table.add_row(*(cells[column] for column in columns))
    return table


def _cells(verdict: Verdict) -> dict[str, str]:
    case, traffic = verdict.case, verdict.outcome.traffic
    held = verdict.outcome.held_gradient_bytes
    reduced = sum(traffic[kind].bytes for kind in REDUCING)
    return {
        "strategy": verdict.launch.strategy,
        "ranks": str(verdict.launch.world_size),
        "accumulation": str(case.accumulation),
        "A": str(case.grad_accum_steps),
        "update": f"{case.precision} {case.optimizer}",
        "variant": case.variant,
        "loss": _distance(verdict, "loss_max_abs"),
        "grad_norm": _distance(verdict, "grad_norm_max_rel") + _torch_mark(verdict),
        "params": _distance(verdict, "param_max_rel"),
        "gradient": _distance(verdict, "gradient_max_rel"),
        "own norm": _distance(verdict, "own_norm_rel"),
        "KiB reduced": f"{reduced / KIB:,.0f}",
        "KiB gathered": f"{traffic['all_gather'].bytes / KIB:,.0f}",
        "KiB held": "-" if held is None else f"{held / KIB:,.0f}",
        "replicas": _replicas(verdict),
        "equal": "no" if verdict.problems else "yes",
    }


def _distance(verdict: Verdict, name: str) -> str:
    return f"{getattr(verdict.difference, name):.1e}" if name in verdict.limits else "-"


def _torch_mark(verdict: Verdict) -> str:
    return " *" if torch_is_beyond(verdict) else "  "


def torch_is_beyond(verdict: Verdict) -> bool:
    """Whether plain PyTorch's own norm is further from fp64 than a case's norm may be."""
    limit = verdict.limits.get("grad_norm_max_rel")
    return limit is not None and not verdict.torch_norm_max_rel <= limit


def build_notes(verdicts: list[Verdict]) -> list[str]:
    """Return the lines under the table: what the mark means, and each case's problems."""
    notes = []
    if beyond := [verdict for verdict in verdicts if torch_is_beyond(verdict)]:
        furthest = max(beyond, key=lambda verdict: verdict.torch_norm_max_rel)
        notes.append(
            f"* PyTorch's own gradient norm is up to {furthest.torch_norm_max_rel:.1e} off here, "
            f"where a case may be {furthest.limits['grad_norm_max_rel']:.1e} off"
        )
    for verdict in verdicts:
        cells = _cells(verdict)
        case = " ".join(cells[column] for column in CASE_COLUMNS if cells[column])
        notes += [f"{case}: {problem}" for problem in verdict.problems]
    return notes


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
    others: dict[Launch, str],
    sizes: ModelSizes,
    *,
    steps: int,
) -> dict[str, Any]:
    """Return the object that `--json` prints; `others` are launches that were not run or failed."""
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
            {"strategy": launch.strategy, "world_size": launch.world_size, "reason": reason}
            for launch, reason in others.items()
        ],
        "controls": [control.to_json() for control in controls],
    }
