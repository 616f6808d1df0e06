import numpy as np
import pytest

from tests.data.shard_files import write_bare, write_llmc
from toolkit.data.prepare import prepare
from toolkit.data.verify import verify_shards
from toolkit.errors import UntrustedError, UsageError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("Some words, and some more.")
    prepare([tmp_path / "a.txt"], tmp_path / "out", shard_tokens=4)
    return tmp_path / "out"


def test_an_intact_folder_passes(folder):
    assert "intact, 8 tokens of 1 document in 2 shards" in verify_shards(folder).summary


def test_a_flipped_byte_anywhere_is_found(folder):
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        # Every byte of the tokens, and some of the long header and index.
        for place in [*range(0, len(data) - 8, 7), *range(len(data) - 8, len(data))]:
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            with pytest.raises(UntrustedError, match=path.name):
                verify_shards(folder)
        path.write_bytes(data)
    verify_shards(folder)


def test_every_problem_is_one_sentence(folder):
    (folder / "shard_000000.bin").unlink()
    with open(folder / "shard_000001.bin", "ab") as file:
        file.write(b"ab")
    write_llmc(folder / "shard_000002.bin", [1, 2])
    with pytest.raises(UntrustedError) as caught:
        verify_shards(folder)
    missing, longer, surplus = str(caught.value).splitlines()
    assert missing == f"{folder}/shard_000000.bin: missing, but index.json lists it"
    assert longer == f"{folder}/shard_000001.bin: 1034 bytes, but index.json has 1032"
    assert surplus == f"{folder}/shard_000002.bin: not listed in index.json"


def test_shards_of_others_are_checked_as_far_as_that_is_possible(tmp_path):
    write_llmc(tmp_path / "a.bin", range(100))
    np.save(tmp_path / "b.npy", np.arange(50_157, 50_257, dtype=np.uint16))
    write_bare(tmp_path / "c.bin", range(50))
    (tmp_path / "notes.txt").touch()
    checked, unchecked = verify_shards(tmp_path).summary.splitlines()
    assert checked == (
        f"{tmp_path}: 250 tokens in 3 shards (1 in llm.c's layout, 1 in build-nanogpt's layout, "
        "1 in nanoGPT's layout), headers and sizes agree, largest id 50,256 of GPT-2's 50,256"
    )
    assert unchecked.startswith("not checked: there is no index.json, so neither hashes nor")
    assert unchecked.endswith("its tokens are counted by the size of the file")


def test_every_fault_of_others_shards_is_one_sentence(tmp_path):
    write_llmc(tmp_path / "a.bin", range(100), count=99)
    np.save(tmp_path / "b.npy", np.arange(3))
    write_bare(tmp_path / "c.bin", [1, 2, 50_257])
    write_llmc(tmp_path / "d.bin", range(10))
    (tmp_path / "e.bin").write_bytes(b"abc")
    with pytest.raises(UntrustedError) as caught:
        verify_shards(tmp_path)
    count, kind, token, odd = str(caught.value).splitlines()
    assert count.startswith(f"{tmp_path}/a.bin: the header has 99 tokens")
    assert kind.startswith(f"{tmp_path}/b.npy: an array of int64")
    assert token.startswith(f"{tmp_path}/c.bin: token 2 (byte 4) is id 50257")
    assert odd.startswith(f"{tmp_path}/e.bin: 3 bytes are no whole number")


def test_what_is_no_folder_of_shards_is_wrong_usage(folder, tmp_path):
    (folder / "index.json").unlink()
    (folder / ".incomplete").touch()
    (tmp_path / "empty").mkdir()
    for path, message in [
        (folder, "was interrupted here"),
        (tmp_path / "empty", r"empty: holds no index\.json and no shard"),
        (tmp_path / "gone", "gone: no such folder"),
    ]:
        with pytest.raises(UsageError, match=message):
            verify_shards(path)
