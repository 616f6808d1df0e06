"""Updates on this device beside the exact ones: alone, in every engine, two ranks on one device."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check import shared_device
from benchmarks.gpu_check.scale import Scale
from toolkit.engines.strategies import Strategy, missing_engine
from toolkit.errors import ToolkitError
from toolkit.launch.processes import launch
from toolkit.verify.cases import TINY, VARIANT_STEPS, Case
from toolkit.verify.outcome import FOUND, Work
from toolkit.verify.run import verify_launch
from toolkit.verify.verdict import Launch, Verdict, judge

Row = dict[str, Any]


def one_process(scale: Scale, folder: Path) -> Iterator[Row]:
    """Yield what plain training on the device is from fp64, in each precision."""
    yield from _verify("single", scale)


def every_engine(scale: Scale, folder: Path) -> Iterator[Row]:
    """Yield the same of each engine at world size 1, which on a GPU is over NCCL."""
    for strategy in scale.alone:
        yield from _verify(strategy, scale)


def two_ranks(scale: Scale, folder: Path) -> Iterator[Row]:
    """Yield the same of two ranks that share the device, which is over gloo.

    What gloo cannot do with a GPU's tensors is written down, and no fault of the engine's.
    """
    for strategy in scale.shared:
        if reason := missing_engine(strategy):
            yield {"strategy": strategy, "not_run": reason}
            continue
        try:
            verdicts = _verify_shared(strategy, scale)
        except ToolkitError as error:
            yield {"strategy": strategy, "not_run": _last_line(error)}
            continue
        yield from map(_row, verdicts)


def _verify(strategy: Strategy, scale: Scale) -> Iterator[Row]:
    if reason := missing_engine(strategy):
        yield {"strategy": strategy, "not_run": reason}
        return
    try:
        asked = Launch(strategy, 1), _cases(scale), TINY
        report = verify_launch(*asked, timeout_s=scale.timeout_s)
    except ToolkitError as error:
        yield {"strategy": strategy, "problem": _last_line(error)}
        return
    yield from map(_row, report.verdicts)


def _cases(scale: Scale) -> list[Case]:
    return [
        Case(
            accumulation="replicated",
            grad_accum_steps=4,
            precision=precision,
            optimizer="adamw",
            steps=VARIANT_STEPS,
        )
        for precision in scale.precisions
    ]


def _verify_shared(strategy: Strategy, scale: Scale) -> Sequence[Verdict]:
    cases = _cases(scale)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.pt"
        torch.save(Work(cases, [], TINY, scale.timeout_s), work)
        launch(strategy, 2, [shared_device.__file__, str(work)], timeout_s=scale.timeout_s)
        outcomes, _ = torch.load(work.with_name(FOUND), weights_only=False)
    return [
        judge(Launch(strategy, 2), case, outcome, TINY)
        for case, outcome in zip(cases, outcomes, strict=True)
    ]


def _row(verdict: Verdict) -> Row:
    return {
        "strategy": verdict.launch.strategy,
        "ranks": verdict.launch.world_size,
        "precision": verdict.case.precision,
        "gradient_max_rel": verdict.difference.gradient_max_rel,
        "limit": verdict.limits["gradient_max_rel"],
        "param_max_rel": verdict.difference.param_max_rel,
        **({"problem": "; ".join(verdict.problems)} if verdict.problems else {}),
    }


def _last_line(error: ToolkitError) -> str:
    return str(error).strip().splitlines()[-1]
