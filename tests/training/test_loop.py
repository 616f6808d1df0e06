import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.checkpoint import saver as saver_module
from toolkit.config import load_run_config
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.errors import NonFiniteError, Preempted, SaveError, UntrustedError, UsageError
from toolkit.memory.advice import estimate_run
from toolkit.training import loop as loop_module
from toolkit.training.build import build_run
from toolkit.training.loop import MAX_SKIPPED_IN_A_ROW, Loop
from toolkit.training.run_folder import run_folder
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, StepResult, train_step

Start = Callable[..., Loop]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(run_file: Path, said: list[str]) -> Start:
    """Start the tiny run with some keys changed, as one process would."""
    from accelerate.state import AcceleratorState, GradientState

    def start_run(*overrides: str, strict: bool = False) -> Loop:
        AcceleratorState._reset_state()
        GradientState._reset_state()
        config = load_run_config(run_file, overrides)
        folder = run_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        launched = read_launch({})
        run = build_run(config, launched, folder)
        estimate = estimate_run(config, launched, device_type="cpu")
        return Loop(run, folder, said.append, estimate=estimate, strict=strict)

    return start_run


def records(loop: Loop, kind: str = "train") -> list[dict[str, Any]]:
    lines = (run_folder(loop.config) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def column(loop: Loop, key: str) -> list[Any]:
    return [record[key] for record in records(loop)]


def curve(loop: Loop) -> list[tuple[Any, ...]]:
    keys = ("step", "loss", "grad_norm", "lr", "tokens")
    return [tuple(record[key] for key in keys) for record in records(loop)]


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
    first, measured, *others = [list(record) for record in records(loop)]
    assert [first, *others] == 3 * [train_keys]
    assert measured == [*train_keys, "transport_memory_bytes"]
    assert [list(record) for record in records(loop, "eval")] == 2 * [
        ["kind", "step", "loss", "tokens"]
    ]
    assert column(loop, "step") == [1, 2, 3, 4]
    assert column(loop, "tokens") == [512, 1024, 1536, 2048]
    assert [record["step"] for record in records(loop, "eval")] == [2, 4]
    # 500 tokens are 15 sequences of 32 and what is left over.
    assert [record["tokens"] for record in records(loop, "eval")] == [480, 480]
    # On a CPU the second step is the one that is measured.
    unmeasured, *peaks = column(loop, "peak_memory_bytes")
    assert unmeasured is None
    # It counts what other tests left in this process; tests/memory compares it in one of its own.
    assert peaks[0] >= 0.99 * loop.estimate.total
    assert set(peaks) == {peaks[0]}


def test_a_step_takes_one_sum_and_one_exchange_of_numbers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.check_replicas_every=0")
    asked: list[str] = []
    for name in ("begin_sum", "max_over_ranks", "gather_numbers", "gather_from_ranks"):
        original = getattr(Engine, name)

        def ask(engine: Engine, value: Any, name: str = name, original: Any = original) -> Any:
            asked.append(name)
            return original(engine, value)

        monkeypatch.setattr(Engine, name, ask)
    loop.fit()
    assert asked == 4 * ["begin_sum", "gather_numbers"]


def test_a_run_learns(start: Start) -> None:
    loop = start("training.steps=20", "optimizer.lr=1.0e-2")
    loop.fit()
    losses = column(loop, "loss")
    assert losses[-1] < losses[0] - 0.1


def test_stop_at_ends_early_on_the_same_schedule(start: Start) -> None:
    decaying = "optimizer.warmup_steps=0"
    whole = start("run_name=whole", decaying)
    early = start("run_name=early", decaying, "training.stop_at=2")
    whole.fit()
    early.fit()
    assert early.step == 2
    assert curve(early) == curve(whole)[:2]
    assert curve(early)[1][3] == lr_at(1, whole.config.optimizer, steps=4)


def test_a_finished_run_has_nothing_to_do(start: Start, said: list[str]) -> None:
    first = start("training.steps=2", "training.checkpoint_every=2")
    first.fit()
    done = curve(first)
    again = start("training.steps=2", "training.checkpoint_every=2")
    again.fit()
    assert said[-1] == "nothing to do: 2 of 2 steps are done"
    assert curve(again) == done


def test_carrying_on_is_exact_with_dropout(start: Start, said: list[str]) -> None:
    straight = start("run_name=straight", "model.dropout=0.1")
    straight.fit()
    keys = ("run_name=parts", "model.dropout=0.1", "training.checkpoint_every=2")
    start(*keys, "training.stop_at=2").fit()
    second = start(*keys)
    assert said[-1].endswith("step_00000002 after 2 steps")
    second.fit()
    assert curve(second) == curve(straight)


def test_a_damaged_checkpoint_is_passed_over_and_said(start: Start, said: list[str]) -> None:
    first = start("training.checkpoint_every=2")
    first.fit()
    whole = curve(first)
    newest = run_folder(first.config) / "checkpoints" / "step_00000004" / "rank_00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    said.clear()
    again = start("training.checkpoint_every=2")
    assert again.step == 2
    assert said[0].startswith(f"passed over: {newest} is not what was written")
    again.fit()
    assert curve(again) == whole


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.n_embd=32", "trained with model.n_embd 16, the configuration has 32"),
        ("model.n_layer=2", "trained with model.n_layer 1, the configuration has 2"),
        ("model.vocab_size=600", "trained with model.vocab_size 512"),
        ("seed=7", "trained with seed 1337, the configuration has 7"),
        ("optimizer.name=sgd", "trained with optimizer.name adamw, the configuration has sgd"),
        ("batch.tokens_per_step=1024", "trained with batch.tokens_per_step 512"),
        ("data.seq_len=16", "trained with data.seq_len 32"),
        ("data.shuffle=false", "trained with data.shuffle True, the configuration has False"),
        ("data.train={folder}/val", "trained on other data (2,500 tokens, here 500)"),
    ],
)
def test_another_run_is_not_carried_on(
    start: Start, run_file: Path, override: str, words: str
) -> None:
    keys = ("batch.tokens_per_step=256",) if "{folder}" in override else ()
    start(*keys, "training.checkpoint_every=1", "training.stop_at=1").fit()
    with pytest.raises(UsageError) as caught:
        start(*keys, override.format(folder=run_file.parent))
    assert "checkpoints/step_00000001" in str(caught.value)
    assert words in str(caught.value)
    assert "choose another run_name" in str(caught.value)


