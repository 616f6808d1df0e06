"""`toolkit verify` as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed


def test_json_says_what_ran_and_what_could_not(tmp_path: Path) -> None:
    words = ["verify", "--strategies", "single", "--world-sizes", "1,2", "--grad-accum", "2"]
    result = subprocess.run(
        [
            Path(sys.executable).with_name("toolkit"),
            *words,
            "--steps",
            "3",
            "--precision",
            "fp32",
            "--json",
        ],
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "1 launch with 8 cases: about " in result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is True
    variants = {case["variant"] for case in report["cases"]}
    assert variants == {
        "",
        "checkpointing",
        "chunked loss",
        "dropout",
        "incomplete window",
        "unclipped",
        "whole vocabulary",
    }
    assert all(case["ok"] and case["world_size"] == 1 for case in report["cases"])
    assert {case["optimizer"] for case in report["cases"]} == {"sgd", "adamw"}
    nothing = {"calls": 0, "bytes": 0, "group_sizes": []}
    assert report["cases"][0]["collectives"]["all_reduce"] == nothing
    assert report["cases"][0]["expected_collectives"]["all_reduce"] == nothing
    assert report["not_run"] == [
        {"strategy": "single", "world_size": 2, "reason": "not run: it is one process"}
    ]
