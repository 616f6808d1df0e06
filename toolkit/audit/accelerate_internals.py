"""What Accelerate does not document and an audit reads: the one place in it that reaches for it.

Read in accelerate 1.16.0: `accelerate/state.py`.
"""

import sys
from typing import Any

READ_IN = "1.16.0"


def holds_back() -> bool:
    """Whether Accelerate was told that this micro-step is not the window's last.

    A script that has not made an `Accelerator` is left without its state.
    """
    state: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    shared = getattr(state, "_shared_state", None)
    if not shared or shared.get("sync_gradients", True):
        return False
    return not state().plugin_kwargs.get("sync_each_batch", False)
