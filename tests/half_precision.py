"""fp16 on a CPU: torch's own scaler, autocast and DeepSpeed's fp16 work there, but are refused.

The toolkit refuses the precision, Accelerate leaves the scaler out, DeepSpeed asks for a CPU with
fp16 arithmetic. Below these three checks everything is the library's own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from toolkit.engines import build
from toolkit.engines.strategies import FSDP2_STRATEGIES, Strategy

OVERFLOWS = 2.0**30
"""A scale at which the gradients of the tiny models are not finite in fp16."""


@contextmanager
def fp16_on_cpu(strategy: Strategy, *, scale: float = 2.0**16) -> Iterator[None]:
    """Engines built in this block train in fp16, with losses scaled by `scale` at first."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(build, "check_precision", lambda *_: None))
        if strategy.startswith("zero"):
            from deepspeed.accelerator import get_accelerator

            here = get_accelerator()
            patches.enter_context(patch.object(here, "is_fp16_supported", lambda: True))
        else:
            scaler = ShardedGradScaler if strategy in FSDP2_STRATEGIES else torch.amp.GradScaler
            start = partial(scaler, "cpu", init_scale=scale)
            patches.enter_context(patch.object(Accelerator, "__init__", _scaling(start)))
        yield


def _scaling(scaler: Callable[[], Any]) -> Any:
    start = Accelerator.__init__

    def start_with_scaler(accelerator: Any, **settings: Any) -> None:
        start(accelerator, **settings)
        if accelerator.mixed_precision == "fp16":
            # As Accelerate does on every other device.
            accelerator.native_amp = True
            accelerator.scaler = scaler()

    return start_with_scaler
