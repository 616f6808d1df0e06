"""What Accelerate does not document and this toolkit needs: the one place that reaches for it.

Read in accelerate 1.16.0: `accelerate/state.py`, `accelerate/optimizer.py`,
`accelerate/commands/launch.py`.
"""

from collections.abc import Callable
from typing import Any

from toolkit.engines.attributes import check_attributes

READ_IN = "1.16.0"


def forget_engine(*, with_processes: bool = False) -> None:
    """Let this process build another engine: Accelerate keeps the first one's settings for good.

    Args:
        with_processes: forget also how the processes found each other.

    Raises:
        UsageError: this version of Accelerate keeps them in another way.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, *([PartialState] if with_processes else [])):
        check_attributes("accelerate", READ_IN, state, ("_reset_state",))
        state._reset_state()


def end_worker_by(ask: Callable[..., None]) -> None:
    """Let the launcher of a single process end it by `ask`; its own way gives it 5 s to save.

    Before 1.16 Accelerate leaves the ending to whoever handles the signal.

    Raises:
        UsageError: this version of Accelerate ends it in another way.
    """
    from importlib.metadata import version

    from accelerate.commands import launch
    from packaging.version import Version

    if Version(version("accelerate")) >= Version("1.16"):
        check_attributes("accelerate", READ_IN, launch, ("_terminate_process_tree",))
        launch._terminate_process_tree = ask


def admit_sharding() -> None:
    """Let `AcceleratorState` turn to FSDP without a GPU, where it would see no group at all.

    Raises:
        UsageError: this version of Accelerate decides by something else.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    state = PartialState()
    check_attributes("accelerate", READ_IN, state, ("distributed_type",))
    state.distributed_type = DistributedType.MULTI_GPU


def plain_optimizer(wrapped: Any) -> Any:
    """Return the optimizer inside Accelerate's wrapper, which is there to scale losses.

    Every step of the wrapper looks for packages on the disk.
    """
    return getattr(wrapped, "optimizer", wrapped)
