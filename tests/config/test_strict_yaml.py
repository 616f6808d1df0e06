import math
import time

import pytest
import yaml

from toolkit.config.strict_yaml import MAX_BYTES, MAX_DEPTH, dump_yaml, load_yaml, load_yaml_mapping
from toolkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e-3", 1e-3),
        ("6.0E-4", 6e-4),
        ("1e400", math.inf),
        ("-7", -7),
        ("true", True),
        ("null", None),
        ("", None),
        ("[1, 2.5]", [1, 2.5]),
        # What YAML 1.1 would turn into 8, 1000, 16, 750, a date and booleans.
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("yes", "yes"),
        ("off", "off"),
        # Too many digits to be a number anyone means.
        ("9" * 30, "9" * 30),
    ],
)
def test_plain_values_have_one_meaning(text, value):
    loaded = load_yaml(text, source="x")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is there twice (first on line 1)"),
        (b"s:\n  a: 1\n  a: 2\n", "line 3: the key 'a' is there twice (first on line 2)"),
        (b"a: &x [1]\nb: *x\n", "line 2: the alias '*x' is not allowed"),
        (b"a: !!python/object/apply:os.system ['id']\n", "line 1: the tag"),
        (b"a: !!int '8'\n", "line 1: the tag"),
        (b"a: 1\nb: \x00\n", "line 2: the character U+0000"),
        (b"a: 1\nb: \xff\n", "line 2: not UTF-8 text"),
        (b"- 1\n", "'key: value' lines are expected"),
        (b"hello\n", "'key: value' lines are expected"),
        (b"1: a\n", "line 1: a key must be text"),
        (b"? [a]\n: b\n", "line 1: a key must be text"),
        (b"a: 1\n---\nb: 2\n", "expected a single document"),
        (b"a: [1\n", "line 2: "),
        (b"a: " + b"[" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels"),
        (b"#" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_yaml_mapping(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert sentence in message
    assert "\n" not in message


def test_unreadable_files_are_named(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path, "nul\0.yaml"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_yaml_mapping(path)


def test_alias_bomb_is_refused_at_once(tmp_path):
    path = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    path.write_text("\n".join(lines))
    start = time.monotonic()
    with pytest.raises(UsageError, match="line 2: the alias"):
        load_yaml_mapping(path)
    assert time.monotonic() - start < 1


def test_largest_file_is_read_in_bounded_time(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("a: [" + "1," * ((MAX_BYTES - 5) // 2) + "]")
    start = time.monotonic()
    load_yaml_mapping(path)
    assert time.monotonic() - start < 20


def test_utf8_signature_and_empty_file_are_harmless(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_yaml_mapping(path) == {"a": 1}
    path.write_bytes(b"# nothing\n")
    assert load_yaml_mapping(path) == {}


def test_dump_reads_back_the_same_under_both_versions_of_yaml():
    awkward = ["3e-4", "1e5", "yes", "010", "null", "1_0", "2026-01-01", "a: b", "", "~", "=", "é"]
    value = {"text": awkward, "number": [3e-5, 1e16, 0.1, 7, -1], "flag": [True, None]}
    text = dump_yaml(value)
    assert load_yaml(text, source="dump") == value
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(("path", "words"), [("x" * 5000, "too long"), ("a\0b", "null byte")])
def test_what_cannot_be_a_path_is_one_sentence(path, words):
    with pytest.raises(UsageError, match=f"cannot be read: .*{words}"):
        load_yaml_mapping(path)


def test_a_shipped_file_that_is_asked_for_elsewhere_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"No such .* the shipped one is /.*/configs/train/demo"):
        load_yaml_mapping("configs/train/demo.yaml")
