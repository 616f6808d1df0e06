"""An audit's result as JSON, as text and as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.audit.command import read_ranks
from toolkit.audit.defaults import AS_OF
from toolkit.audit.findings import Finding, find
from toolkit.audit.steps import Step, join_steps
from toolkit.audit.words import describe_run, describe_step, describe_training

_KEPT = (
    "wrappers",
    "versions",
    "parameter_dtypes",
    "state_dtypes",
    "optimizers",
    "memberships",
    "ties",
    "untied",
)


@dataclass(frozen=True)
class Report:
    """What was seen on all ranks, and what is wrong with it.

    Attributes:
        ranks: their own reports, in their order.
        steps: the same, joined.
        exit_code: the command's own, negative for a signal.
    """

    ranks: Sequence[dict[str, Any]]
    steps: Sequence[Step]
    findings: Sequence[Finding]
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        first: dict[str, Any] = self.ranks[0] if self.ranks else {}
        return {
            "ok": not self.findings,
            "exit_code": self.exit_code,
            "engine": first.get("engine"),
            "world_size": first.get("world_size"),
            "steps": [step.to_json() for step in self.steps],
            "findings": [finding.to_json() for finding in self.findings],
            "peak_memory_bytes": max((r["peak_memory_bytes"] for r in self.ranks), default=None),
            **{name: first.get(name) for name in _KEPT},
            "defaults_as_of": AS_OF,
            "ranks": [_of_rank(rank) for rank in self.ranks],
        }

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the page: titles, and sentences under each."""
        if self.ranks:
            yield "The run", list(describe_run(self.ranks))
        if self.steps:
            yield "Training", list(describe_training(self.ranks, self.steps))
        for number, step in enumerate(self.steps, 1):
            yield f"Step {number}", list(describe_step(step, is_first=number == 1))
        found = [_in_words(finding) for finding in self.findings]
        yield "Findings", found or ["nothing found"]

    def lines(self) -> Iterator[str]:
        """Yield the page as text."""
        for title, sentences in self.sections():
            yield title
            yield from (f"  {sentence}" for sentence in sentences)


def build_report(folder: Path, code: int) -> Report:
    """Join what the ranks wrote in `folder`; `code` is the command's exit code."""
    ranks = read_ranks(folder)
    steps = join_steps(ranks) if ranks else []
    return Report(ranks, steps, find(ranks, steps, code), code)


def _of_rank(rank: dict[str, Any]) -> dict[str, Any]:
    return {
        "rank": rank["rank"],
        "peak_memory_bytes": rank["peak_memory_bytes"],
        "watch_s": rank["watch_s"],
        "problem": rank["problem"],
        "steps": [
            {
                "micro_steps": step["micro_steps"],
                "clips": step["clips"],
                "scheduler_steps": step["scheduler_steps"],
                "gradient_dtypes": step["gradient_dtypes"],
            }
            for step in rank["steps"]
        ],
    }


def _in_words(finding: Finding) -> str:
    where = f" at {_short(finding.where)}" if finding.where else ""
    return f"{finding.effect}: {finding.name}{where}: {finding.says}"


def _short(where: str) -> str:
    """Return a line of code relative to the working directory, where it is below it."""
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where


def to_html(report: Report, command: Sequence[str]) -> str:
    """Return the page as one HTML file that needs nothing else; no value is read as HTML."""
    from html import escape

    title = escape(" ".join(command))
    sections = list(report.sections())
    body = "\n".join(
        f"<h2>{escape(heading)}</h2>\n<ul>\n{items}\n</ul>"
        for heading, sentences in [sections[-1], *sections[:-1]]
        for items in ["\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)]
    )
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>audit: {title}</title>\n'
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "code,li{overflow-wrap:anywhere}</style>\n"
        f"<h1>Audit</h1>\n<p><code>{title}</code></p>\n{body}\n</html>\n"
    )
