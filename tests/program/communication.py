"""What each strategy should communicate in one optimizer step, as closed formulas. Pure arithmetic.

With P parameters in L blocks of B together and R = P - B outside (embeddings, last norm), A
micro-steps, N ranks, and payloads as `toolkit.engines.collectives` defines them, in elements:

    ddp             all-reduce      P      once, or A times when sharded, a call per bucket
    fsdp2           all-gather      2B + R per micro-step: blocks for forward and for backward, the
                                    rest once, as it stays gathered in between
    ..._no_reshard                  B + R  per micro-step; once per step when replicated, as this
                                    toolkit then leaves parameters gathered for the whole window
                    reduce-scatter  P      once, or A times when sharded, L + 1 calls each
    hsdp            as fsdp2 inside the shard group of S ranks, and across the N / S replicas an
                    all-reduce of the shard, P / S, once, or A times when sharded
    zero1, zero2    all-reduce      P      once, or A times when sharded: DeepSpeed all-reduces
                                    whole buckets and keeps its part, whatever its configuration
                                    says
                    all-gather      P      once, after the update
    zero3           reduce-scatter  P      once, or A times when sharded
                    all-gather      at least every matrix once, at most twice and the token
                                    embedding four times per micro-step: each use gathers anew (that
                                    one serves the embedding and the head) unless a prefetch has
                                    left it in place; the small persistent parameters once, after
                                    the update

In a world of one nobody gathers and FSDP2 does not reduce; DDP and DeepSpeed do, with themselves.
Gathers move the precision of the computation, reductions fp32. Slices that do not divide evenly
are padded, which adds at most the number of shards minus 1 rows to each tensor.

Where buckets decide, calls have bounds instead of a formula: at least one per reduction, at most
one per tensor. DeepSpeed reduces a bucket of b elements (`deepspeed_config.bucket_elements`) or one
larger tensor in pieces of more than b: at most P / b calls beyond one per tensor. No call
carries more than 5e8 elements and one tensor: at least P / (5e8 + largest tensor) calls.
"""

from dataclasses import dataclass

from toolkit.engines.deepspeed_config import DEEPSPEED_BUCKET, bucket_elements
from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import model_tensors

_REDUCED_BYTES = 4
_COMPUTE_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
_TENSORS_PER_BLOCK = 12
_OTHER_TENSORS = 4


@dataclass(frozen=True)
class Range:
    """Whole numbers from `at_least` to `at_most`; equal ends mean an exact formula."""

    at_least: int
    at_most: int

    def admits(self, found: int) -> bool:
        """Whether a count is what the formula says."""
        return self.at_least <= found <= self.at_most

    def to_json(self) -> int | dict[str, int]:
        """Return the number where it is exact, else both ends."""
        return self.at_least if self.at_least == self.at_most else vars(self)

    def __str__(self) -> str:
        exact = self.at_least == self.at_most
        return f"{self.at_least:,}" if exact else f"{self.at_least:,} to {self.at_most:,}"


@dataclass(frozen=True)
class Expected:
    """One kind of collective per optimizer step and rank: calls, payload bytes, group size."""

    calls: Range
    bytes: Range
    group_size: int


KINDS = ("all_reduce", "reduce_scatter", "all_to_all", "all_gather", "other")
NOTHING = Expected(Range(0, 0), Range(0, 0), group_size=0)


