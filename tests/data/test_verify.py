import pytest

from tests.data.shard_files import write_llmc
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
    assert longer == f"{folder}/shard_000001.bin: 1034 bytes, but index.json says 1032"
    assert surplus == f"{folder}/shard_000002.bin: not listed in index.json"


def test_a_folder_without_index_is_no_prepared_folder(folder, tmp_path):
    (folder / "index.json").unlink()
    for path in (folder, tmp_path / "gone"):
        with pytest.raises(UsageError, match=f"{path.name}: not a prepared folder"):
            verify_shards(path)
