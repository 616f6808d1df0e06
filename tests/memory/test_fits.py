"""`toolkit estimate`: what fits which GPU, and by which calibration."""

import json
from pathlib import Path

import pytest

from tests.memory.command import run
from toolkit.memory.calibration import (
    PUBLIC_RUNS,
    Measured,
    calibrate,
    calibration_file,
    save_calibration,
)


def test_the_table_names_what_fits(monkeypatch, capsys) -> None:
    words = ("--preset", "gpt2-xl", "--micro-batch-size", "16", "--strategies", "single,zero3")
    assert run(monkeypatch, *words, "--gpu", "A100-80", "--max-micro-batch", "precision=bf16") == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("single")).split()[-2] == "no"
    assert next(line for line in lines if line.startswith("zero3")).split()[-2] == "yes"
    share = "17.41 GiB of disk; each of 8 ranks writes 2.18 GiB of it, its own share"
    assert lines[-1] == f"a checkpoint takes {share}"


@pytest.mark.parametrize("gpu", [(), ("--gpu", "T4")])
def test_the_table_names_the_run_that_measured_a_gpu(monkeypatch, capsys, gpu) -> None:
    measured = Measured(run="runs/a", allocated_bytes=4, device="Tesla T4", versions={"torch": "2"})
    save_calibration(calibrate(reserved=6, device_total=8, measured=measured))
    assert run(monkeypatch, "--strategies", "ddp", *gpu) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fits: ")]
    assert sum("measured on Tesla T4 by runs/a" in line for line in lines) == 1
    assert len(lines) == (1 if gpu else 2)


def test_the_largest_micro_batch_is_in_both_outputs(monkeypatch, capsys) -> None:
    words = ("--strategies", "single", "--gpu", "H200", "--max-micro-batch")
    tiny = ("model.n_layer=1", "model.n_head=1", "model.n_embd=1", "model.vocab_size=2")
    short = ("data.seq_len=1",)
    assert run(monkeypatch, *words, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert run(monkeypatch, *words) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[3].split()[-1] == str(row["largest_micro_batch_size"])
    assert run(monkeypatch, *words, *tiny, *short) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[3].endswith(">= 1048576")


def test_a_run_on_cpus_is_held_against_no_gpu(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--device", "cpu", "--strategies", "ddp") == 0
    out = capsys.readouterr().out
    assert "fits" not in out
    assert "T4" not in out
    assert run(monkeypatch, "--device", "cpu", "--strategies", "ddp", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["fits"] == {}


def test_a_run_is_offered_only_what_it_can_use(monkeypatch, capsys, run_file: Path) -> None:
    words = ("--strategies", "ddp", "--world-size", "2", "--gpu", "H200", "--max-micro-batch")
    assert run(monkeypatch, "--config", str(run_file), *words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["largest_micro_batch_size"] for row in rows} == {8}


def test_what_fits_is_shown_with_what_it_assumes(monkeypatch, capsys) -> None:
    words = ("--strategies", "single", "--gpu", "NVIDIA A100-SXM4-80GB")
    assert run(monkeypatch, *words) == 0
    line = next(s for s in capsys.readouterr().out.splitlines() if s.startswith("fits: "))
    assert line.endswith(f"the median of {PUBLIC_RUNS}")
    assert run(monkeypatch, *words, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits_assumes"]["A100-80"]["measured"] is None
    assert answer["rows"][0]["fits"] == {"A100-80": True}


@pytest.mark.parametrize("text", ["null", "torn {", '{"NVIDIA H200": {"context_bytes": NaN}}'])
def test_a_damaged_calibration_is_a_sentence_and_public_figures_are_used(
    monkeypatch, capsys, text: str
) -> None:
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_text(text)
    assert run(monkeypatch, "--strategies", "single") == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: {calibration_file()}: holds no calibration (")
    assert said.err.count("\n") == 1
    assert PUBLIC_RUNS in said.out
