"""Every shipped configuration loads, is commented, and goes with every other one."""

import os
import subprocess
from pathlib import Path

import pytest

from toolkit.backends.strategies import STRATEGIES
from toolkit.check import check_pair
from toolkit.config import load_run_config
from toolkit.launch_file import load_launch_file, strategy_of

CONFIGS = Path(__file__).parents[1] / "configs"
RUNS = sorted((CONFIGS / "train").glob("*.yaml"))
LAUNCHES = sorted((CONFIGS / "accelerate").glob("*.yaml"))


def test_there_is_one_launch_file_per_strategy():
    assert {path.stem for path in LAUNCHES} == set(STRATEGIES)
    assert all(strategy_of(load_launch_file(path)) == path.stem for path in LAUNCHES)


@pytest.mark.parametrize("script", ["one_node.sh", "several_nodes.sh", "slurm.sbatch"])
def test_a_script_names_the_launch_files_if_a_strategy_has_none(script, tmp_path):
    root = CONFIGS.parent
    settings = {"STRATEGY": "foo", "SLURM_SUBMIT_DIR": str(root), "SLURM_NNODES": "2"}
    # Bash sorts by the locale.
    settings["LC_ALL"] = "C"
    command = ["bash", str(root / "launch" / script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True
    )
    files = " ".join(path.name for path in LAUNCHES)
    assert done.stderr == f"error: STRATEGY=foo has no launch file; there are {files}\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("script", "program"), [("one_node.sh", "accelerate"), ("several_nodes.sh", "python")]
)
def test_a_script_leaves_paths_to_the_folder_it_is_called_from(script, program, tmp_path):
    stub = tmp_path / program
    stub.write_text('#!/bin/sh\npwd\necho "$@"\n')
    stub.chmod(0o755)
    settings = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONFIG": "my.yaml"}
    settings |= {"NODES": "2", "NODE_RANK": "0", "MAIN_ADDRESS": "127.0.0.1"}
    done = subprocess.run(
        ["bash", str(CONFIGS.parent / "launch" / script), "data.train=here"],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    folder, words = done.stdout.splitlines()
    assert Path(folder) == tmp_path.resolve()
    assert words.endswith("launch/train.py --config my.yaml data.train=here")
    assert Path(words.split("--config_file ")[1].split()[0]) in LAUNCHES


def test_slurm_wants_the_toolkits_folder(tmp_path):
    done = subprocess.run(
        ["bash", str(CONFIGS.parent / "launch" / "slurm.sbatch")],
        env=os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: submit from the toolkit's folder")


def test_there_is_a_run_for_each_size_and_a_demo():
    assert {path.stem for path in RUNS} == {"demo", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda path: path.stem)
def test_every_launch_file_goes_with_every_run(run, launch):
    plan = check_pair(load_run_config(run), load_launch_file(launch))
    assert plan.tokens_per_step == load_run_config(run).batch.tokens_per_step


@pytest.mark.parametrize(
    "run", [path for path in RUNS if path.stem != "demo"], ids=lambda p: p.stem
)
def test_the_published_sizes_train_on_ten_billion_tokens(run):
    config = load_run_config(run)
    assert config.model.preset == run.stem
    assert config.batch.tokens_per_step == 524_288
    assert config.training.steps == 10_000_000_000 // 524_288
    assert config.optimizer.warmup_steps == 375_000_000 // 524_288
    assert config.optimizer.min_lr == pytest.approx(config.optimizer.lr / 10)
    assert load_run_config(run, ["model.vocab_size=50257"]).model.vocab_size == 50_257


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda path: path.stem)
def test_every_key_of_a_launch_file_is_commented(launch):
    lines = [line.strip() for line in launch.read_text().splitlines()]
    keys = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    uncommented = [lines[i] for i in keys if not lines[i - 1].startswith("#")]
    assert uncommented == []
