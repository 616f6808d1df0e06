"""Everything a step's memory depends on, as one value; the defaults are what the loop does."""

from dataclasses import dataclass, replace
from typing import Literal

from toolkit.batching import plan_batch
from toolkit.config import RunConfig
from toolkit.engines.mixture import Budget, Mixture, check_possible, check_units
from toolkit.engines.reduction import Reduce, check_reduce
from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.errors import UsageError
from toolkit.model.sizes import Loss, ModelSizes
from toolkit.program.events import Group

Device = Literal["cuda", "cpu"]
Attention = Literal["flash", "math"]
MAX_PARAMETERS = 10**12
ONLY_FOR: dict[str, tuple[Strategy, ...]] = {
    "gradient_as_bucket_view": ("ddp",),
    "offload_optimizer": ("zero1", "zero2", "zero3"),
}
"""Fields of `StepSettings` that some strategies alone have."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """One rank's optimizer step.

    Attributes:
        replicas: replica groups of hybrid sharding, else 1.
        micro_batch_size: sequences per rank and micro-step.
        seq_len: tokens per sequence.
        grad_accum_steps: micro-steps per optimizer step.
        reduce: what gradients are sent as; None: in half the bytes where nothing is lost.
        foreach: the optimizer's `foreach` kernels, which hold one fp32 temporary of all that they
            update, instead of AdamW's fused one, which works in place.
        compile: each block is compiled; what is kept of its activations is then a range.
        least_kept: with `compile`, the lower end of that range instead of the upper one.
        device: what the step runs on: kernels and autocast rules differ.
        attention: `flash` never holds the [T, T] weights, `math` does.
        gradient_as_bucket_view: DDP's gradients live in its buckets.
        set_to_none: gradients are freed between steps, not zeroed; None as the loop does it, which
            zeroes DDP's alone. DeepSpeed frees its own in any case.
        offload_optimizer: ZeRO's masters and moments live in host memory. Read from DeepSpeed's
            source; the loop has no such run, so it has not been measured.
    """

    sizes: ModelSizes
    strategy: Strategy
    accumulation: Accumulation | Mixture
    world_size: int
    replicas: int = 1
    micro_batch_size: int = 1
    seq_len: int = 1024
    grad_accum_steps: int = 1
    precision: Precision = "bf16"
    reduce: Reduce | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    foreach: bool = False
    activation_checkpointing: bool = False
    loss: Loss = "plain"
    dropout: float = 0.0
    compile: bool = False
    least_kept: bool = False
    device: Device = "cuda"
    attention: Attention = "flash"
    gradient_as_bucket_view: bool = True
    set_to_none: bool | None = None
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        check_possible(self.strategy, self.accumulation)
        sizes = self.sizes
        check_units(self.accumulation, sizes.n_layer)
        check_reduce(self.strategy, self.precision, self.reduce)
        counts = {
            "n_layer": sizes.n_layer,
            "n_head": sizes.n_head,
            "n_embd": sizes.n_embd,
            "vocab_size": sizes.vocab_size,
            "world_size": self.world_size,
            "micro_batch_size": self.micro_batch_size,
            "seq_len": self.seq_len,
            "grad_accum_steps": self.grad_accum_steps,
        }
        for name, count in counts.items():
            if count < 1:
                raise UsageError(f"{name} must be at least 1, got {count}")
        if sizes.n_embd % sizes.n_head:
            raise UsageError(f"n_embd {sizes.n_embd} is no multiple of n_head {sizes.n_head}")
        if self.seq_len > sizes.block_size:
            raise UsageError(f"seq_len {self.seq_len} is above block_size {sizes.block_size}")
        if self.strategy == "single" and self.world_size > 1:
            raise UsageError(f"strategy 'single' is one process, got world_size {self.world_size}")
        if self.world_size % self.replicas:
            raise UsageError(
                f"{self.replicas} replica groups do not divide world_size {self.world_size}"
            )

    @property
    def frees_gradients(self) -> bool:
        """Whether gradients are freed between steps."""
        return self.strategy != "ddp" if self.set_to_none is None else self.set_to_none

    @property
    def uses_foreach(self) -> bool:
        """Whether the optimizer has `foreach` kernels: asked for, or PyTorch's choice on a GPU."""
        return self.foreach or (self.optimizer == "sgd" and self.device == "cuda")

    @property
    def shards(self) -> int:
        """Ranks that one copy of the sharded state is spread over."""
        return self.world_size // self.replicas

    def ranks_of(self, group: Group) -> int:
        """Return how many ranks a collective's group joins."""
        return {"world": self.world_size, "shards": self.shards, "replicas": self.replicas}[group]

    @property
    def width(self) -> int:
        """Bytes per element of a matrix multiplication."""
        return 4 if self.precision == "fp32" else 2

    @property
    def autocast(self) -> bool:
        """Weights stay fp32 and each use casts a copy; else the module itself is low precision."""
        return self.precision != "fp32" and self.strategy in ("single", "ddp")

    @property
    def residual_width(self) -> int:
        """Bytes per element of the residual stream: embeddings are not autocast."""
        return 4 if self.autocast else self.width


def settings_of_run(
    config: RunConfig,
    strategy: Strategy,
    *,
    world_size: int,
    replicas: int = 1,
    device: Device = "cuda",
    accumulation: Accumulation | Mixture | Budget | None = None,
) -> StepSettings:
    """Return the settings of the run that a configuration would start.

    Raises:
        UsageError: the batch cannot be cut, or strategy and accumulation do not go together.
    """
    plan = plan_batch(
        tokens_per_step=config.batch.tokens_per_step,
        seq_len=config.data.seq_len,
        micro_batch_size=config.batch.micro_batch_size,
        world_size=world_size,
    )
    asked = accumulation or config.accumulation
    settings = StepSettings(
        sizes=config.model.sizes(),
        strategy=strategy,
        accumulation="sharded" if isinstance(asked, Budget) else asked,
        world_size=world_size,
        replicas=replicas,
        micro_batch_size=plan.micro_batch_size,
        seq_len=plan.seq_len,
        grad_accum_steps=plan.grad_accum_steps,
        precision=config.precision,
        reduce=config.reduce,
        optimizer=config.optimizer.name,
        activation_checkpointing=config.model.activation_checkpointing,
        loss=config.model.loss,
        dropout=config.model.dropout,
        compile=config.model.compile,
        device=device,
        # PyTorch's flash kernel for CPU has no dropout; attention falls back to plain products.
        attention="math" if device == "cpu" and config.model.dropout else "flash",
    )
    return _spend(settings, asked) if isinstance(asked, Budget) else settings


def _spend(settings: StepSettings, budget: Budget) -> StepSettings:
    if budget.bytes is None:
        raise UsageError(
            f"accumulation: {budget} depends on the device that a run starts on; give "
            "accumulation a mode, or units to hold"
        )
    from toolkit.program.budget import spend

    check_possible(settings.strategy, budget)
    return replace(settings, accumulation=spend(settings, budget.bytes))
