"""fp16 on a CPU: torch's own scaler, autocast and DeepSpeed's fp16 work there, but are refused.

The toolkit refuses the precision, Accelerate leaves the scaler out, DeepSpeed asks for a CPU with
fp16 arithmetic. Below these three checks everything is the library's own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator

from toolkit.engines import build
from toolkit.engines.strategies import Strategy

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
            patches.enter_context(patch.object(Accelerator, "__init__", _scaling(scale)))
        yield


def _scaling(scale: float) -> Any:
    start = Accelerator.__init__

    def start_with_scaler(accelerator: Any, **settings: Any) -> None:
        start(accelerator, **settings)
        if accelerator.mixed_precision == "fp16":
            # As Accelerate does on every other device.
            accelerator.native_amp = True
            accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    return start_with_scaler