def expected_collectives(
    strategy: Strategy,
    accumulation: Accumulation,
    *,
    sizes: ModelSizes,
    grad_accum_steps: int,
    precision: Precision,
    world_size: int,
    replicas: int,
) -> dict[str, Expected]:
    """Return what to expect by kind.

    Args:
        sizes: the model; its tensors must divide by the shards, else padding comes on top.
        grad_accum_steps: micro-steps A.
        replicas: replica groups of hybrid sharding, else 1.
    """
    found = dict.fromkeys(KINDS, NOTHING)
    reductions = 1 if accumulation == "replicated" else grad_accum_steps
    gradients = reductions * sizes.parameter_count * _REDUCED_BYTES
    width = _COMPUTE_BYTES[precision]
    bucketed = _bucketed_calls(sizes, reductions)
    if strategy == "ddp":
        calls = Range(reductions, reductions * _tensors(sizes))
        found["all_reduce"] = Expected(calls, _exactly(gradients), world_size)
    elif strategy in ("zero1", "zero2"):
        found["all_reduce"] = Expected(bucketed, _exactly(gradients), world_size)
        gathered = _exactly(sizes.parameter_count * width)
        found["all_gather"] = Expected(Range(1, _tensors(sizes)), gathered, world_size)
    elif strategy == "zero3":
        found["reduce_scatter"] = Expected(bucketed, _exactly(gradients), world_size)
        found["all_gather"] = _zero3_gathers(sizes, grad_accum_steps, width, world_size)
    elif strategy != "single":
        shards = world_size // replicas
        # A micro-step's gradient in bf16 is sent as it is, in half the bytes.
        is_half = precision == "bf16" and accumulation != "replicated"
        found["all_to_all" if is_half else "reduce_scatter"] = Expected(
            _exactly(reductions * (sizes.n_layer + 1)), _exactly(gradients // (1 + is_half)), shards
        )
        found["all_gather"] = _fsdp2_gathers(
            strategy, accumulation, sizes, grad_accum_steps, width, shards
        )
    if strategy == "hsdp":
        across = 1 if accumulation == "deferred" else reductions
        found["all_reduce"] = _across_replicas(sizes, across, shards, replicas)
    if world_size == 1:
        found["all_gather"] = NOTHING
        if strategy in ("fsdp2", "fsdp2_no_reshard"):
            found["reduce_scatter"] = found["all_to_all"] = NOTHING
    return found


def _across_replicas(sizes: ModelSizes, reductions: int, shards: int, replicas: int) -> Expected:
    shard = sizes.parameter_count * _REDUCED_BYTES // shards
    calls = _exactly(reductions * (sizes.n_layer + 1))
    return Expected(calls, _exactly(reductions * shard), replicas)


def _exactly(count: int) -> Range:
    return Range(count, count)


def _tensors(sizes: ModelSizes) -> int:
    return sizes.n_layer * _TENSORS_PER_BLOCK + _OTHER_TENSORS


def _bucketed_calls(sizes: ModelSizes, reductions: int) -> Range:
    """DeepSpeed's calls; ceilings and floors as the module's text says."""
    elements = sizes.parameter_count
    most = DEEPSPEED_BUCKET + max(tensor.elements for tensor in model_tensors(sizes))
    return Range(
        reductions * -(-elements // most),
        reductions * (_tensors(sizes) + elements // bucket_elements(sizes)),
    )


def _block_parameters(sizes: ModelSizes) -> int:
    return sizes.n_layer * sizes.block_parameters


def _fsdp2_gathers(
    strategy: Strategy,
    accumulation: Accumulation,
    sizes: ModelSizes,
    grad_accum_steps: int,
    width: int,
    shards: int,
) -> Expected:
    stays = strategy == "fsdp2_no_reshard"
    windows = 1 if stays and accumulation == "replicated" else grad_accum_steps
    calls = 1 + sizes.n_layer * (1 if stays else 2)
    elements = sizes.parameter_count + (0 if stays else _block_parameters(sizes))
    return Expected(_exactly(windows * calls), _exactly(windows * elements * width), shards)


def _zero3_gathers(
    sizes: ModelSizes, grad_accum_steps: int, width: int, world_size: int
) -> Expected:
    small = _persistent_parameters(sizes)
    once = sizes.parameter_count - small
    every_use = 2 * once + 2 * sizes.vocab_size * sizes.n_embd
    return Expected(
        calls=Range(grad_accum_steps, (4 * grad_accum_steps + 1) * _tensors(sizes)),
        bytes=Range(
            (grad_accum_steps * once + small) * width,
            (grad_accum_steps * every_use + small) * width,
        ),
        group_size=world_size,
    )


def _persistent_parameters(sizes: ModelSizes) -> int:
    """Biases and norms, which stage 3 keeps gathered."""
    return sizes.n_layer * 13 * sizes.n_embd + 2 * sizes.n_embd
