"""Every form of input becomes the same tokens as its text in JSON-lines."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.data.encode import Encoding
from toolkit.data.prepare import prepare
from toolkit.data.stream import TokenStream
from toolkit.data.tokenizers import open_tokenizer
from toolkit.data.unpack import unpacked
from toolkit.errors import UsageError

DOCUMENTS = ["First, with a comma.", "Zweitens: äöü 🙂\nin two lines", 'Third "quoted"']
ROWS = [{"id": n, "text": text} for n, text in enumerate(DOCUMENTS)]


def lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(path: Path) -> Path:
    """Write the documents in the form that a file's name asks for."""
    import pyarrow
    import pyarrow.parquet
    import zstandard

    name = path.name
    if ".parquet" in name:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
        return path
    data = lines()
    if ".csv" in name:
        text = io.StringIO()
        table = csv.DictWriter(text, ["id", "text"])
        table.writeheader()
        table.writerows(ROWS)
        data = text.getvalue().encode()
    if name.endswith(".gz"):
        data = gzip.compress(data[:20]) + gzip.compress(data[20:])
    if name.endswith(".zst"):
        compress = zstandard.ZstdCompressor().compress
        data = compress(data[:20]) + compress(data[20:])
    path.write_bytes(data)
    return path


def tokens_of(folder: Path) -> list[int]:
    stream = TokenStream(folder, vocab_size=2**32)
    return stream.read(0, len(stream)).tolist()


def expected(*documents: str, tokenizer: str = "gpt2") -> list[int]:
    chosen = open_tokenizer(tokenizer)
    return [t for text in documents for t in [chosen.end_of_text, *chosen.encode(text)]]


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.csv.gz", "a.csv.zst", "a.parquet"],
)
def test_tables_compressed_or_not(tmp_path: Path, name: str) -> None:
    done = prepare([write(tmp_path / name)], tmp_path / "out")
    assert tokens_of(tmp_path / "out") == expected(*DOCUMENTS)
    assert done.index.sources[0].path == str(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "out"]
    assert prepare([tmp_path / name], tmp_path / "out").reused


def test_one_text_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("A whole\r\nbook.".encode("utf-8-sig")))
    prepare([tmp_path / "a.txt.gz"], tmp_path / "out")
    assert tokens_of(tmp_path / "out") == expected("A whole\nbook.")


