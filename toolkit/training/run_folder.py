"""The folder of a run, `<output_dir>/<run_name>/`, and what is written there besides metrics."""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from toolkit.config import RunConfig, dump_run_config
from toolkit.engines.packages import PACKAGES
from toolkit.errors import UsageError
from toolkit.shipped import IS_INSTALLED

_SUMMARY = "summary.json"
_LAST_START = "last_start.json"
_PACKAGES = ("scaling-toolkit", *PACKAGES, "transformers", "numpy", "safetensors")


def package_versions() -> dict[str, str]:
    """Return the versions of those installed packages that decide what is computed."""
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def run_folder(config: RunConfig) -> Path:
    """Return the run's folder; `run_name` is a plain name, so it cannot lead elsewhere."""
    return Path(config.output_dir) / config.run_name


def make_run_folder(config: RunConfig) -> Path:
    """Return the run's folder, made where it was not there.

    Raises:
        UsageError: it cannot be made.
    """
    folder = run_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made a run folder: {error.strerror}") from None
    return folder


@contextmanager
def sole_user(folder: Path, *, instead: str = "run_name") -> Iterator[None]:
    """Keep other starts out of a folder; the lock ends with the process, however it ends.

    Args:
        folder: must be there.
        instead: what to choose another of, for the message.

    Raises:
        UsageError: another process is at work there.
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        _lock(held, folder, instead)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path, instead: str) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{folder}: another process is at work there; wait for it or choose another {instead}"
        ) from None


def write_description(
    folder: Path, config: RunConfig, launch: dict[str, Any], devices: dict[str, Any]
) -> None:
    """Write `config.yaml`, `launch.yaml` and `environment.json`.

    Raises:
        UsageError: something that cannot be written to is in the way.
    """
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "devices": devices,
        "git": git_state(),
    }
    texts = {
        "config.yaml": dump_run_config(config),
        "launch.yaml": yaml.safe_dump(launch, sort_keys=False),
        "environment.json": _as_json(environment),
    }
    for name, text in texts.items():
        try:
            _replace(folder / name, text)
        except IsADirectoryError as error:
            raise UsageError(f"{folder / name}: cannot be written: {error.strerror}") from None


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write `summary.json` in one move, so that a reader never sees half of it."""
    _replace(folder / _SUMMARY, _as_json(summary))


def begin_start(folder: Path) -> None:
    """Forget how the last start ended, and a summary that is damaged or of a run without steps.

    Raises:
        UsageError: what has the name of such a file is none.
    """
    forget_last_start(folder)
    metrics = folder / "metrics.jsonl"
    try:
        stands = read_summary(folder) is not None and metrics.stat().st_size > 0
    except (OSError, UsageError):
        stands = False
    if not stands:
        forget_summary(folder)


def forget_summary(folder: Path) -> None:
    """Remove the summary, since the run is about to go on from there, or back.

    Raises:
        UsageError: what has its name is no file.
    """
    _forget(folder / _SUMMARY)


def forget_last_start(folder: Path) -> None:
    """Remove how the last start ended; raises as `forget_summary`."""
    _forget(folder / _LAST_START)


def _forget(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be replaced: {error.strerror}") from None


def end_start(folder: Path, summary: dict[str, Any]) -> bool:
    """Write how a start failed or was ended; return whether this call was the first of its ranks.

    When one rank fails the others fail after it, for want of it; the first is the cause. The
    summary stays where there is one: a start that has trained nothing has no figures of the run.
    """
    how = {key: summary[key] for key in ("exit", "reason")}
    if not _write_new(folder / _LAST_START, how):
        return False
    _write_new(folder / _SUMMARY, summary)
    return True


def finish_start(folder: Path, summary: dict[str, Any]) -> None:
    """Write that a start ended as it should; one that trained nothing leaves the figures."""
    how = {key: summary[key] for key in ("exit", "reason")}
    write_summary(folder, {**(read_summary(folder) or summary), **how})
    _replace(folder / _LAST_START, _as_json(how))


def _write_new(path: Path, value: dict[str, Any]) -> bool:
    """Write a file in one move unless it is there; return whether it was not."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(_as_json(value))
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None while it trains or after it was killed.

    Raises:
        UsageError: the file is no summary.
    """
    return _read(folder / _SUMMARY)


def read_last_start(folder: Path) -> dict[str, Any] | None:
    """Return `exit` and `reason` of the last start in this folder, or None if it left none.

    Raises:
        UsageError: the file is no summary.
    """
    return _read(folder / _LAST_START)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UsageError(f"{path} is not JSON; remove it") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(summary, dict) or not isinstance(summary.get("exit"), int):
        raise UsageError(f"{path} is no summary of a run, it lacks an exit code; remove it")
    return summary


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text)
    partial.replace(path)


def _as_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def git_state() -> dict[str, Any] | None:
    """Commit of the code and whether it was changed, or None where it is no checkout."""
    # The repository around an installed package is somebody else's.
    if IS_INSTALLED:
        return None
    root = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
