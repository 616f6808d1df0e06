"""The wheel, built from the sdist and installed without extras in an environment of its own."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NO_SOURCES = {"data", "runs", "build", "dist"}
LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.egg-info")
# Of this environment's packages; what stays are the wheel's dependencies, and more.
EXTRAS = ("deepspeed", "ninja")
OWN = ("scaling_toolkit", "__editable__")
SDIST = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Return what a program printed that ended well."""
    done = run_unchecked(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_unchecked(
    *words: str | Path, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    settings = {"OMP_NUM_THREADS": "1", "HF_HOME": str(cwd)}
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and a folder far from the checkout to use it from."""

    environment: Path
    elsewhere: Path

    @property
    def package(self) -> Path:
        (found,) = self.environment.glob("lib/python*/site-packages/toolkit")
        return found

    def python(self, *words: str) -> str:
        return run(self.environment / "bin" / "python", *words, cwd=self.elsewhere)

    def toolkit(self, *words: str) -> str:
        return run(self.environment / "bin" / "toolkit", *words, cwd=self.elsewhere)

    def on_screen(self, *words: str) -> str:
        """Return what a person sees: remarks as well, which go to stderr."""
        done = run_unchecked(self.environment / "bin" / "toolkit", *words, cwd=self.elsewhere)
        return done.stdout + done.stderr

    def refused(self, *words: str) -> str:
        """Return the one sentence of wrong usage."""
        program = self.environment / "bin" / "toolkit"
        done = run_unchecked(program, *words, cwd=self.elsewhere)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        return line


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("sources")
    for path in ROOT.iterdir():
        if path.name.startswith(".") or path.name in NO_SOURCES:
            continue
        if path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=LEFTOVERS)
        else:
            shutil.copy(path, copy)
    return copy


@pytest.fixture(scope="session")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Looked for, not imported: setuptools refuses to be where distutils is already.
    for needed in ("setuptools", "pip"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", SDIST, folder, cwd=sources)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, sdist)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    environment, dependencies, elsewhere = (
        folder / name for name in ("environment", "dependencies", "elsewhere")
    )
    venv.create(environment)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    run(*pip, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    dependencies.mkdir()
    for package in packages_here():
        link = dependencies / package.name
        if not package.name.startswith((*EXTRAS, *OWN)) and not link.is_symlink():
            link.symlink_to(package)
    (own,) = environment.glob("lib/python*/site-packages")
    # With the files that an environment runs at its start, setuptools' for distutils among them.
    start = f"import site; site.addsitedir({str(dependencies)!r})"
    (own / "dependencies.pth").write_text(start)
    _write_run(elsewhere)
    if shutil.which("git"):
        _commit_as_somebody(folder)
    return Installed(environment, elsewhere)


def _commit_as_somebody(folder: Path) -> None:
    """Make it a project of the user's own, which keeps its environment inside."""
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    run("git", "init", "--quiet", cwd=folder)
    run("git", *identity, "commit", "--quiet", "--allow-empty", "-m", "theirs", cwd=folder)


def packages_here() -> Iterator[Path]:
    for folder in map(Path, sys.path):
        if folder.name in ("site-packages", "dist-packages"):
            yield from folder.iterdir()


def _write_run(folder: Path) -> None:
    """Two texts, and a run of two steps on the shards that become of them."""
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"{split}.txt").write_text("To be, or not to be, that is the question.\n" * 30)
    file = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32},
        "data": {"train": "shards/train", "val": "shards/val"},
        "batch": {"tokens_per_step": 128, "micro_batch_size": 1},
        "optimizer": {"warmup_steps": 1},
        "training": {"steps": 2, "eval_every": 2, "sample_tokens": 4, "checkpoint_every": 2},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(file))
