"""Defaults and faults of released versions that change a gradient without a word; dated."""

from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

AS_OF = "2026-12-03"


@dataclass(frozen=True)
class Change:
    """One of them: `applies` are versions, `engine` the start of the engine's name."""

    package: str
    applies: str
    engine: str
    needs_accumulation: bool
    text: str
    source: str


CHANGES = (
    Change(
        "accelerate",
        "<1.11",
        "FSDP2",
        True,
        "accumulate() and no_sync() do nothing under FSDP2: gradients are reduced at every "
        "micro-step",
        "huggingface/accelerate PR 3762",
    ),
    Change(
        "deepspeed",
        ">=0.18.6,<=0.18.10",
        "DeepSpeed stage 1",
        True,
        "stage 1 in bf16 with fp32 accumulation loses the last micro-batch of every step",
        "deepspeedai/DeepSpeed PR 7985",
    ),
    Change(
        "deepspeed",
        ">=0.17.6,<0.18.3",
        "DeepSpeed stage 2",
        True,
        "stage 2 is reported to accumulate wrong gradients, of smaller norms than stage 3's",
        "deepspeedai/DeepSpeed issue 7718, huggingface/trl issue 4540",
    ),
)

CLIPPING_DEFAULT = (
    "gradients are clipped at 1.0, DeepSpeed's default since 0.19.3 (off up to 0.19.2, "
    "`GRADIENT_CLIPPING_DEFAULT` of both releases); the configuration has no gradient_clipping "
    "(deepspeedai/DeepSpeed PR 8068)"
)


def changes_that_apply(report: dict[str, Any], *, accumulates: bool) -> list[str]:
    """Return a sentence for each change that holds for the versions and engine of a rank."""
    found = []
    for change in CHANGES:
        installed = report["versions"].get(change.package)
        if (
            installed is not None
            and SpecifierSet(change.applies).contains(installed, prereleases=True)
            and report.get("engine", "").startswith(change.engine)
            and (accumulates or not change.needs_accumulation)
        ):
            found.append(f"{change.package} {installed}: {change.text} ({change.source})")
    deepspeed = report.get("deepspeed") or {}
    if deepspeed.get("gradient_clipping") == 1.0 and not deepspeed["asks_for_clipping"]:
        found.append(CLIPPING_DEFAULT)
    return found
