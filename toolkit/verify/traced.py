"""The traced estimate: the real step on tensors without data, on any number of ranks.

Model, optimizer, engine and `train_step` are those of a run; a fake process group answers for the
other ranks, so that a model of any size is traced on a host without a GPU in seconds. PyTorch's own
memory trackers (`torch.distributed._tools`, private) count the storages of every operator's
results. They see no kernel's scratch, file the loss under activations, and do not show when in the
step the peak is. DDP's reducer and DeepSpeed need data; `benchmarks/memory` measures them with real
tensors instead.

The step is traced on the CPU's operators; a GPU's attention and fused kernels keep the same.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.weak import WeakTensorKeyDictionary

from toolkit.config import OptimizerConfig
from toolkit.engines.build import TORCH_DTYPES, sum_dtype
from toolkit.engines.engine import Engine
from toolkit.engines.fsdp2 import Fsdp2Engine
from toolkit.engines.launched import Launched
from toolkit.engines.replicated import ReplicatedEngine
from toolkit.engines.strategies import ALONE, Precision, frees_after_forward
from toolkit.engines.torch_internals import (
    FakeTensorMode,
    TorchDispatchMode,
    fake_store,
    memory_trackers,
)
from toolkit.memory.report import Row
from toolkit.model.gpt2 import GPT2
from toolkit.program.events import PARTS, Part
from toolkit.program.settings import StepSettings
from toolkit.program.step import WALKED_MICRO_STEPS
from toolkit.training.optimizer import build_optimizer, use_foreach
from toolkit.training.step import train_step

# Words of the trackers' own categories; the loss is among activations and temporaries there.
_PARTS: tuple[tuple[str, Part], ...] = (
    ("param", "parameters"),
    ("grad", "gradients"),
    ("opt", "optimizer"),
    ("gather", "communication"),
    ("reduce", "communication"),
    ("act", "activations"),
    ("temp", "activations"),
)


def trace_row(settings: StepSettings, begin_step: Callable[[int], None] = lambda step: None) -> Row:
    """Trace two steps of a strategy without a reducer of its own; return the second one's peak.

    Args:
        settings: what is traced.
        begin_step: called with 1 and 2 as the steps begin; a large model takes minutes.
    """
    sharded = settings.strategy != ALONE
    if sharded:
        dist.init_process_group("fake", rank=0, world_size=settings.world_size, store=fake_store())
    try:
        # The mesh reads its ranks' numbers, which fake tensors do not have.
        mesh = _mesh(settings) if sharded else None
        with FakeTensorMode():
            snapshot = _trace(settings, mesh, begin_step)
    finally:
        if sharded:
            dist.destroy_process_group()
    parts = _parts(snapshot)
    return Row(settings, parts, sum(parts.values()), None, method="trace")


def _mesh(settings: StepSettings) -> Any:
    if settings.replicas > 1:
        shape = (settings.replicas, settings.shards)
        return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (settings.world_size,))


def _trace(settings: StepSettings, mesh: Any, begin_step: Callable[[int], None]) -> dict[Any, int]:
    engine = _build_engine(settings, mesh)
    # Tokens and targets of the whole step, which lie in memory though a few are walked.
    shape = (settings.grad_accum_steps, 2, settings.micro_batch_size, settings.seq_len)
    batches = torch.zeros(shape, dtype=torch.long)
    plain_tracker, sharded_tracker = memory_trackers()
    if mesh is None:
        tracker = plain_tracker()
        tracker.track_external(engine.model, _inner(engine), batches)
    else:
        tracker = sharded_tracker(engine.model, _inner(engine))
        tracker.track_inputs((batches,))
    micro_batches = [(tokens, targets) for tokens, targets in batches[:WALKED_MICRO_STEPS]]
    engine.accelerator.after_backward = tracker.reset_mod_stats
    for step in (1, 2):
        begin_step(step)
        with tracker:
            train_step(engine, micro_batches, lr=1e-3)
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {kind: size for kind, size in snapshot.items() if str(kind) != "Total"}


def _parts(snapshot: dict[Any, int]) -> dict[Part, int]:
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for kind, size in snapshot.items():
        name = str(getattr(kind, "value", kind)).lower()
        part = next((part for word, part in _PARTS if word in name), "other")
        parts[part] += size  # type: ignore[index]
    return parts


class _AddInPlace(TorchDispatchMode):
    """Add gradients up as autograd does with real tensors, and would not with fake ones.

    It adds a second gradient into the first where nothing else refers to that one
    (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp), but never into a tensor
    subclass. A transposed product is a view, and something else refers to it. Recomputation, which
    adds too, runs with gradients enabled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transposed = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if function is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            first, second = arguments
            if first.shape == second.shape and first not in self.transposed:
                return first.add_(second)
        result = function(*arguments, **(keywords or {}))
        if function is torch.ops.aten.t.default:
            self.transposed[result] = True
        return result


class _Accelerator:
    """As much of Accelerate as an engine asks for during a step."""

    device = torch.device("cpu")
    scaler = None

    def __init__(self) -> None:
        self.after_backward: Callable[[], None] = lambda: None

    def backward(self, loss: torch.Tensor) -> None:
        with _AddInPlace():
            loss.backward()
        # The trackers take one pass through the modules at a time.
        self.after_backward()


def _inner(engine: Engine) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = engine.optimizer
    return optimizer


def _build_engine(settings: StepSettings, mesh: Any) -> Engine:
    model = (_AutocastGPT2 if mesh is None else GPT2)(
        settings.sizes,
        dropout=settings.dropout,
        activation_checkpointing=settings.activation_checkpointing,
        loss=settings.loss,
    )
    if isinstance(model, _AutocastGPT2):
        model.precision = settings.precision
    else:
        _shard(model, settings, mesh)
    optimizer = build_optimizer(model, OptimizerConfig.model_validate({"name": settings.optimizer}))
    if settings.uses_foreach:
        use_foreach(optimizer)
    launched = Launched(
        strategy=settings.strategy,
        rank=0,
        local_rank=0,
        world_size=settings.world_size,
        replicas=settings.replicas,
        precision=None,
    )
    blocks = {} if mesh is None else {"blocks": list(model.transformer.h)}
    engine = (ReplicatedEngine if mesh is None else Fsdp2Engine)(
        **blocks,
        accelerator=_Accelerator(),
        module=model,
        model=model,
        optimizer=optimizer,
        launched=launched,
        accumulation=settings.accumulation,
        grad_clip=1.0,
        precision=settings.precision,
        reduce=settings.reduce,
    )
    # A fake norm has no value to decide by whether to clip.
    engine.norm = lambda gradients, sum_over_shards: torch.tensor(2.0)
    return engine


class _AutocastGPT2(GPT2):
    """Computes as Accelerate lets a model that is not sharded."""

    precision: Precision

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast("cpu", TORCH_DTYPES[self.precision], self.precision != "fp32"):
            return super().forward(tokens, targets)


def _shard(model: GPT2, settings: StepSettings, mesh: Any) -> None:
    """Shard as Accelerate does with the policy of `toolkit.engines.build`."""
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[settings.precision], reduce_dtype=sum_dtype(settings.reduce)
    )
    reshard = frees_after_forward(settings.strategy)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    model.tie_weights()
