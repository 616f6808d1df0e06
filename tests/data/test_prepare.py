import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.data import prepare as module
from toolkit.data import survey as survey_module
from toolkit.data.index import read_index
from toolkit.data.prepare import prepare
from toolkit.data.shards import inspect_shard
from toolkit.data.stream import TokenStream
from toolkit.data.verify import verify_shards
from toolkit.data.vocabulary import END_OF_TEXT, VOCABULARY_SIZE, build_vocabulary
from toolkit.errors import UntrustedError, UsageError


def tokens_of(folder):
    stream = TokenStream(folder, vocab_size=VOCABULARY_SIZE)
    return stream.read(0, len(stream)).tolist()


def expected(*documents):
    vocabulary = build_vocabulary()
    return [
        token for text in documents for token in [END_OF_TEXT, *vocabulary.encode_ordinary(text)]
    ]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes("\ufeffFirst <|endoftext|> of\r\nall.\n".encode())
    (folder / "b.jsonl").write_text('{"text": "line\\r\\none"}\n\n{"text": "two"}\n')
    (folder / "deep" / "c.md").write_text("# Title\n\nText.")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_documents_become_tokens_each_after_end_of_text(texts, tmp_path):
    done = prepare([texts], tmp_path / "out")
    documents = ["First <|endoftext|> of\nall.\n", "line\r\none", "two", "# Title\n\nText."]
    assert tokens_of(tmp_path / "out") == expected(*documents)
    assert done.index.documents == 4
    assert done.index.tokens == len(expected(*documents))
    assert "of 4 documents in 1 shard; files of other kinds ignored: 1" in done.summary
    assert sorted(content(tmp_path / "out")) == ["index.json", "shard_000000.bin"]


def test_the_index_lists_what_is_there(texts, tmp_path):
    prepare([texts], tmp_path / "out", shard_tokens=10)
    fields = json.loads((tmp_path / "out" / "index.json").read_text())
    assert fields["tokens"] == sum(shard["tokens"] for shard in fields["shards"])
    assert [shard["tokens"] for shard in fields["shards"][:-1]] == [10] * (
        len(fields["shards"]) - 1
    )
    assert [source["documents"] for source in fields["sources"]] == [1, 2, 1]
    assert fields["shards"][0]["max_token_id"] == END_OF_TEXT
    assert fields["vocabulary"]["size"] == VOCABULARY_SIZE
    verify_shards(tmp_path / "out")


def test_slices_and_processes_change_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("".join(f"This is line {n}.\n" for n in range(3000)))
    lines = [json.dumps({"text": f"Document {n} says nothing."}) for n in range(2000)]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    prepare(inputs, tmp_path / "whole")
    monkeypatch.setattr(survey_module, "SLICE_BYTES", 1000)
    monkeypatch.setattr(module, "_is_much", lambda files: True)
    for processes in (1, 2):
        prepare(inputs, tmp_path / str(processes), processes=processes)
        assert content(tmp_path / str(processes)) == content(tmp_path / "whole")


def test_one_million_equal_letters_do_not_stop_a_normal_document(tmp_path):
    (tmp_path / "a.txt").write_text("^" * 10**6)
    (tmp_path / "b.txt").write_text("normal")
    started = time.monotonic()
    done = prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out")
    assert time.monotonic() - started < 30
    assert done.index.documents == 2
    tokens = tokens_of(tmp_path / "out")
    assert build_vocabulary().decode(tokens) == (
        "<|endoftext|>" + "^" * 10**6 + "<|endoftext|>normal"
    )


