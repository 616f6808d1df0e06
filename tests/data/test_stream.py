import subprocess
import sys

import numpy as np
import pytest

from tests.data.shard_files import write_bare, write_indexed_folder, write_llmc
from toolkit.data.stream import TokenStream
from toolkit.errors import UntrustedError, UsageError

VOCAB = 50_257


def three_layouts(folder):
    write_llmc(folder / "a.bin", range(0, 10))
    np.save(folder / "b.npy", np.arange(10, 13, dtype=np.uint16))
    write_bare(folder / "c.bin", range(13, 20))
    return folder


def test_joins_shards_of_any_layout_in_order_of_their_names(tmp_path):
    stream = TokenStream(three_layouts(tmp_path), vocab_size=VOCAB)
    assert len(stream) == 20
    for start in range(20):
        for stop in range(start + 1, 21):
            read = stream.read(start, stop)
            assert read.dtype == np.int64
            assert read.tolist() == list(range(start, stop))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (15, 21)])
def test_a_read_beyond_the_stream_is_refused(tmp_path, start, stop):
    stream = TokenStream(three_layouts(tmp_path), vocab_size=VOCAB)
    with pytest.raises(IndexError):
        stream.read(start, stop)


def test_patterns_and_lists_are_joined_as_given(tmp_path):
    three_layouts(tmp_path)
    stream = TokenStream([f"{tmp_path}/c*", tmp_path / "a.bin"], vocab_size=VOCAB)
    assert stream.read(0, 17).tolist() == [*range(13, 20), *range(0, 10)]
    assert len(TokenStream(f"{tmp_path}/*.bin", vocab_size=VOCAB)) == 17


def test_nothing_found_names_the_pattern(tmp_path):
    with pytest.raises(UsageError, match=r"no_such/\*\.bin' matches no shard"):
        TokenStream("no_such/*.bin", vocab_size=VOCAB)
    with pytest.raises(UsageError, match="holds no shard"):
        TokenStream(tmp_path, vocab_size=VOCAB)
    with pytest.raises(UsageError, match="no shards are named"):
        TokenStream([], vocab_size=VOCAB)


def test_a_shard_named_twice_is_refused(tmp_path):
    three_layouts(tmp_path)
    with pytest.raises(UsageError, match=r"a\.bin: named twice"):
        TokenStream([tmp_path, f"{tmp_path}/a*"], vocab_size=VOCAB)


def test_train_and_val_in_one_folder_are_not_mixed(tmp_path):
    write_bare(tmp_path / "train.bin", range(10))
    write_bare(tmp_path / "val.bin", range(10))
    with pytest.raises(UsageError, match=r"train and val shards together.*\*train\*"):
        TokenStream(tmp_path, vocab_size=VOCAB)
    assert len(TokenStream(f"{tmp_path}/*train*", vocab_size=VOCAB)) == 10


@pytest.mark.parametrize("write", [write_llmc, write_bare])
def test_an_id_outside_the_vocabulary_is_refused_at_opening(tmp_path, write):
    path = write(tmp_path / "a.bin", [1, 2, 3, VOCAB, 4])
    offset = path.stat().st_size - 4
    expected = rf"a\.bin: token 3 \(byte {offset}\) is id 50257, but a vocabulary of 50257 ends at"
    with pytest.raises(UsageError, match=expected):
        TokenStream(tmp_path, vocab_size=VOCAB)
    assert len(TokenStream(tmp_path, vocab_size=VOCAB + 1)) == 5
    with pytest.raises(UsageError, match=r"is id 50257, .*, or vocab_size is too small"):
        TokenStream(tmp_path, vocab_size=VOCAB - 1)


def test_an_id_written_after_opening_is_refused_when_read(tmp_path):
    write_llmc(tmp_path / "a.bin", range(10))
    stream = TokenStream(tmp_path, vocab_size=VOCAB)
    write_llmc(tmp_path / "a.bin", [0, 0, 0, 0, 60_000, *range(5)])
    assert stream.read(0, 4).tolist() == [0, 0, 0, 0]
    with pytest.raises(UsageError, match=r"token 4 .* id 60000"):
        stream.read(2, 6)


