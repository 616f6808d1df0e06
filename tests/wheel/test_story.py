"""The story of docs/use.md from the installed wheel, in an empty folder."""

from pathlib import Path

import pytest

from tests.test_story import Checkout, follow
from tests.wheel.conftest import EXTRAS, Installed, packages_here, run

# The wheel's environment is new, so DeepSpeed compiles its extension: a minute and more.
pytestmark = [pytest.mark.distributed, pytest.mark.long, pytest.mark.timeout(1800)]


class Wheel(Checkout):
    """The commands, each in a process of the installed program, with DeepSpeed beside it."""

    limit = 900

    def __init__(self, installed: Installed, extras: Path) -> None:
        self.python = installed.environment / "bin" / "python"
        self.train = (installed.environment / "bin" / "toolkit",)
        self.path = str(extras)
        for package in packages_here():
            if package.name.startswith(EXTRAS):
                (extras / package.name).symlink_to(package)

    def toolkit(self, *words: str) -> str:
        return run(*self.train, *words, cwd=Path.cwd())


def test_the_story_from_an_installed_wheel(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, extras = tmp_path / "empty", tmp_path / "extras"
    folder.mkdir()
    extras.mkdir()
    monkeypatch.chdir(folder)
    follow(folder, Wheel(installed, extras))
