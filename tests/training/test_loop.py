"""A whole run of one process: its records, its schedule, its clock."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.runs import Start
from toolkit.engines.ranks import Ranks
from toolkit.training import checks
from toolkit.training import loop as loop_module
from toolkit.training.schedule import lr_at
from toolkit.training.summary import Summary


def test_records_have_exactly_the_promised_keys(start: Start) -> None:
    loop = start("training.eval_every=2")
    loop.fit()
    train_keys = [
        "kind",
        "step",
        "loss",
        "grad_norm",
        "lr",
        "tokens",
        "tokens_per_s",
        "step_s",
        "peak_memory_bytes",
        "skipped",
    ]
    first, measured, *others = [list(record) for record in loop.records()]
    assert [first, *others] == 3 * [train_keys]
    assert measured == [*train_keys, "transport_memory_bytes"]
    assert [list(record) for record in loop.records("eval")] == 2 * [
        ["kind", "step", "loss", "tokens"]
    ]
    assert loop.column("step") == [1, 2, 3, 4]
    assert loop.column("tokens") == [512, 1024, 1536, 2048]
    assert [record["step"] for record in loop.records("eval")] == [2, 4]
    # 500 tokens are 15 sequences of 32 and what is left over.
    assert [record["tokens"] for record in loop.records("eval")] == [480, 480]
    # On a CPU the second step is the one that is measured.
    unmeasured, *peaks = loop.column("peak_memory_bytes")
    assert unmeasured is None
    # It counts what other tests left in this process; tests/memory compares it in one of its own.
    assert peaks[0] >= 0.99 * loop.estimate.total
    assert set(peaks) == {peaks[0]}


def test_a_step_takes_one_sum_and_one_exchange_of_numbers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.check_replicas_every=0")
    asked: list[str] = []
    for name in ("begin_sum", "max", "gather_numbers", "gather"):
        original = getattr(Ranks, name)

        def ask(ranks: Ranks, value: Any, name: str = name, original: Any = original) -> Any:
            asked.append(name)
            return original(ranks, value)

        monkeypatch.setattr(Ranks, name, ask)
    loop.fit()
    assert asked == 4 * ["begin_sum", "gather_numbers"]


def test_a_run_learns(start: Start) -> None:
    loop = start("training.steps=20", "optimizer.lr=1.0e-2")
    loop.fit()
    losses = loop.column("loss")
    assert losses[-1] < losses[0] - 0.1


def test_stop_at_ends_early_on_the_same_schedule(start: Start) -> None:
    decaying = "optimizer.warmup_steps=0"
    whole = start("run_name=whole", decaying)
    early = start("run_name=early", decaying, "training.stop_at=2")
    whole.fit()
    early.fit()
    assert early.progress.step == 2
    assert early.curve() == whole.curve()[:2]
    assert early.curve()[1][3] == lr_at(1, whole.run.config.optimizer, steps=4)


def test_a_finished_run_has_nothing_to_do(start: Start, printed: list[str]) -> None:
    first = start("training.steps=2", "training.checkpoint_every=2")
    first.fit()
    done = first.curve()
    again = start("training.steps=2", "training.checkpoint_every=2")
    again.fit()
    assert printed[-1] == "nothing to do: 2 of 2 steps are done"
    assert again.curve() == done


def clock(step_s: Iterator[float]) -> Callable[[], float]:
    """A clock that is read at the start and the end of each step."""
    now = 0.0
    starting = True

    def read() -> float:
        nonlocal now, starting
        now += 0.0 if starting else next(step_s)
        starting = not starting
        return now

    return read


@pytest.mark.parametrize("micro_batch_size", [1, 4, 16])
def test_tokens_per_s_is_the_whole_steps_tokens_by_its_time(
    start: Start, monkeypatch: pytest.MonkeyPatch, micro_batch_size: int
) -> None:
    loop = start(f"batch.micro_batch_size={micro_batch_size}")
    fake = SimpleNamespace(perf_counter=clock(iter([100.0, 1.0, 1.0, 2.0])))
    monkeypatch.setattr(loop_module, "time", fake)
    loop.fit()
    assert loop.column("step_s") == [100.0, 1.0, 1.0, 2.0]
    assert loop.column("tokens_per_s") == [5.12, 512.0, 512.0, 256.0]
    assert loop.summary.tokens_per_s == 512.0


def test_figures_of_a_run_that_did_nothing_are_null(start: Start) -> None:
    assert start().summary == Summary(steps=0)


def test_accumulation_changes_neither_schedule_nor_curve(start: Start) -> None:
    one, many = (start(f"run_name=b{n}", f"batch.micro_batch_size={n}") for n in (16, 1))
    assert (one.run.plan.grad_accum_steps, many.run.plan.grad_accum_steps) == (1, 16)
    one.fit()
    many.fit()
    assert one.column("lr") == many.column("lr")
    assert one.column("lr") == [5e-4, 1e-3, 1e-3, 5e-4]
    assert one.column("loss") == pytest.approx(many.column("loss"), rel=1e-5)
    assert one.column("grad_norm") == pytest.approx(many.column("grad_norm"), rel=1e-4)


def test_replicas_are_compared_as_often_as_asked_and_at_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    loop = start("training.check_replicas_every=3")
    monkeypatch.setattr(
        checks, "check_replicas", lambda engine: compared.append(loop.progress.step)
    )
    loop.fit()
    assert compared == [3, 4]
