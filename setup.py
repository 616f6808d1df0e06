"""The one build step that `pyproject.toml` has no words for."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShipped(build_py):
    """Put the folders that people read and copy into the package; `toolkit/shipped.py` finds them.

    An editable install has them beside the package and needs no copy.
    """

    def run(self) -> None:
        """Build the package, and then copy into it."""
        super().run()
        if not self.editable_mode:
            for folder in ("configs", "launch"):
                self.copy_tree(folder, str(Path(self.build_lib, "toolkit", folder)))


setup(cmdclass={"build_py": BuildWithShipped})
