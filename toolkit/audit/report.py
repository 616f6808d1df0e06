"""An audit's result as JSON and as a page in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.audit.command import read_ranks
from toolkit.audit.findings import Finding, find
from toolkit.audit.steps import Step, join_steps


@dataclass(frozen=True)
class Report:
    """What was seen on all ranks, and what is wrong with it."""

    ranks: Sequence[dict[str, Any]]
    steps: Sequence[Step]
    findings: Sequence[Finding]

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        first: dict[str, Any] = self.ranks[0] if self.ranks else {}
        kept = ("versions", "parameter_dtypes", "state_dtypes", "optimizers", "ties")
        return {
            "ok": not self.findings,
            "engine": first.get("engine"),
            "world_size": first.get("world_size"),
            "steps": [step.to_json() for step in self.steps],
            "findings": [finding.to_json() for finding in self.findings],
            "peak_memory_bytes": max((r["peak_memory_bytes"] for r in self.ranks), default=None),
            **{name: first.get(name) for name in kept},
        }

    def lines(self) -> Iterator[str]:
        """Yield the page, a line at a time."""
        if self.ranks:
            first = self.ranks[0]
            yield f"engine    {first.get('engine')}, {first['world_size']} ranks"
            for key in ("parameter_dtypes", "state_dtypes"):
                dtypes = ", ".join(first.get(key) or ["none"])
                yield f"{key.replace('_', ' ')}  {dtypes.replace('torch.', '')}"
        for number, step in enumerate(self.steps, 1):
            yield from _step_lines(number, step)
        yield ""
        if not self.findings:
            yield "nothing found"
        for finding in self.findings:
            yield f"{finding.name}  {_short(finding.where)}"
            yield f"    {finding.says}"


def build_report(folder: Path, code: int) -> Report:
    """Join what the ranks wrote in `folder`; `code` is the command's exit code."""
    ranks = read_ranks(folder)
    steps = join_steps(ranks) if ranks else []
    return Report(ranks, steps, find(ranks, steps, code))


def _step_lines(number: int, step: Step) -> Iterator[str]:
    mode = step.mode or "-"
    asked = f" (asked: {step.asked})" if step.asked else ""
    yield (
        f"step {number}    {step.micro_steps} micro-steps, {step.reducing_micro_steps} reduce, "
        f"mode {mode}{asked}, gradients {step.division}, {step.held_gradient_bytes:,} bytes held"
    )
    for phase, kinds in step.phases.items():
        calls = (f"{n['calls']} {kind}, {n['bytes']:,} bytes" for kind, n in kinds.items())
        yield f"    {phase:<9} {'; '.join(calls)}"


def _short(where: str | None) -> str:
    """Return a line of code relative to the working directory, where it is below it."""
    if where is None:
        return ""
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where


def to_html(report: Report, command: Sequence[str]) -> str:
    """Return the page as one HTML file that needs nothing else."""
    from html import escape

    title = escape(" ".join(command))
    body = escape("\n".join(report.lines()))
    return (
        f'<!doctype html><meta charset="utf-8"><title>audit: {title}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto}"
        "pre{white-space:pre-wrap}</style>"
        f"<h1>Audit</h1><p><code>{title}</code></p><pre>{body}</pre>\n"
    )
