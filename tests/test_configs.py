"""Every shipped configuration loads, is commented, and goes with every other one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from toolkit.config import load_run_config
from toolkit.engines.strategies import STRATEGIES
from toolkit.launch.check import check_pair
from toolkit.launch.file import load_launch_file, strategy_of

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
    files = " ".join(str(path.relative_to(root)) for path in LAUNCHES)
    assert done.stderr == f"error: STRATEGY=foo has no launch file; there are {files}\n"
    assert done.returncode == 2


STUB = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $*" in
  "scontrol show job"*) echo "   Command=$SCRIPT seed=1" ;;
  "scontrol show hostnames"*) printf 'node1\nnode2\n' ;;
  srun*) SLURM_NODEID=1 exec "$@" ;;
esac
"""


class Programs:
    """Stands in for what the scripts call: each call is a line, and `srun` runs its command."""

    def __init__(self, folder):
        self.calls = folder / "calls"
        self.folder = folder / "bin"
        self.folder.mkdir()
        for name in ("accelerate", "python", "scontrol", "srun"):
            (self.folder / name).write_text(STUB)
            (self.folder / name).chmod(0o755)

    def run(self, script, *words, **settings):
        """Run a script in this folder; return the words of the launcher's line."""
        environment = {**os.environ, "CALLS": str(self.calls), "SCRIPT": str(script), **settings}
        environment["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        folder = self.folder.parent
        done = subprocess.run(
            ["bash", str(script), *words], cwd=folder, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return self.calls.read_text().splitlines()[-1].split()


NODES = {"NODES": "2", "NODE_RANK": "0", "MAIN_ADDRESS": "node1", "PROCESSES_PER_NODE": "1"}
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}


@pytest.mark.parametrize("script", ["one_node.sh", "several_nodes.sh", "slurm.sbatch"])
def test_a_script_takes_paths_as_the_folder_it_is_called_from_has_them(script, tmp_path):
    root = CONFIGS.parent
    settings = {"STRATEGY": "ddp", **NODES, **SLURM, "SLURM_SUBMIT_DIR": str(tmp_path)}
    programs = Programs(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "run.yaml").touch()
    override = "data.train=my/shards"
    line = programs.run(root / "launch" / script, override, **settings, CONFIG="my/run.yaml")
    assert line[-4:] == [str(root / "launch" / "train.py"), "--config", "my/run.yaml", override]
    assert line[line.index("--config_file") + 1] == str(CONFIGS / "accelerate" / "ddp.yaml")
    own = programs.run(root / "launch" / script, **settings)
    assert Path(own[-1]) in RUNS


def test_the_environment_of_a_checkout_is_found_without_a_login_shell(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copytree(CONFIGS.parent / "launch", tmp_path / "launch")
    (tmp_path / ".venv").mkdir()
    Programs(tmp_path / ".venv")
    environment = {**NODES, "STRATEGY": "ddp", "PATH": "/usr/bin:/bin", "CALLS": "/dev/stdout"}
    command = ["bash", str(tmp_path / "launch" / "several_nodes.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("python -m toolkit.launch.launcher launch ")


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
