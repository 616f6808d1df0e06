"""Where the launch files, the presets and the main job are: in a checkout, or in the package.

People read and copy them in the top-level folders `configs` and `launch`; building a wheel copies
those folders into the package, so that there is one original.
"""

from difflib import get_close_matches
from pathlib import Path

from toolkit.engines.strategies import STRATEGIES
from toolkit.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent

IS_INSTALLED = (_PACKAGE / "configs").is_dir()
"""Whether this is an installed wheel, not a checkout."""

ROOT = _PACKAGE if IS_INSTALLED else _PACKAGE.parent
"""The folder that holds `configs` and `launch`."""

_LAUNCH_FILES = (".yaml", ".yml", ".json")


def find_launch_file(strategy: str) -> Path:
    """Return the shipped launch file of a strategy, or the file itself where a path is given.

    Raises:
        UsageError: there is no such strategy.
    """
    if strategy in STRATEGIES:
        return _relative(ROOT / "configs" / "accelerate" / f"{strategy}.yaml")
    path = Path(strategy)
    if path.suffix in _LAUNCH_FILES or path.is_file():
        return path
    near = get_close_matches(strategy, STRATEGIES, n=1)
    known = f"there are {', '.join(STRATEGIES)}, and paths of launch files"
    hint = f"did you mean '{near[0]}'?" if near else known
    raise UsageError(f"unknown strategy '{strategy}'; {hint}")


def find_main_job() -> Path:
    """Return the script that `accelerate launch` starts."""
    return _relative(ROOT / "launch" / "train.py")


def find_shipped(path: str | Path) -> Path | None:
    """Return the shipped file of a relative path such as `configs/train/gpt2.yaml`, if any."""
    try:
        return ROOT / path if (ROOT / path).is_file() else None
    except (OSError, ValueError):  # no path at all: too long, or with a NUL
        return None


def _relative(path: Path) -> Path:
    """Shorten a path below the current folder, so that the printed line is one a person types."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
