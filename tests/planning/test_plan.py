"""`toolkit plan` on the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.config import load_run_config
from toolkit.errors import UsageError
from toolkit.launch.check import check_pair
from toolkit.launch.file import load_launch_file, strategy_of

XL = ["plan", "--preset", "gpt2-xl", "--tokens-per-step", "524288"]
FEW = ["plan", "--preset", "gpt2", "--gpus", "8", "--strategies", "ddp,fsdp2,hsdp"]


def output(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    return result.stdout


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UsageError)
    return str(result.exception)


def test_json_has_the_names_of_the_contract() -> None:
    document = json.loads(output(*XL, "--gpus", "8", "--strategies", "ddp,fsdp2", "--json"))
    assert set(document) == {"question", "candidates", "best", "rows", "reason"}
    assert document["best"] == document["rows"][0]
    assert document["best"]["fits"]
    assert document["best"]["tokens_per_step"] == 524_288


def test_the_answer_says_why_and_what_would_change_it() -> None:
    printed = output(*FEW, "--train-tokens", "1000000000", "--cluster", "aws-p4d")
    for part in ("why: ", "accumulation reduces", "links in the machine twice as fast"):
        assert part in printed
    for part in ("8 GiB more on each GPU", "GPU-hours", "at 2.7447 per GPU-hour", "kWh"):
        assert part in printed


def test_a_run_file_has_its_own_tokens(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("precision: bf16\ntraining: {steps: 7}\n")
    printed = output("plan", "--config", str(tmp_path / "run.yaml"), *FEW[3:])
    assert f"{7 * 524_288:,} tokens: " in printed


@pytest.mark.parametrize("strategies", ["ddp", "hsdp", "fsdp2"])
def test_what_is_written_passes_the_check(tmp_path: Path, strategies: str) -> None:
    words = [*FEW[:5], "--strategies", strategies, "--json"]
    best = json.loads(output(*words, "--write", str(tmp_path / "plan")))["best"]
    run = load_run_config(tmp_path / "plan" / "run.yaml", [])
    launch = load_launch_file(tmp_path / "plan" / "launch.yaml")
    batch = check_pair(run, launch)
    assert (strategy_of(launch), run.accumulation) == (best["strategy"], best["accumulation"])
    assert batch.grad_accum_steps == best["grad_accum_steps"]
    assert launch.replicas_on(8) == best["replica_groups"]


def test_a_plan_of_several_machines_names_them_in_its_launch_file(tmp_path: Path) -> None:
    words = [*XL, "--gpus", "16", "--between-machines", "400Gbit", "--strategies", "fsdp2"]
    output(*words, "--write", str(tmp_path))
    launch = load_launch_file(tmp_path / "launch.yaml")
    assert (launch.num_processes, launch.num_machines) == (16, 2)
    assert launch.main_process_port


def test_what_does_not_fit_is_named_with_the_least_and_what_does() -> None:
    few = ["--tokens-per-step", "16384", "--strategies", "ddp", "--json"]
    words = ["plan", "--preset", "gpt2-xl", "--gpus", "2", "--gpu", "RTX 5090", *few]
    result = CliRunner().invoke(app, words)
    document = json.loads(result.stdout)
    assert document["best"] is None
    assert "nothing fits RTX 5090: the least is ddp" in document["reason"]
    assert "another strategy does: " in str(result.exception)


def test_a_smaller_micro_batch_or_more_gpus_are_named() -> None:
    words = ["--gpu", "RTX 5090", "--gpus", "1", "--tokens-per-step"]
    large = refused("plan", "--preset", "gpt2", *words, "524288", "--micro-batch-size", "512")
    assert "another micro-batch does: single" in large
    alone = refused("plan", "--preset", "gpt2-xl", *words, "65536")
    assert re.search(r"--gpus 2 do: .*, micro-batch \d.* \(offload is not offered\)", alone)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpus", "16"], "--between-machines 400Gbit"),
        (["--gpus", "12", "--between-machines", "1Tbit"], "take --gpus 8 or 16"),
        (["--gpus", "8", "--gpu", "H1OO"], "unknown 'H1OO'"),
        (["--gpus", "8", "--gpu", "T4"], "its speed is not known"),
        (["--gpus", "7"], "the nearest that works is --tokens-per-step"),
        (["--gpus", "8", "precision=fp32"], "precision=bf16"),
        (["--gpus", "8", "--cluster", "aws"], "there are aws-"),
        ([], "only one can be solved for"),
    ],
)
def test_bad_questions_get_a_sentence(words: list[str], sentence: str) -> None:
    assert sentence in refused(*XL, *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--plan", "nowhere"], "--plan nowhere: has no launch.yaml"),
        (["--plan", "nowhere", "--strategy", "ddp"], "give it alone"),
        (["--strategy", "ddp"], "give --strategy and --config, or --plan DIR"),
    ],
)
def test_a_plan_to_train_is_a_folder_of_both_files(words: list[str], sentence: str) -> None:
    assert sentence in refused("train", *words)


def test_a_plan_needs_no_torch() -> None:
    code = (
        "import sys; from toolkit import cli; sys.argv = sys.argv[1:]\n"
        "try: cli.main()\nexcept SystemExit as end: print('torch' in sys.modules, end.code)"
    )
    words = [sys.executable, "-c", code, "toolkit", *FEW, "--strategies", "fsdp2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("False 0\n"), done.stderr