def test_a_folder_is_compared_with_its_index(tmp_path):
    assert len(TokenStream(write_indexed_folder(tmp_path), vocab_size=VOCAB)) == 10
    (tmp_path / "shard_000001.bin").write_bytes(b"ab")
    with pytest.raises(UntrustedError, match=r"shard_000001\.bin: not listed"):
        TokenStream(tmp_path, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 1046}, r"shard_000000\.bin: 1044 bytes, but index.json has 1046"),
        ({"file": "other.bin"}, r"other\.bin: missing"),
        ({"file": "../other.bin"}, "no plain file name"),
        ({"tokens": 9}, r"10 tokens in llm\.c's layout, but index\.json has 9"),
        ({"bytes": "1044"}, "not the index"),
        ({"max_token_id": -1}, "not the index"),
    ],
)
def test_a_false_index_is_not_trusted(tmp_path, changes, message):
    with pytest.raises(UntrustedError, match=message):
        TokenStream(write_indexed_folder(tmp_path, **changes), vocab_size=VOCAB)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 10**5, "\0"])
def test_a_broken_index_is_not_trusted(tmp_path, text):
    write_indexed_folder(tmp_path)
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(UntrustedError, match=r"index\.json: not the index"):
        TokenStream(tmp_path, vocab_size=VOCAB)


def test_the_index_spares_the_scan_but_not_the_limit(tmp_path):
    write_indexed_folder(tmp_path, vocabulary=256)
    write_llmc(tmp_path / "shard_000000.bin", [9] * 9 + [300])
    # The index says that the largest id is 9, so only the read finds the 300.
    stream = TokenStream(tmp_path, vocab_size=256)
    with pytest.raises(UsageError, match="id 300"):
        stream.read(0, 10)
    write_indexed_folder(tmp_path, vocabulary=256, max_token_id=300)
    write_llmc(tmp_path / "shard_000000.bin", [9] * 9 + [300])
    with pytest.raises(UsageError, match=r"token 9 \(byte 1042\) is id 300"):
        TokenStream(tmp_path, vocab_size=256)


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path):
    write_indexed_folder(tmp_path)
    with pytest.raises(UsageError, match="'gpt2' of 50,257 tokens, but a vocabulary of 512"):
        TokenStream(tmp_path, vocab_size=512)


def test_an_index_changed_after_writing_is_not_trusted(tmp_path):
    path = write_indexed_folder(tmp_path) / "index.json"
    text = path.read_text()
    for changed in (text.replace("a.txt", "b.txt"), text + " ", text.replace('"gpt2"', '"gpt3"')):
        path.write_text(changed)
        with pytest.raises(UntrustedError, match=r"index\.json: changed since it was written"):
            TokenStream(tmp_path, vocab_size=VOCAB)


def test_what_an_interrupted_prepare_left_is_refused(tmp_path):
    write_llmc(tmp_path / "shard_000000.bin", range(10))
    (tmp_path / ".incomplete").touch()
    with pytest.raises(UsageError, match="was interrupted here"):
        TokenStream(tmp_path, vocab_size=VOCAB)


READ_ALL = """
import resource, sys
import numpy as np
from toolkit.data.batches import TokenDataset
from toolkit.data.stream import TokenStream
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = TokenStream(sys.argv[1], vocab_size=50257)
data = TokenDataset(stream, seq_len=1024)
for step in range(2000):
    data.sequences(np.arange(step * 8, step * 8 + 8) * 97 % len(data))
print(len(stream), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_bounded_over_400_mb(tmp_path):
    path = tmp_path / "train.bin"
    with open(path, "wb") as file:
        file.truncate(400 * 10**6)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(path)], capture_output=True, text=True, check=True
    )
    tokens, grown_kib = map(int, done.stdout.split())
    assert tokens == 200 * 10**6
    assert grown_kib < 50 * 1024