def test_a_hundred_megabytes_of_one_letter_are_refused_or_skipped(tmp_path):
    blob, good = tmp_path / "blob.txt", tmp_path / "good.txt"
    blob.write_bytes(b"a" * 10**8)
    good.write_text("good")
    with pytest.raises(UsageError, match=r"blob\.txt, byte 0: more than 1,048,576 characters"):
        prepare([blob, good], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = prepare([blob, good], tmp_path / "out", skip_bad=True)
    assert tokens_of(tmp_path / "out") == expected("good")
    assert "bad documents skipped: 1, the first is" in done.summary
    assert "blob.txt, byte 0" in done.summary


def test_a_bad_document_is_known_before_anything_is_written(tmp_path):
    (tmp_path / "a.txt").write_text("good " * 1000)
    (tmp_path / "b.jsonl").write_text('{"text": "good"}\nbad\n{"text": "good too"}')
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    with pytest.raises(UsageError, match=r"b\.jsonl, line 2, byte 17: not JSON"):
        prepare(inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = prepare(inputs, tmp_path / "out", skip_bad=True)
    assert (done.index.documents, done.index.skipped) == (3, 1)
    assert tokens_of(tmp_path / "out") == expected("good " * 1000, "good", "good too")


def test_nothing_good_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UsageError, match=r"no good document is left.*a\.txt, byte 0: empty"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", skip_bad=True)


@pytest.mark.parametrize("processes", [0, -1])
def test_the_number_of_processes_is_checked(texts, tmp_path, processes):
    with pytest.raises(UsageError, match=f"at least 1, got {processes}"):
        prepare([texts], tmp_path / "out", processes=processes)


def test_the_same_again_is_reused(texts, tmp_path):
    first = prepare([texts], tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = prepare([texts], tmp_path / "out")
    assert (first.reused, again.reused) == (False, True)
    assert "reused" in again.summary
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}


def test_other_content_in_the_way_is_refused(texts, tmp_path):
    prepare([texts], tmp_path / "out")
    (texts / "a.txt").write_text("changed")
    with pytest.raises(UsageError, match="out: holds shards of other text"):
        prepare([texts], tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"mine/notes\.txt: in the way"):
        prepare([texts], tmp_path / "mine")
    (tmp_path / "mine" / ".incomplete").touch()
    with pytest.raises(UsageError, match=r"mine/notes\.txt: in the way"):
        prepare([texts], tmp_path / "mine")
    with pytest.raises(UsageError, match="not a folder"):
        prepare([texts], tmp_path / "mine" / "notes.txt")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_damaged_shards_are_not_reused(texts, tmp_path):
    prepare([texts], tmp_path / "out")
    shard = tmp_path / "out" / "shard_000000.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UntrustedError, match=r"SHA-256 .*; remove .*out to prepare it again"):
        prepare([texts], tmp_path / "out")


def test_what_an_interrupted_run_left_is_replaced(texts, tmp_path):
    prepare([texts], tmp_path / "clean", shard_tokens=10)
    out = tmp_path / "out"
    out.mkdir()
    for name in (".incomplete", "shard_000000.bin", "shard_000099.bin", ".shard_000001.bin.tmp"):
        (out / name).write_text("half")
    prepare([texts], out, shard_tokens=10)
    assert content(out) == content(tmp_path / "clean")


def test_two_writers_do_not_share_a_folder(texts, tmp_path):
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".incomplete", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process is preparing data there"):
            prepare([texts], tmp_path / "out")
    prepare([texts], tmp_path / "out")


def test_an_input_that_changes_meanwhile_is_noticed(texts, tmp_path, monkeypatch):
    def survey_then_change(paths, **options):
        found = survey_module.survey_files(paths, **options)
        for path, _ in paths:
            path.write_bytes(path.read_bytes().replace(b"two", b"six"))
        return found

    monkeypatch.setattr(module, "survey_files", survey_then_change)
    with pytest.raises(UsageError, match="changed while it was being prepared"):
        prepare([texts], tmp_path / "out")
    assert read_index(tmp_path / "out") is None


def test_a_full_disk_is_one_sentence(texts, tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="out: cannot be written: No space left on device"):
        prepare([texts], tmp_path / "out")


def test_a_worker_that_dies_is_one_sentence():
    with pytest.raises(UsageError, match="ended early, killed from outside"):  # noqa: SIM117
        with module._workers(2) as pool:
            pool.submit(os._exit, 1).result()


PREPARE = """
import sys
from toolkit.data.prepare import prepare

if __name__ == "__main__":
    prepare([sys.argv[1]], sys.argv[2], shard_tokens=100_000, processes=2)
"""


def test_a_kill_leaves_nothing_torn_and_no_process(tmp_path):
    text, out, script = tmp_path / "a.txt", tmp_path / "out", tmp_path / "script.py"
    text.write_text("".join(f"This is the sentence number {n}.\n" for n in range(150_000)))
    script.write_text(PREPARE)
    started = subprocess.Popen(
        [sys.executable, str(script), str(text), str(out)], start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (out / "shard_000002.bin").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        started.send_signal(signal.SIGKILL)
        started.wait()
        assert not (out / "index.json").exists()
        for path in out.glob("*.bin"):
            assert inspect_shard(path).tokens == 100_000
        wait_until_group_is_gone(started.pid)
    finally:
        if group_is_there(started.pid):
            os.killpg(started.pid, signal.SIGKILL)
    prepare([text], out, shard_tokens=100_000, processes=1)
    prepare([text], tmp_path / "clean", shard_tokens=100_000, processes=1)
    assert content(out) == content(tmp_path / "clean")


def wait_until_group_is_gone(group):
    deadline = time.monotonic() + 20
    while group_is_there(group):
        assert time.monotonic() < deadline, "worker processes outlive a killed prepare"
        time.sleep(0.05)


def group_is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("words", [["--shard-tokens", "0"], ["--processes", "0"]])
def test_numbers_below_one_are_refused_before_anything_is_written(texts, tmp_path, words):
    out = tmp_path / "new" / "out"
    done = CliRunner().invoke(app, ["data", "prepare", str(texts), "--out", str(out), *words])
    assert done.exit_code == 2
    with pytest.raises(UsageError, match="got shard_tokens 0"):
        prepare([texts], out, shard_tokens=0)
    assert not out.exists()


def test_a_bad_document_names_the_option_that_skips_it(tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff")
    words = ["data", "prepare", str(bad), "--out", str(tmp_path / "out")]
    with pytest.raises(UsageError, match=r"byte 0: not UTF-8; --skip-bad skips such documents$"):
        CliRunner().invoke(app, words, catch_exceptions=False)