def test_a_run_that_ends_saves_its_last_state_though_it_saves_none_on_the_way(
    start: Start, said: list[str]
) -> None:
    loop = start("training.checkpoint_every=0")
    loop.fit()
    (saved,) = loop.store.committed()
    assert saved.name == "step_00000004"
    again = start("training.checkpoint_every=0", "training.steps=6")
    assert again.step == 4
    start("run_name=early", "training.checkpoint_every=0", "training.stop_at=2").fit()
    assert any(line.startswith("saved ") and "early" in line for line in said)


def test_a_run_that_is_never_to_save_does_not(start: Start) -> None:
    loop = start("training.checkpoint_every=never")
    loop.fit()
    assert loop.step == 4
    assert loop.store.committed() == []
    with pytest.raises(Preempted, match="after step 4, which is not saved, as training"):
        loop._end_early("SIGTERM")
    assert loop.store.committed() == []


def test_what_may_change_is_shown(start: Start, said: list[str]) -> None:
    start("training.checkpoint_every=1", "training.stop_at=1").fit()
    said.clear()
    loop = start("batch.micro_batch_size=2", "optimizer.lr=5.0e-4", "training.steps=5")
    assert loop.step == 1
    assert said[:-1] == [
        "changed: batch.micro_batch_size 4 -> 2",
        "changed: optimizer.lr 0.001 -> 0.0005",
        "changed: training.checkpoint_every 1 -> never",
        "changed: training.steps 4 -> 5",
    ]


def test_strict_refuses_to_pass_over_a_damaged_checkpoint(start: Start) -> None:
    first = start("training.checkpoint_every=2")
    first.fit()
    newest = first.store.committed()[-1] / "state.json"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(UntrustedError, match=r"state\.json is not what was written"):
        start("training.checkpoint_every=2", strict=True)


