"""What Accelerate does not document and this toolkit needs: the one place that reaches for it.

Read in accelerate 1.16.0: `accelerate/state.py`, `accelerate/optimizer.py`.
"""

from typing import Any

from toolkit.backends.attributes import check_attributes

READ_IN = "1.16.0"
STATE = ("_reset_state",)


def check_state() -> None:
    """Look for everything below.

    Raises:
        UsageError: names what this version of Accelerate does not have.
    """
    from accelerate.state import AcceleratorState, GradientState

    for state in (AcceleratorState, GradientState):
        check_attributes("accelerate", READ_IN, state, STATE)


def forget_engine() -> None:
    """Let this process build another engine: Accelerate keeps the first one's settings for good."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()


def admit_sharding() -> None:
    """Let `AcceleratorState` turn to FSDP without a GPU, where it would see no group at all."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState().distributed_type = DistributedType.MULTI_GPU


def plain_optimizer(wrapped: Any) -> Any:
    """Return the optimizer inside Accelerate's wrapper, which is there to scale losses.

    Every step of the wrapper looks for packages on the disk.
    """
    return getattr(wrapped, "optimizer", wrapped)
