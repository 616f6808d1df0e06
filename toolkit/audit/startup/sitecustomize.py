"""Run by every Python process of an audited command, before its script.

It waits for `import torch` and hands over to `toolkit.audit.watch`. `sys.path` is left as it would
be without it, and another `sitecustomize` further down the path is run as usual.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


def _load_toolkit() -> None:
    """Make this toolkit importable without putting its neighbours on the script's path."""
    package = os.environ["TOOLKIT_AUDIT_PACKAGE"]
    if "toolkit" not in sys.modules:
        start = os.path.join(package, "__init__.py")
        spec = importlib.util.spec_from_file_location(
            "toolkit", start, submodule_search_locations=[package]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["toolkit"] = module
        spec.loader.exec_module(module)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds `torch` as all others would, and starts the watch once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_watch(module: ModuleType) -> None:
                run(module)
                try:
                    _load_toolkit()
                    from toolkit.audit.watch import start_watch

                    start_watch()
                except Exception as error:  # the script must run, watched or not
                    print(f"toolkit audit: not watching: {error!r}", file=sys.stderr)

            spec.loader.exec_module = run_and_watch  # type: ignore[method-assign]
        return spec


def _run_other() -> None:
    """Run the `sitecustomize` that this one stands in front of."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
if "TOOLKIT_AUDIT_OUT" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
_run_other()
