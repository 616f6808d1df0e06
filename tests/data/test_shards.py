import io
import struct

import numpy as np
import pytest

from tests.data.shard_files import write_bare, write_llmc
from toolkit.data.shards import header, inspect_shard
from toolkit.errors import UntrustedError, UsageError

TOKENS = np.arange(50, 150, dtype=np.uint16)


def test_reads_llmc(tmp_path):
    shard = inspect_shard(write_llmc(tmp_path / "a.bin", TOKENS))
    assert (shard.layout, shard.offset, shard.tokens) == ("llm.c", 1024, 100)
    assert shard.read(3, 7).tolist() == [53, 54, 55, 56]


def test_reads_nanogpt(tmp_path):
    shard = inspect_shard(write_bare(tmp_path / "train.bin", TOKENS))
    assert (shard.layout, shard.offset, shard.tokens) == ("nanoGPT", 0, 100)
    assert shard.read(0, 2).tolist() == [50, 51]


def test_reads_build_nanogpt(tmp_path):
    np.save(tmp_path / "a.npy", TOKENS)
    shard = inspect_shard(tmp_path / "a.npy")
    assert (shard.layout, shard.tokens) == ("build-nanogpt", 100)
    assert shard.read(98, 100).tolist() == [148, 149]


def test_our_header_is_llmcs(tmp_path):
    (tmp_path / "a.bin").write_bytes(header(100) + TOKENS.tobytes())
    assert (tmp_path / "a.bin").read_bytes() == write_llmc(tmp_path / "b.bin", TOKENS).read_bytes()


def test_no_file_of_gpt2_tokens_starts_with_a_magic_number():
    for magic in (20240520, 20240801):
        assert np.array([magic], dtype="<i4").view("<u2")[0] > 50_256


def refused(path, error, *parts):
    with pytest.raises(error) as caught:
        inspect_shard(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_refuses_other_headers(tmp_path):
    path = tmp_path / "a.bin"
    refused(write_llmc(path, TOKENS, magic=20240801, version=7), UntrustedError, "1424", "1224")
    refused(write_llmc(path, TOKENS, magic=20240801), UsageError, "version 1", "version 7")
    refused(write_llmc(path, TOKENS, version=2), UsageError, "version 2", "version 1")
    refused(write_llmc(path, TOKENS, count=99), UntrustedError, "99 tokens", "1222", "1224")
    refused(write_llmc(path, TOKENS, count=-1), UntrustedError, "-1 tokens")
    refused(write_llmc(path, []), UsageError, "no tokens")
    for cut in (8, 512):
        path.write_bytes(header(100)[:cut])
        refused(path, UntrustedError, f"cut off inside its header ({cut} of 1,024 bytes)")


def test_a_damaged_header_is_not_taken_for_tokens(tmp_path):
    path = write_llmc(tmp_path / "a.bin", np.ones(70_000), magic=0)
    refused(path, UntrustedError, "a damaged header: little-endian, magic 0 and 70000 tokens")
    path.write_bytes(struct.pack(">3i", 20240520, 1, 100).ljust(1024, b"\0") + TOKENS.tobytes())
    refused(path, UntrustedError, "a damaged header: big-endian, magic 20240520")


def test_bare_tokens_that_begin_with_zeros_are_read(tmp_path):
    assert inspect_shard(write_bare(tmp_path / "a.bin", [0] * 512)).tokens == 512
    # A header's worth of zeros that ends too early, or a count that is not the file's.
    for tokens in ([3, 4, 1, 0, 100, *[0] * 506, 7, *TOKENS], [3, 4, 1, 0, 99, *[0] * 607]):
        assert inspect_shard(write_bare(tmp_path / "a.bin", tokens)).layout == "nanoGPT"


def test_refuses_odd_and_empty_files(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    refused(path, UntrustedError, "3 bytes")
    path.write_bytes(b"")
    refused(path, UsageError, "no tokens")


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (TOKENS.astype(np.int64), "int64"),
        (TOKENS.astype(np.uint32), "uint32"),
        (TOKENS.astype(">u2"), ">u2"),
        (TOKENS.reshape(10, 10), "2 dimensions"),
        (np.empty(0, dtype=np.uint16), "no tokens"),
    ],
)
def test_refuses_other_arrays(tmp_path, array, found):
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path / "a.npy", UsageError, found)


def test_refuses_npy_with_a_broken_header(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, TOKENS)
    good = buffer.getvalue()
    path = tmp_path / "a.npy"
    path.write_bytes(good[:-1])
    refused(path, UntrustedError, str(len(good) - 1))
    for place in range(80):
        path.write_bytes(good[:place] + b"[" + good[place + 1 :])
        with pytest.raises((UsageError, UntrustedError)):
            inspect_shard(path)


def test_refuses_other_names_and_missing_files(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", UsageError, ".bin or .npy")
    refused(tmp_path / "gone.bin", UsageError, "No such file")


def test_a_file_cut_short_after_opening_is_one_sentence(tmp_path):
    path = write_llmc(tmp_path / "a.bin", TOKENS)
    shard = inspect_shard(path)
    with open(path, "r+b") as file:
        file.truncate(1024 + 2 * 60)
    with pytest.raises(UntrustedError, match=r"a\.bin: ends after 60 tokens, but had 100"):
        shard.read(50, 70)
    with pytest.raises(UntrustedError, match=r"a\.bin: ends after 60 tokens, but had 100"):
        shard.read(70, 80)
    path.unlink()
    with pytest.raises(UntrustedError, match="No such file"):
        shard.read(0, 1)


def test_bare_32_bit_tokens_are_not_taken_for_16_bit_ones(tmp_path):
    path = tmp_path / "wide.bin"
    np.arange(1, 100, dtype="<u4").tofile(path)
    with pytest.raises(UsageError, match=r"wide\.bin: every second 16-bit token is 0"):
        inspect_shard(path)
    np.zeros(100, dtype="<u2").tofile(path)
    assert inspect_shard(path).tokens == 100
