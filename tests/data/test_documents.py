import os

import pytest

from toolkit.data.documents import BadDocumentError, document_of_line, find_text_files
from toolkit.data.prepare import prepare
from toolkit.errors import UsageError


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")


def test_searches_folders_in_the_order_of_the_names(tmp_path):
    touch(tmp_path, "b/2.txt", "b/1.MD", "a.jsonl", "c.markdown", "picture.png", "b/Makefile")
    touch(tmp_path, ".hidden.txt", ".git/x.txt")
    files, ignored = find_text_files([tmp_path])
    assert [str(f.relative_to(tmp_path)) for f in files] == [
        "a.jsonl",
        "b/1.MD",
        "b/2.txt",
        "c.markdown",
    ]
    assert ignored == 2


def test_keeps_the_order_of_the_inputs(tmp_path):
    touch(tmp_path, "a.txt", "b/c.txt")
    files, _ = find_text_files([tmp_path / "b", str(tmp_path / "a.txt")])
    assert [file.name for file in files] == ["c.txt", "a.txt"]


def test_refuses_what_is_no_input(tmp_path):
    touch(tmp_path, "a.txt", "b.pdf", "empty/c.pdf")
    for inputs, message in [
        ([tmp_path / "gone.txt"], r"gone\.txt: no such file"),
        ([tmp_path / "b.pdf"], r"b\.pdf: not text by its name"),
        ([tmp_path / "empty"], "empty: holds no text"),
        ([tmp_path, tmp_path / "a.txt"], r"a\.txt: named twice"),
        ([], "no input is named"),
    ]:
        with pytest.raises(UsageError, match=message):
            find_text_files(inputs)


def test_a_link_to_a_file_that_is_named_is_refused(tmp_path):
    touch(tmp_path, "a.txt", "h/b.txt")
    (tmp_path / "h" / "link.txt").symlink_to("../a.txt")
    with pytest.raises(UsageError, match=r"h/link\.txt: the same file as .*/a\.txt, so it would"):
        find_text_files([tmp_path / "a.txt", tmp_path / "h" / "link.txt"])
    with pytest.raises(UsageError, match=r"link\.txt: the same file"):
        find_text_files([tmp_path])
    (tmp_path / "folder").symlink_to("h")
    with pytest.raises(UsageError, match=r"folder/b\.txt: the same file as .*h/b\.txt"):
        find_text_files([tmp_path / "h", tmp_path / "folder"])
    assert len(find_text_files([tmp_path / "h"])[0]) == 2


def test_linked_folders_are_searched_each_once(tmp_path):
    touch(tmp_path, "corpus/a.txt", "corpus/v2/b.txt", "elsewhere/deep/c.txt", "elsewhere/p.png")
    corpus = tmp_path / "corpus"
    for name, target in [
        ("disk", "../elsewhere"),
        ("latest", "v2"),
        ("v2/again", ".."),
        ("loop", "."),
        ("../elsewhere/back", "../corpus"),
    ]:
        (corpus / name).symlink_to(target, target_is_directory=True)
    files, ignored = find_text_files([corpus])
    assert {os.path.realpath(path) for path in files} == {
        str(tmp_path / name) for name in ("corpus/a.txt", "corpus/v2/b.txt", "elsewhere/deep/c.txt")
    }
    assert len(files) == 3
    assert ignored == 1


def test_a_linked_folder_that_is_gone_is_not_skipped(tmp_path):
    touch(tmp_path, "corpus/a.txt")
    (tmp_path / "corpus" / "disk").symlink_to("../not_mounted")
    with pytest.raises(UsageError, match="corpus/disk: cannot be read: No such file"):
        prepare([tmp_path / "corpus"], tmp_path / "out")
    done = prepare([tmp_path / "corpus"], tmp_path / "out", skip_bad=True)
    assert "bad documents skipped: 1, the first is" in done.summary


def test_a_line_of_json_is_a_document():
    assert document_of_line(b'{"text": "a\\r\\nb", "id": 1}\n') == "a\r\nb"
    assert document_of_line('\ufeff{"text": "é"}\r\n'.encode()) == "é"
    assert document_of_line(b" \r\n") is None


@pytest.mark.parametrize(
    ("line", "offset", "reason"),
    [
        (b'{"text": "a"', 12, "not JSON: Expecting ',' delimiter"),
        (b'{"text": "\xff"}', 10, "not UTF-8"),
        (b'{"id": 1}', 0, "not a JSON object with the field 'text'"),
        (b'["text"]', 0, "not a JSON object with the field 'text'"),
        (b'{"text": 3}', 0, "'text' is a number, not a string"),
        (b'{"text": null}', 0, "'text' is null, not a string"),
        (b'{"text": true}', 0, "'text' is true, not a string"),
        (b'{"text": ["a"]}', 0, "'text' is a list, not a string"),
        (b'{"text": {"a": 1}}', 0, "'text' is an object, not a string"),
        (b'{"text": " "}', 0, "is empty"),
        (b'{"text": "a\\u0000"}', 0, "NUL"),
        (b'{"text": "\\ud800"}', 0, "half of a surrogate pair"),
        (b'{"text": "' + b"a" * (2**20 + 1) + b'"}', 0, "boundary between words"),
        (b"[" * 10**5, 0, "^nested too deeply$"),
        (
            b'{"text": "a", "n": ' + b"1" * 5000 + b"}",
            0,
            "^holds a number of more than 4,300 digits$",
        ),
    ],
)
def test_a_bad_line_is_named_with_why_and_where(line, offset, reason):
    with pytest.raises(BadDocumentError, match=reason) as caught:
        document_of_line(line)
    assert caught.value.offset == offset
