"""Predicted against measured steps of the committed CPU sweeps: pairs of modes, and regret.

Computation is what the machine's profile holds of modules and `toolkit/prediction/engines.csv`
of engines, collectives what the profile of that link holds. Neither was measured in the runs
that are judged; nothing is fitted to them. Cases of another precision than the profile's are
predicted from the split of one run of their strategy (`benchmarks.prediction.compute_of`) instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from benchmarks.comparison import TOLERANCE, Pair, pairs_of
from benchmarks.fitting import settings_of
from benchmarks.measured import Measured, grouped, measured_cases
from benchmarks.prediction import compute_of
from benchmarks.record import Case, Record, read_records
from toolkit.prediction.engines import find_engine_costs
from toolkit.prediction.machine_profile import MachineProfile, read_profile
from toolkit.prediction.profiled import MeasuredCompute, ProfiledNetwork
from toolkit.program.readers.seconds import read_seconds, run_clocks
from toolkit.program.step import write_step

RESULTS = Path(__file__).with_name("results")
SWEEPS = (
    "cpu-quick",
    "cpu-demo",
    "cpu-links",
    "cpu-links-alone",
    "cpu-mixtures",
    "cpu-reductions",
)
PROFILED = "fp32"
DIFFER = 0.05
"""From which on the faster mode counts as faster."""
PAIR_HEAD = ("sweep", "pairs", "within 10%", "share", "differ by 5%", "faster mode right")
REGRET_HEAD = ("sweep", "setting", "alternatives", "chosen", "best measured", "regret")


@dataclass(frozen=True)
class OwnSweep:
    """A committed sweep and the profiles of its links."""

    name: str
    records: Sequence[Record]
    profiles: Sequence[MachineProfile]

    @cached_property
    def cases(self) -> list[Measured]:
        """What was measured on two ranks, each program once: with one micro-step modes are one."""
        return [
            found
            for found in measured_cases(self.records)
            if found.case.world_size > 1
            and not (found.case.grad_accum_steps == 1 and found.case.accumulation == "sharded")
        ]

    @cached_property
    def predicted_s(self) -> dict[Case, float]:
        """Seconds of a step of every case whose link has a profile."""
        found = {}
        for measured in self.cases:
            seconds = self._predict(measured)
            if seconds is not None:
                found[measured.case] = seconds
        return found

    @cached_property
    def _compute(self) -> MeasuredCompute:
        return MeasuredCompute(next(profile for profile in self.profiles if profile.work))

    def _predict(self, measured: Measured) -> float | None:
        case = measured.case
        link = [each for each in self.profiles if each.link_mbit_per_s == case.link_mbit_per_s]
        if not link:
            return None
        settings = settings_of(case, "cpu")
        engine = find_engine_costs(case.strategy, measured.records[0].environment)
        if case.precision == PROFILED:
            network = ProfiledNetwork(link, settings, engine)
            return run_clocks(write_step(settings), self._compute.compute_s, network).step_s
        compute = compute_of(self.records, case)
        if compute is None:
            return None
        return read_seconds(write_step(settings), compute, ProfiledNetwork(link, settings)).step_s

    @cached_property
    def pairs(self) -> list[Pair]:
        """The cases in both modes that are predicted."""
        found = pairs_of(self.cases, self.predicted_s)
        return [pair for pair in found if pair.predicted is not None]


def read_sweeps() -> list[OwnSweep]:
    """Return the committed sweeps, and the newest profile of each link for all of them."""
    found = (read_profile(path) for path in RESULTS.glob("*/profile*.json"))
    newest = sorted(found, key=lambda profile: profile.environment.started_at)
    profiles = list({each.link_mbit_per_s: each for each in newest}.values())
    return [OwnSweep(name, read_records(RESULTS / name), profiles) for name in SWEEPS]


def pair_rows(sweeps: Sequence[OwnSweep]) -> list[tuple[str, ...]]:
    """Return how often the ratio of the modes, and the faster of them, is predicted."""
    every = [pair for sweep in sweeps for pair in sweep.pairs]
    named = [*((sweep.name, sweep.pairs) for sweep in sweeps), ("all", every)]
    return [PAIR_HEAD, *(_pair_row(name, pairs) for name, pairs in named if pairs)]


def _pair_row(name: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    within = sum(abs(pair.error or 0.0) <= TOLERANCE for pair in pairs)
    apart = [pair for pair in pairs if abs(pair.ratio.median - 1) > DIFFER]
    right = sum(((pair.predicted or 0.0) > 1) == (pair.ratio.median > 1) for pair in apart)
    counts = (len(pairs), within, f"{within / len(pairs):.0%}", len(apart), right)
    return (name, *(str(count) for count in counts))


def regret_rows(sweeps: Sequence[OwnSweep]) -> list[tuple[str, ...]]:
    """Return how much slower than the best measured the one is that is predicted to be fastest."""
    rows: list[tuple[str, ...]] = [REGRET_HEAD]
    regrets = []
    for sweep in sweeps:
        for setting in _settings(sweep):
            chosen = min(setting, key=lambda found: sweep.predicted_s[found.case])
            best = min(setting, key=lambda found: found.step_s.median)
            regret = chosen.step_s.median / best.step_s.median - 1
            regrets.append(regret)
            names = (_choice(found.case) for found in (chosen, best))
            rows.append((sweep.name, _words(best.case), str(len(setting)), *names, f"{regret:.1%}"))
    rows.append(("all", "median", str(len(regrets)), "", "", f"{median(regrets):.1%}"))
    rows.append(("all", "worst", str(len(regrets)), "", "", f"{max(regrets):.1%}"))
    return rows


def _settings(sweep: OwnSweep) -> Iterator[list[Measured]]:
    """Yield the alternatives: cases that differ in strategy, mode and width of reduction alone."""
    known = [found for found in sweep.cases if found.case in sweep.predicted_s]
    choice = {"strategy", "accumulation", "reduce"}
    for group in grouped(known, lambda found: found.case.model_dump_json(exclude=choice)):
        if len(group) > 1:
            yield group


def _choice(case: Case) -> str:
    reduce = f", reduce {case.reduce}" if case.reduce else ""
    return f"{case.strategy} {case.accumulation}{reduce}"


def _words(case: Case) -> str:
    link = "" if case.link_mbit_per_s is None else f", {case.link_mbit_per_s:g} Mbit/s"
    tokens = f"{case.micro_batch_size} x {case.seq_len} tokens"
    return f"A {case.grad_accum_steps}, {tokens}, {case.precision}{link}"