def test_source_files_are_text_when_asked(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("print(1)\n")
    (tmp_path / "code" / "b.rs").write_text("fn main() {}\n")
    with pytest.raises(UsageError, match="holds no text"):
        prepare([tmp_path / "code"], tmp_path / "out")
    prepare([tmp_path / "code"], tmp_path / "out", extensions=[".py", ".rs"])
    assert tokens_of(tmp_path / "out") == expected("print(1)\n", "fn main() {}\n")


def test_a_pattern_names_files_and_a_file_keeps_its_name(tmp_path: Path) -> None:
    for name in ("b1.txt", "b2.txt", "[b].txt"):
        (tmp_path / name).write_text(name)
    prepare([tmp_path / "b*.txt"], tmp_path / "out")
    assert tokens_of(tmp_path / "out") == expected("b1.txt", "b2.txt")
    prepare([tmp_path / "[b].txt"], tmp_path / "one")
    assert tokens_of(tmp_path / "one") == expected("[b].txt")


@pytest.mark.parametrize(
    ("data", "documents"), [(lines(), DOCUMENTS), (b"Some text.\n", ["Some text.\n"])]
)
def test_standard_input(tmp_path: Path, data: bytes, documents: list[str]) -> None:
    command = [sys.executable, "-m", "toolkit", "data", "prepare", "-", "--out", "out"]
    done = subprocess.run(command, input=data, cwd=tmp_path, timeout=120, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert tokens_of(tmp_path / "out") == expected(*documents)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_another_field(tmp_path: Path, name: str) -> None:
    import pyarrow
    import pyarrow.parquet

    row = {"text": "wrong", "content": "right"}
    path = tmp_path / name
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_bytes(b"text,content\nwrong,right\n" if "csv" in name else lines([row]))
    prepare([path], tmp_path / "out", encoding=Encoding(field="content"))
    assert tokens_of(tmp_path / "out") == expected("right")
    with pytest.raises(UsageError, match=f"{name}.* the field 'body'|has no field 'body'"):
        prepare([path], tmp_path / "none", encoding=Encoding(field="body"))
    assert not (tmp_path / "none").exists()


def test_datasets_on_disk_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "saved"))
    prepare([tmp_path / "saved"], tmp_path / "out")
    assert tokens_of(tmp_path / "out") == expected(*DOCUMENTS)
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "train.jsonl").write_bytes(lines())
    prepare([f"hf:{tmp_path / 'named'}"], tmp_path / "streamed")
    assert tokens_of(tmp_path / "streamed") == expected(*DOCUMENTS)
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(UsageError, match=r"holds several splits; name one: .*/train"):
        prepare([tmp_path / "splits"], tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be loaded"):
        prepare([f"hf:{tmp_path / 'nowhere'}"], tmp_path / "none")


def test_the_number_of_a_row_is_that_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,good\n2,\n")
    with pytest.raises(UsageError, match=r"a\.csv, line 2, byte .*the field 'text' is empty"):
        prepare([path], tmp_path / "out")
    done = prepare([path], tmp_path / "out", skip_bad=True)
    assert (done.index.documents, done.index.skipped) == (1, 1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.gz", b""),
        ("a.jsonl.gz", b"no gzip"),
        ("a.jsonl.gz", gzip.compress(lines())[:-9]),
        ("a.jsonl.zst", b"no zstd"),
        ("a.parquet", b"no parquet"),
        ("a.csv", b"\xff\xfe\x00"),
    ],
)
def test_what_cannot_be_read_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=name) as caught:
        prepare([tmp_path / name], tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("module", "name"), [("zstandard", "a.jsonl.zst"), ("pyarrow.parquet", "a.parquet")]
)
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    path = write(tmp_path / name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"needs {module.split('.')[0]}; `pip install"):
        prepare([path], tmp_path / "out")


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """Three hundred megabytes, of which a hundred must never be in memory at once."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = json.dumps({"text": "word " * 200}).encode() + b"\n"
    block = gzip.compress(line * 20_000)
    path = tmp_path / "a.jsonl.gz"
    with path.open("wb") as file:
        for _ in range(15):
            file.write(block)
    with unpacked([path], tmp_path / "out", field="text") as (files, _):
        assert files[0].path.stat().st_size == 15 * 20_000 * len(line)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 * 1024


def test_a_tokenizer_of_its_own_is_kept_with_the_shards(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(DOCUMENTS, trainer)
    file = tmp_path / "own.json"
    trained.save(str(file))
    done = prepare([write(tmp_path / "a.jsonl")], tmp_path / "out", encoding=Encoding(str(file)))
    kept = tmp_path / "out" / "tokenizer.json"
    assert kept.read_bytes() == file.read_bytes()
    own = open_tokenizer(str(kept))
    assert done.index.vocabulary.size == own.size <= 300
    assert tokens_of(tmp_path / "out") == expected(*DOCUMENTS, tokenizer=str(kept))
    assert own.decode(own.encode(DOCUMENTS[1])) == DOCUMENTS[1]
    lengths = own.byte_lengths()
    assert sum(lengths[token] for token in own.encode(DOCUMENTS[1])) == len(DOCUMENTS[1].encode())
    assert lengths[own.end_of_text] == 0


def test_sentencepiece_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a dog ran to the house"] * 20),
        model_prefix=str(tmp_path / "own"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = str(tmp_path / "own.model")
    (tmp_path / "a.txt").write_text("the dog sat on the house")
    prepare([tmp_path / "a.txt"], tmp_path / "out", encoding=Encoding(model))
    own = open_tokenizer(str(tmp_path / "out" / "tokenizer.model"))
    first, *rest = tokens_of(tmp_path / "out")
    assert first == own.end_of_text
    assert own.decode(rest) == "the dog sat on the house"


def test_a_large_vocabulary_has_32_bit_shards(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{n}": n for n in range(70_000)} | {"<|endoftext|>": 70_000}
    large = Tokenizer(models.WordLevel(words, unk_token="w0"))
    large.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    large.save(str(tmp_path / "large.json"))
    (tmp_path / "a.txt").write_text("w1 w69999 w65536")
    prepare([tmp_path / "a.txt"], tmp_path / "out", encoding=Encoding(str(tmp_path / "large.json")))
    assert tokens_of(tmp_path / "out") == [70_000, 1, 69_999, 65_536]
    assert "intact" in CliRunner().invoke(app, ["data", "verify", str(tmp_path / "out")]).stdout
