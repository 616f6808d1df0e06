"""What a run under `recorded_toolkit.py` did: its steps, and the sequences of each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.config import load_run_config
from toolkit.data.batches import TokenDataset
from toolkit.data.stream import TokenStream
from toolkit.training.metrics import read_metrics


@dataclass(frozen=True)
class Trained:
    """What a run did.

    Attributes:
        steps: its records.
        batches: the sequences of each step's global batch in order, as the ranks were given them;
            of a step that was done again, those of the last time.
        repeated: the same for the times before, each with its step.
    """

    steps: list[dict[str, Any]]
    batches: list[list[int]]
    repeated: list[tuple[int, list[int]]]


class _GlobalBatch:
    """What the ranks of one start were given for one step."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], list[int]] = {}
        self.ranks: set[int] = set()
        self.world_size = 0

    @property
    def is_whole(self) -> bool:
        """Whether all ranks did it; where a machine went, only some may have."""
        return len(self.ranks) == self.world_size

    def ids(self) -> list[int]:
        """Return its sequences, wave by wave and in each rank by rank."""
        return [number for part in sorted(self.parts) for number in self.parts[part]]


def trained(folder: Path, config_file: Path) -> Trained:
    """Return what a run did.

    Args:
        folder: with `batches`, where its ranks recorded them, and `run`, the run's own.
        config_file: of the run; no two sequences of its data are the same.
    """
    number_of = _numbers(config_file)
    found: dict[tuple[int, int], _GlobalBatch] = {}
    for path in (folder / "batches").iterdir():
        start, rank = map(int, path.stem.split("_"))
        for line in path.read_text().splitlines():
            step, wave, world_size, sequences = json.loads(line)
            batch = found.setdefault((step, start), _GlobalBatch())
            batch.parts[wave, rank] = [number_of[tuple(tokens)] for tokens in sequences]
            batch.ranks.add(rank)
            batch.world_size = world_size
    in_order = sorted(found.items(), key=lambda item: item[0])
    whole = [(step, batch.ids()) for (step, _), batch in in_order if batch.is_whole]
    last = dict(whole)
    repeated = [(step, ids) for step, ids in whole if ids is not last[step]]
    steps = read_metrics(folder / "run" / "metrics.jsonl")
    return Trained(steps, [last[step] for step in sorted(last)], repeated)


def _numbers(config_file: Path) -> dict[tuple[int, ...], int]:
    """Return the number of each sequence in the data by its tokens."""
    config = load_run_config(config_file)
    stream = TokenStream(config.data.train, vocab_size=config.model.vocab_size)
    dataset = TokenDataset(stream, seq_len=config.data.seq_len)
    inputs, _ = dataset.sequences(np.arange(len(dataset)))
    numbers = {tuple(tokens): number for number, tokens in enumerate(inputs.tolist())}
    assert len(numbers) == len(dataset)
    return numbers
