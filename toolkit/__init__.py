"""One GPT-2 training run, from one process to many, learning the same thing each time.

For a training loop or a model of one's own: `join_launch`, `plan_batch`, `build_engine`,
`train_step`, `Checkpoints` and `estimate_memory`. They are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.batching import plan_batch
    from toolkit.engines.build import build_engine
    from toolkit.own_loop import Checkpoints, estimate_memory, join_launch
    from toolkit.training.step import train_step

__version__ = "0.1.0"

__all__ = [
    "Checkpoints",
    "build_engine",
    "estimate_memory",
    "join_launch",
    "plan_batch",
    "train_step",
]

_MODULES = {
    "Checkpoints": "toolkit.own_loop",
    "build_engine": "toolkit.engines.build",
    "estimate_memory": "toolkit.own_loop",
    "join_launch": "toolkit.own_loop",
    "plan_batch": "toolkit.batching",
    "train_step": "toolkit.training.step",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
