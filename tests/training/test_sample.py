from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.engines.engine import Engine
from toolkit.model.sizes import GPT2_VOCAB_SIZE, PADDED_VOCAB_SIZE
from toolkit.training.sample import TOP_K, sample_tokens
from toolkit.verify.cases import TINY, Case

Build = Callable[[Case], Engine]
Logits = Callable[[torch.Tensor], torch.Tensor]


class Oracle:
    """An engine whose model answers with given logits [vocab_size] and notes what it is asked."""

    def __init__(self, logits: Logits) -> None:
        self.engine: Any = SimpleNamespace(
            device=torch.device("cpu"), evaluating=nullcontext, model=self._model
        )
        self.logits = logits
        self.prompts: list[list[int]] = []

    def _model(self, tokens: torch.Tensor) -> torch.Tensor:
        self.prompts.append(tokens[0].tolist())
        last = self.logits(tokens)
        # Only the last place counts.
        return torch.cat([-last.expand(1, tokens.shape[1] - 1, -1), last.view(1, 1, -1)], dim=1)

    def sample(self, *, start: int = 1, length: int = 40, seed: int = 0) -> list[int]:
        return sample_tokens(self.engine, start=start, length=length, block_size=8, seed=seed)


def flat(vocab_size: int) -> Oracle:
    return Oracle(lambda tokens: torch.zeros(vocab_size))


def test_rows_that_pad_the_vocabulary_are_never_chosen() -> None:
    """They are made the likeliest by far, and what is left is the last real id."""
    logits = torch.full((PADDED_VOCAB_SIZE,), -1e4)
    logits[GPT2_VOCAB_SIZE:] = 1e4
    logits[GPT2_VOCAB_SIZE - 1] = 0.0
    assert Oracle(lambda tokens: logits).sample() == 40 * [GPT2_VOCAB_SIZE - 1]


def test_only_the_likeliest_are_chosen_from() -> None:
    logits = torch.zeros(300)
    likely = range(7, 300, 5)[:TOP_K]
    logits[list(likely)] = 1.0
    assert set(Oracle(lambda tokens: logits).sample(length=400)) <= set(likely)


def test_a_small_vocabulary_is_chosen_from_whole() -> None:
    assert set(flat(3).sample(length=100)) == {0, 1, 2}


def test_likelier_tokens_are_chosen_more_often() -> None:
    logits = torch.log(torch.tensor([0.7, 0.2, 0.1]))
    found = Oracle(lambda tokens: logits).sample(length=1000)
    assert [found.count(token) / 1000 for token in range(3)] == pytest.approx(
        [0.7, 0.2, 0.1], abs=0.05
    )


def test_the_model_sees_what_came_before_up_to_its_block_size() -> None:
    engine = flat(100)
    text = [5, *engine.sample(start=5, length=12)]
    assert engine.prompts == [text[max(0, end - 8) : end] for end in range(1, 13)]


def test_the_seed_decides_and_leaves_other_randomness_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (flat(100).sample(seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_sampled_where_nothing_is_wanted() -> None:
    engine = flat(10)
    assert (engine.sample(length=0), engine.prompts) == ([], [])


def test_a_real_model_writes_beyond_its_block_size_and_trains_on(single_engine: Build) -> None:
    case = Case(accumulation="replicated", grad_accum_steps=1, dropout=0.5)
    engine = single_engine(case)
    first, second = (
        sample_tokens(engine, start=0, length=40, block_size=TINY.block_size, seed=3)
        for _ in range(2)
    )
    assert len(first) == 40
    assert first == second
    assert engine.model.training
