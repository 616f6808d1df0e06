"""A process of its own: the fake process group must not meet a real one."""

import json
import subprocess
import sys

import pytest

TRACE = """
import json
from toolkit.program.step import estimate_peak
from toolkit.program.settings import StepSettings
from toolkit.verify.traced import trace_row
from toolkit.model.sizes import ModelSizes

# A peak in the loss; where the tied weight's two gradients are added up; on one rank; in SGD, which
# on a GPU decays all matrices at one time; and with the batches of many micro-steps in memory.
CASES = (
    ("fsdp2", 16, 1, 2048, 2, 512, "adamw"), ("hsdp", 16, 2, 2048, 2, 2, "adamw"),
    ("single", 1, 1, 8192, 1, 1, "adamw"), ("fsdp2", 1, 1, 8192, 1, 1, "adamw"),
    ("single", 1, 1, 8192, 1, 1, "sgd"), ("single", 1, 1, 8192, 1, 4096, "adamw"),
)
for strategy, world_size, replicas, vocabulary, micro_batch_size, micro_steps, optimizer in CASES:
    settings = StepSettings(
        sizes=ModelSizes(3, 4, 128, vocabulary, 128), strategy=strategy,
        accumulation="replicated", world_size=world_size, replicas=replicas,
        micro_batch_size=micro_batch_size, seq_len=32 * micro_batch_size**2,
        grad_accum_steps=micro_steps, optimizer=optimizer,
    )
    peak = estimate_peak(settings)
    traced = trace_row(settings)
    print(json.dumps([peak.total, peak.parts, traced.peak, traced.parts]))
"""


def test_the_formula_is_what_the_trackers_see() -> None:
    result = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    for line in result.stdout.splitlines():
        total, parts, traced_total, traced_parts = json.loads(line)
        assert total == pytest.approx(traced_total, rel=0.01)
        # On one rank the trackers do not know FSDP2's buffers for what they are.
        told_apart = {"parameters", "optimizer", "communication", "other"}
        if not traced_parts["communication"]:
            told_apart.remove("communication")
        for part in told_apart:
            assert parts[part] == pytest.approx(traced_parts[part], abs=0.02 * total)
