import numpy as np
import pytest

from tests.data.shard_files import write_llmc
from toolkit.data.batches import IGNORE_INDEX, GlobalBatches, TokenDataset, eval_batches
from toolkit.data.stream import TokenStream
from toolkit.errors import UsageError


def dataset(folder, *, sequences, seq_len, shards=1):
    """Token t of the stream has id t, so that a batch shows where it was read."""
    tokens = np.arange(sequences * seq_len + 1)
    for number, piece in enumerate(np.array_split(tokens, shards)):
        write_llmc(folder / f"{number}.bin", piece)
    return TokenDataset(TokenStream(folder, vocab_size=50_257), seq_len=seq_len)


def batches(data, *, micro_batch_size, world_size, rank, sequences_per_step, shuffle=True, seed=7):
    return GlobalBatches(
        data,
        sequences_per_step=sequences_per_step,
        micro_batch_size=micro_batch_size,
        grad_accum_steps=sequences_per_step // (micro_batch_size * world_size),
        world_size=world_size,
        rank=rank,
        seed=seed,
        shuffle=shuffle,
    )


def global_batch(data, step, *, micro_batch_size, world_size, **options):
    """Put the ranks' micro-batches together in the order of the slots."""
    ranks = [
        batches(
            data, micro_batch_size=micro_batch_size, world_size=world_size, rank=rank, **options
        ).micro_batches(step)
        for rank in range(world_size)
    ]
    return [np.concatenate(parts) for parts in zip(*_waves(ranks), strict=True)]


def _waves(ranks):
    for wave in zip(*ranks, strict=True):
        yield from wave


def test_targets_are_inputs_shifted_by_one_across_shard_borders(tmp_path):
    data = dataset(tmp_path, sequences=6, seq_len=4, shards=7)
    inputs, targets = data.sequences(np.arange(6))
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.tolist() == np.arange(24).reshape(6, 4).tolist()
    assert targets.tolist() == (np.arange(24).reshape(6, 4) + 1).tolist()


def test_what_does_not_fill_a_sequence_is_skipped(tmp_path):
    write_llmc(tmp_path / "a.bin", range(12))
    stream = TokenStream(tmp_path, vocab_size=100)
    assert len(TokenDataset(stream, seq_len=4)) == 2
    assert len(TokenDataset(stream, seq_len=11)) == 1
    with pytest.raises(UsageError, match=r"13 tokens are needed .* there are 12"):
        TokenDataset(stream, seq_len=12)


def test_unshuffled_ranks_start_apart_and_stride_together(tmp_path):
    """Rank r starts at token B T r and moves by B T W from one micro-step to the next."""
    data = dataset(tmp_path, sequences=24, seq_len=4)
    for rank in range(3):
        source = batches(
            data,
            micro_batch_size=2,
            world_size=3,
            rank=rank,
            sequences_per_step=12,
            shuffle=False,
        )
        starts = [
            int(inputs[0, 0]) for step in range(2) for inputs, _ in source.micro_batches(step)
        ]
        assert starts == [2 * 4 * rank + 2 * 4 * 3 * m for m in range(4)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_one_epoch_gives_each_window_to_one_rank_once(tmp_path, shuffle):
    data = dataset(tmp_path, sequences=64, seq_len=8)
    seen = []
    for rank in range(4):
        source = batches(
            data,
            micro_batch_size=2,
            world_size=4,
            rank=rank,
            sequences_per_step=16,
            shuffle=shuffle,
        )
        for step in range(4):
            for inputs, _ in source.micro_batches(step):
                seen += (inputs[:, 0] // 8).tolist()
    assert sorted(seen) == list(range(64))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_global_batch_is_the_same_however_it_is_cut(tmp_path, shuffle):
    data = dataset(tmp_path, sequences=22, seq_len=4, shards=3)
    # Step 2 takes positions 16 to 23, across the border of the first two epochs.
    for step in range(4):
        options = {"sequences_per_step": 8, "shuffle": shuffle}
        whole = global_batch(data, step, micro_batch_size=8, world_size=1, **options)
        for world_size in (1, 2, 4):
            for micro_batch_size in (1, 2):
                cut = global_batch(
                    data,
                    step,
                    micro_batch_size=micro_batch_size,
                    world_size=world_size,
                    **options,
                )
                assert np.array_equal(cut[0], whole[0])
                assert np.array_equal(cut[1], whole[1])
    assert not np.array_equal(
        global_batch(data, 0, micro_batch_size=8, world_size=1, **options)[0],
        global_batch(data, 1, micro_batch_size=8, world_size=1, **options)[0],
    )


def test_batches_across_epochs_use_each_sequence_once_per_epoch(tmp_path):
    data = dataset(tmp_path, sequences=10, seq_len=4)
    source = batches(data, micro_batch_size=4, world_size=1, rank=0, sequences_per_step=4)
    ids = np.concatenate([source.ids(step) for step in range(5)])
    assert sorted(ids[:10]) == sorted(ids[10:]) == list(range(10))


def test_too_little_data_names_both_numbers_and_the_remedy(tmp_path):
    data = dataset(tmp_path, sequences=7, seq_len=4)
    with pytest.raises(UsageError) as caught:
        batches(data, micro_batch_size=2, world_size=4, rank=0, sequences_per_step=8)
    message = str(caught.value)
    assert "needs 33 tokens" in message
    assert "there are 29" in message
    assert "batch.tokens_per_step to at most 28" in message


def test_a_plan_that_does_not_multiply_up_is_refused(tmp_path):
    data = dataset(tmp_path, sequences=8, seq_len=4)
    with pytest.raises(ValueError, match="is not sequences_per_step 8"):
        batches(data, micro_batch_size=3, world_size=1, rank=0, sequences_per_step=8)


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 1), (2, 2), (4, 3), (3, 8)])
@pytest.mark.parametrize("limit", [None, 4, 100])
def test_every_rank_evaluates_equally_often_and_each_sequence_counts_once(
    tmp_path, world_size, micro_batch_size, limit
):
    data = dataset(tmp_path, sequences=10, seq_len=4)
    ranks = [
        list(
            eval_batches(
                data,
                micro_batch_size=micro_batch_size,
                world_size=world_size,
                rank=rank,
                max_sequences=limit,
            )
        )
        for rank in range(world_size)
    ]
    assert len({len(pairs) for pairs in ranks}) == 1
    seen = []
    for inputs, targets in (pair for pairs in ranks for pair in pairs):
        assert inputs.shape == targets.shape == (micro_batch_size, 4)
        counted = targets[:, 0] != IGNORE_INDEX
        assert (targets[~counted] == IGNORE_INDEX).all()
        assert (inputs[~counted] == 0).all()
        assert (targets[counted] == inputs[counted] + 1).all()
        seen += (inputs[counted, 0] // 4).tolist()
    assert sorted(seen) == list(range(min(10, limit or 10)))
