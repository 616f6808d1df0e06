"""The toolkit's loop against others: per-step overhead and tokens/s, on the same cores in one run.

Plain PyTorch and DeepSpeed, Hugging Face's Trainer and Lightning Fabric train the same model on the
same tokens with the same optimizer, clipping and accumulation. All cases of a strategy are started
once and then take turns, in another order each round; figures compare two turns of one round. Cases
whose losses differ are an error, not a result.

    python -m benchmarks.overhead      # writes results/overhead.json
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_environment, find_machine
from benchmarks.overhead.compared import LOSS_TOLERANCE, compare, largest_difference
from benchmarks.overhead.driver import PLAIN, TOOLKIT, LoopTurns, cases_of, measure
from benchmarks.overhead.workload import Workload
from toolkit.engines.strategies import Strategy
from toolkit.home import expand_words
from toolkit.verify.options import choices

RESULTS = Path(__file__).parents[1] / "results"
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp2", "zero2")
WORKLOADS = {
    # Hardly anything but overhead.
    "tiny": Workload(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=512,
        seq_len=32,
        micro_batch_size=1,
        grad_accum_steps=2,
        world_size=2,
        steps_per_turn=31,
        turns=9,
    ),
    # A step of some 0.2 s, with a CPU core for each rank. What costs time by the parameter weighs
    # as much as in GPT-2 124M at 524,288 tokens a step on 8 ranks: a rank has 1,024 tokens for 1.9M
    # parameters, of which 31 % are the head's.
    "larger": Workload(
        n_layer=4,
        n_head=5,
        n_embd=160,
        vocab_size=3584,
        seq_len=256,
        micro_batch_size=2,
        grad_accum_steps=2,
        world_size=2,
        steps_per_turn=6,
        turns=25,
    ),
}


def main() -> int:
    """Measure, print and write; return 1 if a toolkit case did not run, or a case's loss is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "overhead.json")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    record: dict[str, Any] = {
        "environment": describe_environment(find_machine().name, threads=1).model_dump(),
        "lightning": version("lightning") if find_spec("lightning") else None,
        "workloads": {},
        "loss_tolerance": LOSS_TOLERANCE,
        "cases": [],
        "comparisons": [],
    }
    problems = []
    for name in choices("--workloads", asked.workloads, tuple(WORKLOADS)):
        record["workloads"][name] = asdict(WORKLOADS[name])
        for strategy in choices("--strategies", asked.strategies, STRATEGIES):
            found = measure(cases_of(strategy, WORKLOADS[name]), WORKLOADS[name])
            record["cases"] += [_case_record(name, measured) for measured in found]
            for compared in comparisons(found):
                record["comparisons"].append({"workload": name, **compared})
                print(describe(name, compared), flush=True)
            problems += [f"{name}: {problem}" for problem in problems_of(found)]
    record["problems"] = problems
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def comparisons(found: Sequence[LoopTurns]) -> Iterator[dict[str, Any]]:
    """Yield the toolkit's cases against all others, as far as both ran."""
    ran = [measured for measured in found if measured.turns]
    for own in (measured for measured in ran if measured.case.loop == TOOLKIT):
        for other in (measured for measured in ran if measured.case.loop != TOOLKIT):
            yield {
                "case": own.case.name,
                "against": other.case.name,
                **{k: v._asdict() for k, v in compare(own.turns, other.turns).items()},
            }


def problems_of(found: Sequence[LoopTurns]) -> list[str]:
    """Return a sentence for each case that ought to have run, and for each loss that is off."""
    needed = (PLAIN, TOOLKIT)
    problems = [
        f"{measured.case.name}: {measured.not_run}"
        for measured in found
        if measured.not_run and (measured.case.loop in needed or "failed" in measured.not_run)
    ]
    ran = [measured for measured in found if measured.turns]
    for measured in ran[1:]:
        difference = largest_difference(measured.turns, ran[0].turns)
        if not difference <= LOSS_TOLERANCE:
            problems.append(
                f"{measured.case.name}: its loss is {difference:.1e} from that of "
                f"{ran[0].case.name}, so their times do not compare"
            )
    return problems


def describe(workload: str, compared: dict[str, Any]) -> str:
    """Return a line for people."""
    speed, overhead, cpu = (compared[key] for key in ("speed", "overhead_us", "cpu"))
    return (
        f"{workload:<7} {compared['case']:<22} against {compared['against']:<14} "
        f"{speed['median']:.3f} of its tokens/s ({speed['low']:.3f} to {speed['high']:.3f}), "
        f"{overhead['median']:+,.0f} us a step, {cpu['median']:.3f} of its processor time"
    )


def _case_record(workload: str, measured: LoopTurns) -> dict[str, Any]:
    return {
        "workload": workload,
        "name": measured.case.name,
        **measured.case.model_dump(include={"loop", "strategy", "loss"}),
        "not_run": measured.not_run,
        "turns": [asdict(turn) for turn in measured.turns],
    }


if __name__ == "__main__":
    sys.exit(main())
