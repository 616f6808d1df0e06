"""Checkpoints of a few bytes, saved as rank 0 would."""

import hashlib
from pathlib import Path

from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.tensors import Fingerprint
from toolkit.checkpoint.training_state import TrainingState

PARTS = ("rank_00000.safetensors", "rank_00001.safetensors")


def training_state(step: int) -> TrainingState:
    return TrainingState.after(step, shapes={"weight": [4]}, config={"seed": 1})


def save(store: CheckpointStore, *steps: int, keep_last: int = 9) -> None:
    for step in steps:
        store.begin(step)
        parts = {}
        for name in PARTS:
            data = f"part {name} of {step}".encode()
            (store.partial(step) / name).write_bytes(data)
            parts[name] = Fingerprint(len(data), hashlib.sha256(data).hexdigest())
        store.commit(step, training_state(step).to_json(), parts, keep_last=keep_last)


def newest(store: CheckpointStore) -> Path:
    return store.committed()[-1]
