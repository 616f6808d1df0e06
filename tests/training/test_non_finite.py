"""Steps whose numbers cannot be trained on from: the run ends, skips them or rolls back."""

from collections.abc import Sequence

import pytest
import torch

from tests.training.runs import Start, TinyRun
from toolkit.errors import NonFiniteError
from toolkit.training.callback import Callback, Progress


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_nan_stops_the_run_before_anything_is_saved(start: Start, asynchronous: str) -> None:
    loop = start("training.checkpoint_every=1", f"training.async_save={asynchronous}")

    def spoil(module: object, inputs: object, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if loop.progress.step == 2 else loss

    loop.engine.module.register_forward_hook(spoil)
    with pytest.raises(NonFiniteError, match=r"^step 3: the loss is nan and the gradient norm nan"):
        loop.fit()
    assert loop.column("step") == [1, 2]
    assert loop.summary.steps == 2
    assert loop.committed == ["step_00000001", "step_00000002"]
    assert loop.store.newest_good()[1] == []


def test_an_infinite_gradient_alone_stops_the_run(start: Start) -> None:
    loop = start("optimizer.grad_clip=0")
    loop.engine.module.get_parameter("transformer.ln_f.weight").register_hook(
        lambda gradient: gradient * float("inf") if loop.progress.step == 1 else gradient
    )
    with pytest.raises(NonFiniteError, match=r"^step 2: the loss is \d.* norm (nan|inf)"):
        loop.fit()


class EachState(Callback):
    """Keeps the parameters' bits at the start and after each step."""

    of: TinyRun

    def __init__(self) -> None:
        self.bits: list[list[torch.Tensor]] = []

    def at_start(self, progress: Progress) -> None:
        self.bits.append(self.of.bits())

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        self.bits.append(self.of.bits())


def test_a_skipped_update_leaves_every_bit_and_is_counted_apart(
    start: Start, printed: list[str]
) -> None:
    found = EachState()
    keys = ("training.on_non_finite=skip", "training.checkpoint_every=2")
    loop = found.of = start(*keys, "training.stop_at=2", callbacks=[found])
    loop.poison(1)
    loop.fit()
    initial, updated, skipped = found.bits
    assert all(map(torch.equal, updated, skipped))
    assert not all(map(torch.equal, initial, updated))
    assert loop.counted == (2, 2, 1)
    assert loop.column("step") == [1]
    assert [record["step"] for record in loop.records("left_out")] == [2]
    assert any(line.startswith("step     2/4 | skipped: the loss is 6") for line in printed)
    again = start(*keys)
    assert again.counted == (2, 2, 1)
    steps = {float(state["step"]) for state in again.engine.optimizer.state.values()}
    assert steps == {1.0}


def test_skipping_gives_up_after_the_limit(start: Start) -> None:
    loop = start("training.on_non_finite=skip", "training.non_finite_limit=2")
    loop.poison(1, 2)
    with pytest.raises(NonFiniteError, match="as in 2 steps in a row"):
        loop.fit()
    assert loop.progress.updates == 1


def test_rolling_back_skips_the_window_and_is_remembered(start: Start, printed: list[str]) -> None:
    """After a roll back to step 2 the run is that which never saw batches 2 and 3."""
    keys = ("training.on_non_finite=roll_back", "training.non_finite_limit=2")
    loop = start(*keys, "training.checkpoint_every=2", "training.steps=4")
    loop.poison(2, 3)
    loop.fit()
    assert loop.counted == (4, 6, 4)
    assert loop.column("step") == [1, 2, 3, 4]
    assert any("rolled back from step 4" in line for line in printed)
    jumped = start("run_name=jumped", "training.stop_at=2")
    jumped.fit()
    jumped.change(training=loop.run.config.training)
    jumped.progress.data_step = 4
    jumped.fit()
    assert all(map(torch.equal, jumped.bits(), loop.bits()))
    again = start(*keys, "training.checkpoint_every=2", "training.steps=5")
    assert again.counted[:2] == (4, 6)


def test_a_loss_spike_rolls_back_past_its_data(start: Start, printed: list[str]) -> None:
    keys = ("training.on_loss_spike=roll_back", "training.checkpoint_every=10")
    loop = start(*keys, "training.steps=30")
    loop.engine.module.register_forward_hook(
        lambda module, inputs, loss: 5 * loss if loop.progress.data_step == 24 else loss
    )
    loop.fit()
    assert any(
        "rolled back from step 25 to" in line and "step_00000020" in line for line in printed
    )
    assert loop.counted == (30, 35, 30)
    assert loop.column("step") == list(range(1, 31))
    assert max(loop.column("loss")) < 7


def test_a_roll_back_that_does_not_help_ends_the_run(start: Start) -> None:
    keys = ("training.on_non_finite=roll_back", "training.non_finite_limit=1")
    loop = start(*keys, "training.checkpoint_every=2")
    loop.poison(2, 3)
    with pytest.raises(NonFiniteError, match="step_00000002 did not help before"):
        loop.fit()


def test_a_roll_back_without_a_checkpoint_ends_the_run(start: Start) -> None:
    loop = start("training.on_non_finite=roll_back", "training.non_finite_limit=1")
    loop.poison(1)
    with pytest.raises(NonFiniteError, match="there is no checkpoint"):
        loop.fit()
