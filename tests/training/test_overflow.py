"""Updates that fp16 skips are made again and are no steps."""

from collections.abc import Sequence

import pytest
import torch

from tests.training.runs import Start, TinyRun
from toolkit.engines.engine import Engine
from toolkit.errors import NonFiniteError
from toolkit.training import loop as loop_module
from toolkit.training.callback import Callback
from toolkit.training.loop import MAX_OVERFLOWS
from toolkit.training.step import MicroBatch, StepResult, train_step


class Overflow:
    """fp16 on a machine without it: some updates overflow and are skipped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: TinyRun, overflows: set[int]) -> None:
        self.skipped = False
        self.batches: list[list[MicroBatch]] = []
        self.rates: list[float] = []
        self.overflows = overflows
        loop.change(precision="fp16")
        monkeypatch.setattr(loop_module, "train_step", self.train_step)
        skipped = property(lambda engine: self.skipped)
        monkeypatch.setattr(type(loop.engine), "step_was_skipped", skipped)

    def train_step(
        self,
        engine: Engine,
        micro_batches: list[MicroBatch],
        *,
        lr: float,
        callbacks: Sequence[Callback],
    ) -> StepResult:
        self.skipped = len(self.batches) in self.overflows
        self.batches.append(micro_batches)
        self.rates.append(lr)
        if self.skipped:
            return StepResult(torch.tensor(1.0), torch.tensor(float("inf")))
        return train_step(engine, micro_batches, lr=lr)


def test_an_update_skipped_by_fp16_is_done_again_and_is_no_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, loop = start("run_name=straight"), start()
    straight.fit()
    overflow = Overflow(monkeypatch, loop, {1})
    loop.fit()
    assert loop.column("skipped") == [0, 1, 0, 0]
    assert loop.curve() == straight.curve()
    assert len(overflow.batches) == 5
    assert overflow.batches[1] is overflow.batches[2]
    assert overflow.rates[1] == overflow.rates[2]


def test_endless_fp16_overflow_ends_the_run_with_its_cause(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.checkpoint_every=1")
    overflow = Overflow(monkeypatch, loop, set(range(2, 100)))
    with pytest.raises(NonFiniteError, match=r"^step 3: fp16 gradients overflowed 20 times"):
        loop.fit()
    assert len(overflow.batches) == 2 + MAX_OVERFLOWS
    assert loop.column("step") == [1, 2]
    assert loop.store.committed()[-1].name == "step_00000002"


def test_the_console_names_what_was_skipped(
    start: Start, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.stop_at=2")
    Overflow(monkeypatch, loop, {1})
    loop.fit()
    assert printed[0].startswith("step     1/4 | loss ")
    assert "skipped" not in printed[0]
    assert printed[1].endswith(" | skipped 1")
