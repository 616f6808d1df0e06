"""Each fault the safeguards are for is put into a real engine, and each is caught."""

import json
from functools import cache

import pytest

from tests.distributed import faults
from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import launch

pytestmark = pytest.mark.distributed


@cache
def caught(strategy: Strategy) -> dict[str, object]:
    # What is refused while an engine is built needs no second process.
    processes = 2 if strategy == "ddp" else 1
    printed = launch(strategy, processes, [faults.__file__], timeout_s=150)
    lines = [line for line in printed.splitlines() if line.startswith("FAULT ")]
    records = [json.loads(line.removeprefix("FAULT ")) for line in lines]
    return {record["fault"]: record["caught"] for record in records}


@pytest.mark.parametrize(
    ("strategy", "fault", "words"),
    [
        ("ddp", "missing bootstrap", "world size: asked 2, found 1"),
        ("ddp", "does not communicate when it should", "before the last micro-step"),
        ("fsdp2", "reshard after forward against the launch file", "blocks that reshard"),
        ("fsdp2", "gradients reduced in bf16", "reduction dtype"),
        ("zero2", "stale optimizer", "optimizer's parameters"),
        ("zero2", "wrong stage", "ZeRO stage: asked 2, found 1"),
        ("zero2", "clipping left to the default", "gradient clipping: asked 0.55, found 1.0"),
        ("zero2", "gradients accumulated in bf16", "accumulation dtype"),
    ],
)
def test_a_fault_is_refused_by_name(strategy: Strategy, fault: str, words: str) -> None:
    sentence = caught(strategy)[fault]
    assert isinstance(sentence, str)
    assert words in sentence


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        ("ddp", "replicas identical after 4 steps"),
        ("ddp", "replicas drift without averaging"),
    ],
)
def test_a_fault_shows_in_the_numbers(strategy: Strategy, fault: str) -> None:
    assert caught(strategy)[fault] is True
