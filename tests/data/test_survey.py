import hashlib

import pytest

from toolkit.data import survey as module
from toolkit.data.cuts import MAX_RUN
from toolkit.data.survey import survey
from toolkit.errors import UsageError


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize("slice_bytes", [1, 2, 7, 64, 10**6])
def test_slices_cover_a_text_and_start_before_white_space(tmp_path, monkeypatch, slice_bytes):
    monkeypatch.setattr(module, "SLICE_BYTES", slice_bytes)
    text = "\ufeffGrüße an 世界 🎉\r\n\r\n und  alle ".encode() * 3
    found = survey(write(tmp_path / "a.txt", text), skip_bad=False)
    assert found.source.documents == 1
    assert found.source.sha256 == hashlib.sha256(text).hexdigest()
    parts = [text[part.start : part.stop] for part in found.slices]
    assert b"".join(parts) == text
    assert all(part[:1] in (b" ", b"\n") for part in parts[1:])
    assert (len(parts) > 5) == (slice_bytes < 64)


@pytest.mark.parametrize("slice_bytes", [1, 30, 10**6])
def test_slices_cover_the_good_lines(tmp_path, monkeypatch, slice_bytes):
    monkeypatch.setattr(module, "SLICE_BYTES", slice_bytes)
    lines = [b'{"text": "a"}\n', b"\n", b"broken\n", b'{"text": "b"}\n', b'{"text": "c"}\n', b"{}"]
    found = survey(write(tmp_path / "a.jsonl", b"".join(lines)), skip_bad=True)
    assert (found.source.documents, found.source.skipped) == (3, 2)
    assert found.problem == f"{tmp_path}/a.jsonl, line 3, byte 15: not JSON: Expecting value"
    data = b"".join(lines)
    good = b"".join(data[part.start : part.stop] for part in found.slices)
    assert good == b"".join([*lines[:2], *lines[3:5]])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", "text\0text", "a.txt, byte 4: binary, it holds NUL"),
        ("a.txt", b"text \xff", "a.txt, byte 5: not UTF-8"),
        ("a.txt", "ö".encode() + b"\xc3", "a.txt, byte 2: not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "a.txt, byte 0: not UTF-8"),
        ("a.txt", "", "a.txt, byte 0: empty"),
        ("a.md", "\ufeff \r\n\t", "a.md, byte 0: empty"),
        ("a.txt", "ö word " + "x" * (MAX_RUN + 1), "a.txt, byte 7: more than 1,048,576 characters"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"txet": "b"}\n',
            "a.jsonl, line 2, byte 14: not a JSON object",
        ),
        ("a.jsonl", "\n\n", "a.jsonl, byte 0: empty"),
    ],
)
def test_a_bad_document_is_one_sentence_or_skipped(tmp_path, name, data, message):
    path = write(tmp_path / name, data)
    with pytest.raises(UsageError) as caught:
        survey(path, skip_bad=False)
    assert f"{tmp_path}/{message}" in str(caught.value)
    found = survey(path, skip_bad=True)
    assert found.source.skipped == 1
    assert f"{tmp_path}/{message}" in str(found.problem)


def test_offsets_hold_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 5)
    path = write(tmp_path / "a.txt", "öö öö öö ".encode() + b"\xe4\xb8 text")
    with pytest.raises(UsageError, match="byte 15: not UTF-8"):
        survey(path, skip_bad=False)
    write(path, "öö öö öö \0")
    with pytest.raises(UsageError, match="byte 15: binary"):
        survey(path, skip_bad=False)


def test_what_cannot_be_read_is_one_sentence_or_skipped(tmp_path):
    (tmp_path / "a.txt").symlink_to("gone.txt")
    (tmp_path / "b.txt").mkdir()
    for name, reason in (("a.txt", "No such file"), ("b.txt", "not a regular file")):
        with pytest.raises(UsageError, match=rf"{name}: cannot be read: {reason}"):
            survey(tmp_path / name, skip_bad=False)
        found = survey(tmp_path / name, skip_bad=True)
        assert (found.source.documents, found.source.skipped, found.slices) == (0, 1, ())


def test_a_file_without_permission_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "a.txt", "text")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UsageError, match=r"a\.txt: cannot be read: Permission denied"):
        survey(path, skip_bad=False)
