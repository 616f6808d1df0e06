"""A run started again: from where it was, or refused as another."""

from pathlib import Path

import pytest

from tests.training.runs import Start
from toolkit.errors import UntrustedError, UsageError


def test_resuming_is_exact_with_dropout(start: Start, printed: list[str]) -> None:
    straight = start("run_name=straight", "model.dropout=0.1")
    straight.fit()
    keys = ("run_name=parts", "model.dropout=0.1", "training.checkpoint_every=2")
    start(*keys, "training.stop_at=2").fit()
    second = start(*keys)
    assert printed[-1].endswith("step_00000002 after 2 steps")
    second.fit()
    assert second.curve() == straight.curve()


def test_a_damaged_checkpoint_is_skipped_and_named(start: Start, printed: list[str]) -> None:
    first = start("training.checkpoint_every=2")
    first.fit()
    whole = first.curve()
    newest = first.folder / "checkpoints" / "step_00000004" / "rank_00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    printed.clear()
    again = start("training.checkpoint_every=2")
    assert again.progress.step == 2
    assert printed[0].startswith(f"skipped: {newest} is not what was written")
    again.fit()
    assert again.curve() == whole


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
def test_another_run_is_not_resumed(
    start: Start, run_file: Path, override: str, words: str
) -> None:
    keys = ("batch.tokens_per_step=256",) if "{folder}" in override else ()
    start(*keys, "training.checkpoint_every=1", "training.stop_at=1").fit()
    with pytest.raises(UsageError) as caught:
        start(*keys, override.format(folder=run_file.parent))
    assert "checkpoints/step_00000001" in str(caught.value)
    assert words in str(caught.value)
    assert "choose another run_name" in str(caught.value)


def test_what_may_change_is_shown(start: Start, printed: list[str]) -> None:
    start("training.checkpoint_every=1", "training.stop_at=1").fit()
    printed.clear()
    loop = start("batch.micro_batch_size=2", "optimizer.lr=5.0e-4", "training.steps=5")
    assert loop.progress.step == 1
    assert printed[:-1] == [
        "changed: batch.micro_batch_size 4 -> 2",
        "changed: optimizer.lr 0.001 -> 0.0005",
        "changed: training.checkpoint_every 1 -> never",
        "changed: training.steps 4 -> 5",
    ]


def test_strict_refuses_to_skip_a_damaged_checkpoint(start: Start) -> None:
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
