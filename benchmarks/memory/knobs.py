"""What no run configuration can ask for, put into model and engine, so that it can be measured."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from accelerate import utils as accelerate_utils
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.memory.configurations import Configuration
from toolkit.engines.engine import Engine


@contextmanager
def while_building(configuration: Configuration) -> Iterator[None]:
    """Give DDP the bucket views that were asked for, whatever the loop asks for."""
    original = accelerate_utils.DistributedDataParallelKwargs

    def changed(**arguments: Any) -> Any:
        views = {"gradient_as_bucket_view": configuration.gradient_as_bucket_view}
        return original(**(arguments | views))

    with patch.object(accelerate_utils, "DistributedDataParallelKwargs", changed):
        yield


@contextmanager
def while_training(configuration: Configuration) -> Iterator[None]:
    """Choose the attention kernel."""
    with ExitStack() as stack:
        if configuration.attention == "math":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


def unseen_buckets(engine: Engine) -> int:
    """Return the bytes of DDP's buckets where nothing but its reducer, in C++, holds them."""
    if getattr(engine.model, "gradient_as_bucket_view", True):
        return 0
    logged = engine.model._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
    return sum(map(int, str(sizes).split(",")))


def clear_gradients(engine: Engine, *, set_to_none: bool) -> None:
    """Free the gradients between steps, or zero them."""
    engine.set_to_none = set_to_none
