"""Load checkpoints into the launched engine, compare every bit, and save the state again.

Run under `accelerate launch` with a folder and the names of checkpoints in it; the first of them is
saved again as `STRATEGY_RANKS`, first synchronously and then asynchronously, and must come out the
same. Rank 0 prints one JSON object: what differed.
"""

import json
import os
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch

from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.state import PortableState, read_state
from toolkit.checkpoint.store import CheckpointStore, find_damage
from toolkit.checkpoint.training_state import TrainingState, read_training_state
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.engines.state import Kind
from toolkit.launch.exit_code import end_process
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

LAUNCHED = read_launch(os.environ)
KINDS: tuple[Kind, ...] = ("parameter", "exp_avg", "exp_avg_sq")


def main(folder: Path, names: list[str]) -> None:
    start_process_group(LAUNCHED, timeout=timedelta(seconds=60))
    case = Case(accumulation="replicated", grad_accum_steps=1, optimizer="adamw", seed=5)
    engine = worker.build_case(case, TINY, LAUNCHED)
    differing: dict[str, list[str]] = {}
    for name in names:
        checkpoint = folder / name / "step_00000003"
        state = read_training_state(checkpoint)
        read_state(engine, checkpoint, with_moments=True, updates=state.updates)
        differing[name] = differences(engine, checkpoint)
        # So that the next one finds another state than its own.
        train_step(engine, worker.own_micro_batches(case, TINY, engine, 0), lr=1e-3)
    own = f"{LAUNCHED.strategy}_{LAUNCHED.world_size}"
    checkpoint = folder / names[0] / "step_00000003"
    state = read_training_state(checkpoint)
    read_state(engine, checkpoint, with_moments=True, updates=state.updates)
    for asynchronous in (False, True):
        save(engine, folder / own, state, asynchronous=asynchronous)
        differing[f"saved, asynchronous {asynchronous}"] = differences(
            engine, folder / own / "step_00000003"
        )
    if engine.rank == 0:
        print("PORTABLE " + json.dumps(differing), flush=True)


def save(engine: Engine, folder: Path, state: TrainingState, *, asynchronous: bool) -> None:
    saver = Saver(engine, CheckpointStore(folder), keep_last=1, asynchronous=asynchronous)
    saver.begin(state)
    if asynchronous:
        for _, parameter in engine.module.named_parameters():
            engine.state.held_values(parameter, "exp_avg").add_(1.0)
    final = saver.finish()
    assert final is not None
    assert list(find_damage(final)) == []
    if asynchronous:
        read_state(engine, final, with_moments=True, updates=state.updates)


def differences(engine: Engine, checkpoint: Path) -> list[str]:
    """Names whose elements are not the file's on any rank, and so what the model computes with."""
    found = []
    with ExitStack() as files:
        state = PortableState(checkpoint, files)
        for kind in KINDS:
            for name, parameter in engine.module.named_parameters():
                held = engine.state.held(parameter)
                values = engine.state.held_values(parameter, kind)
                pieces = [piece for _, piece in state.read(kind, name, held)]
                expected = torch.cat(pieces) if pieces else torch.empty(0)
                if not torch.equal(values.cpu(), expected):
                    found.append(f"{kind} {name}")
        for name, parameter in engine.module.named_parameters():
            whole = engine.state.full_parameter(parameter)
            if not torch.equal(whole.cpu(), state.whole("parameter", name, whole.shape)):
                found.append(f"whole {name}")
    return sorted({name for names in engine.ranks.gather(found) for name in names})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    end_process(0)
