"""`data prepare` needs the same memory for any size of its input, here of a stream."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.data.index import INDEX_NAME
from toolkit.shipped import ROOT

MB = 10**6
SMALL, LARGE = 16 * MB, 256 * MB
# Of 10 GB there would be 10,000 slices of 100 bytes: 1 MB. This bounds what each MB may leave.
MOST_PER_MB = 0.05 * MB
DOCUMENT_BYTES = 4000

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def texts() -> Iterator[str]:
    """Documents without end, no two alike."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(20_000)]
    while True:
        yield " ".join(chance.choices(words, k=DOCUMENT_BYTES // 7)) + ".\n"


def stream(form: str, size: int) -> Iterator[bytes]:
    """At least `size` bytes, none of them before they are asked for."""
    written = 0
    for text in texts():
        line = text if form == "text" else json.dumps({"text": text}) + "\n"
        yield line.encode()
        written += len(line)
        if written >= size:
            return


def peak_bytes(folder: Path, form: str, size: int, words: list[str]) -> int:
    """Prepare a stream; return the largest resident set of the processes that did."""
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit", "data", "prepare", "-", "--out", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    with process.stdin as stdin:
        for block in stream(form, size):
            stdin.write(block)
    # As Linux's wait4 has it: of the process and of those it has waited for, the largest; in KiB.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize(
    ("form", "words", "sources"),
    [
        ("text", ["--processes", "2"], ["."]),
        ("lines", ["--processes", "2", "--val-fraction", "0.1"], ["train", "val"]),
    ],
)
def test_memory_does_not_grow_with_the_input(
    tmp_path: Path, form: str, words: list[str], sources: list[str]
) -> None:
    small = peak_bytes(tmp_path / "small", form, SMALL, words)
    large = peak_bytes(tmp_path / "large", form, LARGE, words)
    indexes = [json.loads((tmp_path / "large" / at / INDEX_NAME).read_text()) for at in sources]
    tokens = sum(shard["tokens"] for index in indexes for shard in index["shards"])
    per_mb = (large - small) / ((LARGE - SMALL) / MB)
    print(f"{form}: {small / MB:.0f} MB, then {large / MB:.0f} MB; {tokens:,} tokens")
    assert tokens > LARGE / 8
    assert per_mb < MOST_PER_MB
