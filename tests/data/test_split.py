import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.data.shard_files import write_llmc
from toolkit.cli import app
from toolkit.data.near_duplicates import NearDuplicates
from toolkit.data.prepare_split import prepare_split
from toolkit.data.shared_documents import describe_shared, document_hashes
from toolkit.errors import UsageError

WORDS = (
    "the quick brown fox jumps over a lazy dog while some other animal sleeps near it".split()  # noqa: SIM905
)
LONG = " ".join(f"{word}{n}" for n in range(12) for word in WORDS)


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_documents_hash_decides_its_side(tmp_path: Path) -> None:
    texts = [f"Document {n}." for n in range(400)]
    prepare_split([write(tmp_path / "a.jsonl", texts)], tmp_path / "out", val_fraction=0.25)
    train, val = (document_hashes(tmp_path / "out" / side) for side in ("train", "val"))
    assert len(train) + len(val) == 400
    assert 70 < len(val) < 130
    assert describe_shared({side: tmp_path / "out" / side for side in ("train", "val")}) == []
    # In another order, beside other documents and twice.
    more = write(tmp_path / "b.jsonl", [*reversed(texts), "Another.", *texts])
    prepare_split([more], tmp_path / "more", val_fraction=0.25)
    assert set(val) <= set(document_hashes(tmp_path / "more" / "val"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "more", "out"]


def test_a_text_file_is_on_one_side(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"Text {number}.")
    done = prepare_split([tmp_path / "*.txt"], tmp_path / "out", val_fraction=0.3)
    train, val = done.folders
    assert train.index.documents + val.index.documents == 40
    assert val.index.documents > 3


def test_a_bad_line_keeps_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [f"Document {n}." for n in range(40)])
    path.write_text(path.read_text() + "bad\n")
    with pytest.raises(UsageError, match=r"a\.jsonl, line 41, byte .* not JSON"):
        prepare_split([path], tmp_path / "out", val_fraction=0.5)


def test_near_duplicates_are_reported_or_removed(tmp_path: Path) -> None:
    changed = LONG.replace("fox7", "cat")
    path = write(tmp_path / "a.jsonl", [LONG, "Something else entirely.", changed, LONG])
    kept = prepare_split([path], tmp_path / "kept", near_duplicates="report")
    assert kept.folders[0].index.documents == 4
    assert kept.summary.endswith("near-duplicates of earlier documents found, and kept: 2")
    removed = prepare_split([path], tmp_path / "removed", near_duplicates="remove")
    assert removed.folders[0].index.documents == 2
    assert removed.summary.endswith("removed: 2")


def test_documents_that_share_little_are_none() -> None:
    seen = NearDuplicates()
    half = " ".join(LONG.split()[: len(LONG.split()) // 2])
    assert [seen.repeats(text) for text in (LONG, half, half + "!")] == [False, False, True]


def test_several_folders_are_verified_and_compared(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ["One.", "Two.", "Three.", "Two."])
    write(tmp_path / "val.jsonl", ["Four.", "Two."])
    for name in ("train", "val"):
        prepare_split([tmp_path / f"{name}.jsonl"], tmp_path / name)
    folders = [str(tmp_path / name) for name in ("train", "val")]
    done = CliRunner().invoke(app, ["data", "verify", *folders], catch_exceptions=False)
    assert done.stdout.splitlines()[-1] == (
        f"1 of the 2 documents of {folders[1]} are also in {folders[0]}"
    )


def test_documents_of_shards_without_an_index_are_compared(tmp_path: Path) -> None:
    """nanoGPT ends a document with the token that llm.c begins it with."""
    end = 50_256
    write_llmc(tmp_path / "a" / "a.bin", [end, 1, 2, end, 3])
    write_llmc(tmp_path / "b" / "b.bin", [3, end, 4, end])
    assert len(document_hashes(tmp_path / "b")) == 2
    assert describe_shared({name: tmp_path / name for name in ("a", "b")}) == [
        "1 of the 2 documents of b are also in a"
    ]


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_a_fraction_that_is_none_is_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(UsageError, match="--val-fraction must be"):
        prepare_split([tmp_path], tmp_path / "out", val_fraction=fraction)


def test_a_side_without_documents_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["One."])
    with pytest.raises(UsageError, match="no document falls into"):
        prepare_split([path], tmp_path / "out", val_fraction=0.01)
    assert not (tmp_path / "out").exists()
