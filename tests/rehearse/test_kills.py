"""Whole machines killed at random moments: each next start is bit for bit the unbroken run.

`KILLS` sets how many, `make soak-machines` 30.
"""

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rehearse.test_rehearsals import NO_LINKS, plan_of, traces
from toolkit.checkpoint.store import CheckpointStore, find_damage
from toolkit.rehearse.machines import Machines, Plan, machines
from toolkit.training.metrics import read_metrics

KILLS = int(os.environ.get("KILLS", "3"))
PER_RUN = 10
STEPS = 300
WITHIN_S = 2.0
START_S, TIMEOUT_S, AFTER_S = 300.0, 8.0, 30.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.distributed,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
]


class Run:
    """Starts of one run on two machines."""

    def __init__(self, plan: Plan, folder: Path, name: str) -> None:
        words = (f"output_dir={folder / 'runs'}", f"run_name={name}")
        self.plan = replace(plan, overrides=(*plan.overrides, *words))
        self.folder = folder / "runs" / name
        self.printed = folder / name

    def curve(self) -> list[tuple[Any, ...]]:
        records = read_metrics(self.folder / "metrics.jsonl")
        return [(r["step"], r["loss"], r["grad_norm"], r["tokens"]) for r in records]

    def checkpoint(self) -> dict[str, bytes]:
        """Return the parts of the newest checkpoint, which is whole; none before the first."""
        parts = {}
        for newest in CheckpointStore(self.folder / "checkpoints").committed()[-1:]:
            assert list(find_damage(newest)) == []
            parts = {path.name: path.read_bytes() for path in newest.glob("rank_*")}
        return parts

    def start(self, number: int, draw: random.Random | None = None) -> list[int | None]:
        """Run to the end, or to a kill at a drawn moment; return the machines' codes."""
        with machines(self.plan, self.printed / str(number)) as running:
            try:
                for _ in range(2):
                    running.start()
                if draw is not None:
                    self._kill(running, draw)
                assert running.await_end(TIMEOUT_S + AFTER_S if draw else START_S)
                assert running.processes_left() == 0
                return running.codes()
            finally:
                running.end()

    def _kill(self, running: Machines, draw: random.Random) -> None:
        """Kill either machine: by its power, which the other hears nothing of, or its processes."""
        until = time.monotonic() + START_S
        while "\nstep " not in running.printed(0):
            assert None in running.codes(), running.printed(0)
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, WITHIN_S))
        machine, is_power = draw.randrange(2), draw.random() < 0.5
        if is_power:
            running.link.take_down(machine)
        running.link.kill(machine)


@pytest.fixture(scope="module")
def straight(run_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run without a kill."""
    run = Run(plan_of(run_file, steps=STEPS), tmp_path_factory.mktemp("straight"), "straight")
    assert run.start(0) == [0, 0]
    return run


@pytest.fixture(scope="module")
def survived(request: pytest.FixtureRequest) -> Iterator[list[list[int | None]]]:
    """The codes after each kill, printed at the end."""
    found: list[list[int | None]] = []
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{len(found)} of {KILLS} kills survived, codes {sorted(map(str, found))}")


@pytest.mark.parametrize("seed", range(-(-KILLS // PER_RUN)))
def test_every_kill_of_a_machine_is_survived_bit_for_bit(
    run_file: Path, straight: Run, tmp_path: Path, survived: list[list[int | None]], seed: int
) -> None:
    before = traces()
    draw = random.Random(seed)
    run = Run(plan_of(run_file, steps=STEPS), tmp_path, f"killed-{seed}")
    expected = straight.curve()
    for number in range(min(PER_RUN, KILLS - seed * PER_RUN)):
        codes = run.start(number, draw)
        # The one that is killed has the signal's.
        printed = (run.printed / str(number) / "machine0/log").read_text()
        assert -9 in codes, (codes, printed)
        assert set(codes) <= {4, 75, -9}, (codes, printed)
        assert run.curve() == expected[: len(run.curve())]
        run.checkpoint()
        survived.append(codes)
    assert run.start(PER_RUN) == [0, 0]
    assert run.curve() == expected
    assert run.checkpoint() == straight.checkpoint() != {}
    assert traces() == before