def test_without_any_good_checkpoint_nothing_starts_afresh(start: Start) -> None:
    first = start("training.checkpoint_every=2")
    first.fit()
    for path in first.store.committed():
        (path / "manifest.json").unlink()
    with pytest.raises(UntrustedError, match="no checkpoint here can be resumed from"):
        start("training.checkpoint_every=2")


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_nan_stops_the_run_before_anything_is_saved(start: Start, asynchronous: str) -> None:
    loop = start("training.checkpoint_every=1", f"training.async_save={asynchronous}")

    def poison(module: object, inputs: object, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if loop.step == 2 else loss

    loop.engine.module.register_forward_hook(poison)
    with pytest.raises(NonFiniteError, match=r"^step 3: the loss is nan and the gradient norm nan"):
        loop.fit()
    assert column(loop, "step") == [1, 2]
    assert loop.figures()["steps"] == 2
    assert [path.name for path in loop.store.committed()] == ["step_00000001", "step_00000002"]
    assert loop.store.newest_good()[1] == []


def test_an_infinite_gradient_alone_stops_the_run(start: Start) -> None:
    loop = start("optimizer.grad_clip=0")
    loop.engine.module.get_parameter("transformer.ln_f.weight").register_hook(
        lambda gradient: gradient * float("inf") if loop.step == 1 else gradient
    )
    with pytest.raises(NonFiniteError, match=r"^step 2: the loss is \d.* norm (nan|inf)"):
        loop.fit()


class Overflow:
    """fp16 on a machine without it: some updates overflow and are left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: Loop, overflows: set[int]) -> None:
        self.skipped = False
        self.batches: list[list[MicroBatch]] = []
        self.rates: list[float] = []
        self.overflows = overflows
        loop.config = loop.config.model_copy(update={"precision": "fp16"})
        monkeypatch.setattr(loop_module, "train_step", self.train_step)
        skipped = property(lambda engine: self.skipped)
        monkeypatch.setattr(type(loop.engine), "step_was_skipped", skipped)

    def train_step(
        self, engine: Engine, micro_batches: list[MicroBatch], *, lr: float
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
    assert column(loop, "skipped") == [0, 1, 0, 0]
    assert curve(loop) == curve(straight)
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
    assert len(overflow.batches) == 2 + MAX_SKIPPED_IN_A_ROW
    assert column(loop, "step") == [1, 2]
    assert loop.store.committed()[-1].name == "step_00000002"


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
    assert column(loop, "step_s") == [100.0, 1.0, 1.0, 2.0]
    assert column(loop, "tokens_per_s") == [5.12, 512.0, 512.0, 256.0]
    assert loop.figures()["tokens_per_s"] == 512.0


def test_figures_of_a_run_that_did_nothing_are_null(start: Start) -> None:
    figures = start().figures()
    assert figures == {
        "steps": 0,
        "final_loss": None,
        "tokens_per_s": None,
        "peak_memory_bytes": None,
        "estimated_peak_memory_bytes": start().estimate.total,
    }


def test_accumulation_changes_neither_schedule_nor_curve(start: Start) -> None:
    one, many = (start(f"run_name=b{n}", f"batch.micro_batch_size={n}") for n in (16, 1))
    assert (one.run.plan.grad_accum_steps, many.run.plan.grad_accum_steps) == (1, 16)
    one.fit()
    many.fit()
    assert column(one, "lr") == column(many, "lr")
    assert column(one, "lr") == [5e-4, 1e-3, 1e-3, 5e-4]
    assert column(one, "loss") == pytest.approx(column(many, "loss"), rel=1e-5)
    assert column(one, "grad_norm") == pytest.approx(column(many, "grad_norm"), rel=1e-4)


def test_the_console_names_what_was_skipped(
    start: Start, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.stop_at=2")
    Overflow(monkeypatch, loop, {1})
    loop.fit()
    assert said[0].startswith("step     1/4 | loss ")
    assert "skipped" not in said[0]
    assert said[1].endswith(" | skipped 1")


def test_replicas_are_compared_as_often_as_asked_and_at_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    loop = start("training.check_replicas_every=3")
    monkeypatch.setattr(loop_module, "check_replicas", lambda engine: compared.append(loop.step))
    loop.fit()
    assert compared == [3, 4]


def poison(loop: Loop, *data_steps: int) -> None:
    """Make the gradient NaN in the batches with these numbers."""
    loop.engine.module.get_parameter("transformer.ln_f.weight").register_hook(
        lambda gradient: gradient * float("nan") if loop.data_step in data_steps else gradient
    )


def bits(loop: Loop) -> list[torch.Tensor]:
    return [parameter.detach().clone() for _, parameter in loop.engine.named_parameters()]


def test_a_skipped_update_leaves_every_bit_and_is_counted_apart(
    start: Start, said: list[str]
) -> None:
    loop = start("training.on_non_finite=skip", "training.stop_at=2", "training.checkpoint_every=2")
    poison(loop, 1)
    before: list[list[torch.Tensor]] = []
    loop.mark = lambda step: before.append(bits(loop))
    loop.fit()
    assert all(map(torch.equal, before[1], bits(loop)))
    assert not all(map(torch.equal, before[0], before[1]))
    assert (loop.step, loop.data_step, loop.updates) == (2, 2, 1)
    assert column(loop, "step") == [1]
    assert [record["step"] for record in records(loop, "left_out")] == [2]
    assert any(line.startswith("step     2/4 | left out: the loss is 6") for line in said)
    again = start("training.on_non_finite=skip", "training.checkpoint_every=2")
    assert (again.step, again.data_step, again.updates) == (2, 2, 1)
    steps = {float(state["step"]) for state in again.engine.optimizer.state.values()}
    assert steps == {1.0}


def test_skipping_gives_up_after_the_limit(start: Start) -> None:
    loop = start("training.on_non_finite=skip", "training.non_finite_limit=2")
    poison(loop, 1, 2)
    with pytest.raises(NonFiniteError, match="as in 2 steps in a row"):
        loop.fit()
    assert loop.updates == 1


def test_rolling_back_skips_the_window_and_is_remembered(start: Start, said: list[str]) -> None:
    """After a roll back to step 2 the run is that which never saw batches 2 and 3."""
    keys = ("training.on_non_finite=roll_back", "training.non_finite_limit=2")
    loop = start(*keys, "training.checkpoint_every=2", "training.steps=4")
    poison(loop, 2, 3)
    loop.fit()
    assert (loop.step, loop.data_step, loop.updates) == (4, 6, 4)
    assert column(loop, "step") == [1, 2, 3, 4]
    assert any("rolled back from step 4" in line for line in said)
    jumped = start("run_name=jumped", "training.stop_at=2")
    jumped.fit()
    jumped.config = loop.config
    jumped.data_step = 4
    jumped.fit()
    assert all(map(torch.equal, bits(jumped), bits(loop)))
    again = start(*keys, "training.checkpoint_every=2", "training.steps=5")
    assert (again.step, again.data_step) == (4, 6)


def test_a_loss_spike_rolls_back_past_its_data(start: Start, said: list[str]) -> None:
    keys = ("training.on_loss_spike=roll_back", "training.checkpoint_every=10")
    loop = start(*keys, "training.steps=30")
    loop.engine.module.register_forward_hook(
        lambda module, inputs, loss: 5 * loss if loop.data_step == 24 else loss
    )
    loop.fit()
    assert any("rolled back from step 25 to" in line and "step_00000020" in line for line in said)
    assert (loop.step, loop.data_step, loop.updates) == (30, 35, 30)
    assert column(loop, "step") == list(range(1, 31))
    assert max(column(loop, "loss")) < 7


def test_a_roll_back_that_does_not_help_ends_the_run(start: Start) -> None:
    keys = ("training.on_non_finite=roll_back", "training.non_finite_limit=1")
    loop = start(*keys, "training.checkpoint_every=2")
    poison(loop, 2, 3)
    with pytest.raises(NonFiniteError, match="step_00000002 did not help before"):
        loop.fit()


def test_a_roll_back_without_a_checkpoint_ends_the_run(start: Start) -> None:
    loop = start("training.on_non_finite=roll_back", "training.non_finite_limit=1")
    poison(loop, 1)
    with pytest.raises(NonFiniteError, match="there is no checkpoint"):
        loop.fit()


def test_asynchronous_saving_writes_the_state_of_its_step(start: Start, said: list[str]) -> None:
    sync, behind = (
        start(f"run_name=a-{on}", "training.checkpoint_every=1", f"training.async_save={on}")
        for on in ("false", "true")
    )
    sync.fit()
    behind.fit()
    for step in (2, 3, 4):
        first, second = (
            loop.store.folder / f"step_{step:08d}" / "rank_00000.safetensors"
            for loop in (sync, behind)
        )
        assert first.read_bytes() == second.read_bytes()
    assert any(line.startswith("saving step 1 meanwhile") for line in said)


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_full_disk_ends_the_run_or_not_as_it_says(
    start: Start, said: list[str], monkeypatch: pytest.MonkeyPatch, asynchronous: str
) -> None:
    keys = ("training.checkpoint_every=1", f"training.async_save={asynchronous}")
    loop = start(*keys, "training.on_save_error=warn")
    full = OSError(28, "No space left on device")
    write = saver_module.write_tensors

    def fail(path: Path, entries: object) -> object:
        if loop.step == 3 or path.parent.name == "step_00000003.partial":
            raise full
        return write(path, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(saver_module, "write_tensors", fail)
    loop.fit()
    assert [path.name for path in loop.store.committed()] == [
        "step_00000001",
        "step_00000002",
        "step_00000004",
    ]
    assert any("cannot be written: No space left on device; the run goes on" in s for s in said)
    other = start("run_name=other", *keys)
    loop.step = 0
    with pytest.raises(SaveError, match="No space left on device"):
        other.fit()
    assert [path.name for path in other.store.folder.iterdir()] == [
        "step_00000001",
        "step_00000002",
    ]


def test_too_little_space_is_known_before_anything_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.checkpoint_every=1")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(SaveError, match=r"needs 144,192 bytes, but 1,000 are free"):
        loop.fit()
    assert list(loop.store.folder.iterdir()) == []
