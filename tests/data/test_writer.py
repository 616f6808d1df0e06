import numpy as np
import pytest

from toolkit.data.shards import inspect_shard, token_type
from toolkit.data.writer import ShardWriter
from toolkit.errors import UsageError


def test_cuts_the_stream_into_shards(tmp_path):
    writer = ShardWriter(tmp_path, shard_tokens=10, vocabulary_size=50_257)
    for piece in np.array_split(np.arange(50_232, 50_257), 4):
        writer.append(piece)
    entries = writer.finish()
    assert [(e.file, e.tokens, e.max_token_id) for e in entries] == [
        ("shard_000000.bin", 10, 50_241),
        ("shard_000001.bin", 10, 50_251),
        ("shard_000002.bin", 5, 50_256),
    ]
    shards = [inspect_shard(tmp_path / entry.file) for entry in entries]
    assert np.concatenate([s.read(0, s.tokens) for s in shards]).tolist() == [
        *range(50_232, 50_257)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [e.file for e in entries]


def test_an_unfinished_shard_has_no_final_name(tmp_path):
    writer = ShardWriter(tmp_path, shard_tokens=10, vocabulary_size=100)
    writer.append(np.arange(9))
    assert [path.name for path in tmp_path.iterdir()] == [".shard_000000.bin.tmp"]


def test_a_vocabulary_of_more_than_16_bits_has_wider_tokens(tmp_path):
    assert (token_type(65_536), token_type(65_537)) == (np.dtype("<u2"), np.dtype("<u4"))
    writer = ShardWriter(tmp_path, shard_tokens=10, vocabulary_size=100_277)
    writer.append(np.array([1, 65_536, 100_276]))
    (entry,) = writer.finish()
    shard = inspect_shard(tmp_path / entry.file)
    assert (entry.bytes, entry.max_token_id) == (1024 + 3 * 4, 100_276)
    assert (shard.layout, shard.read(0, 3).tolist()) == ("llm.c", [1, 65_536, 100_276])


@pytest.mark.parametrize("wrong", [50_257, 65_536, 70_000, -1])
def test_an_id_that_would_wrap_is_refused(tmp_path, wrong):
    writer = ShardWriter(tmp_path, shard_tokens=10, vocabulary_size=50_257)
    with pytest.raises(UsageError, match=f"token id {wrong} is outside a vocabulary of 50257"):
        writer.append(np.array([1, 2, wrong]))


@pytest.mark.parametrize("shard_tokens", [0, -1, 2**31])
def test_a_shard_size_that_the_header_cannot_hold_is_refused(tmp_path, shard_tokens):
    with pytest.raises(UsageError, match=f"got shard_tokens {shard_tokens}"):
        ShardWriter(tmp_path, shard_tokens=shard_tokens, vocabulary_size=100)
