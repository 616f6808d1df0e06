"""DeepSpeed's configuration, derived from the run: nothing in it is set a second time."""

from typing import Any, Protocol

from toolkit.batching import BatchPlan
from toolkit.engines.mixture import Mixture
from toolkit.engines.strategies import Accumulation, Precision, Strategy

STAGES: dict[Strategy, int] = {"zero1": 1, "zero2": 2, "zero3": 3}

BUCKETS_PER_MODEL = 8
"""One bucket of the default 5e8 elements would hold all of GPT-2, and so start reducing only after
the last gradient; an eighth of the model lets reduction begin during the backward pass."""

LARGEST_BUCKET = 250_000_000
"""An eighth of more than 2e9 parameters would be more: each element of a bucket takes up to 8
bytes on every rank, however many ranks there are. What that costs in time, here and at DeepSpeed's
default, is in `benchmarks/results/bucket_cap.md`."""

DEEPSPEED_BUCKET = 500_000_000
"""DeepSpeed's default, to which its bf16 stage 1 holds whatever is configured."""


class Sizes(Protocol):
    """What buckets follow, in elements: `ModelSizes`, or a model's own `MeasuredSizes`."""

    @property
    def parameter_count(self) -> int: ...  # noqa: D102

    @property
    def block_parameters(self) -> int: ...  # noqa: D102

    @property
    def largest_vector(self) -> int: ...  # noqa: D102


def build_deepspeed_config(
    strategy: Strategy,
    accumulation: Accumulation | Mixture,
    *,
    plan: BatchPlan,
    sizes: Sizes,
    precision: Precision,
    grad_clip: float,
) -> dict[str, Any]:
    """Return the configuration dictionary for a ZeRO stage; sizes in it are in elements.

    Masters, optimizer state, reduction and accumulation are fp32 under every precision.
    """
    zero = zero_optimization(strategy, sizes)
    if is_reduced_in_place(strategy, accumulation, precision):
        zero["contiguous_gradients"] = False
    return {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.grad_accum_steps,
        "train_batch_size": plan.sequences_per_step,
        "gradient_clipping": grad_clip,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }


def bucket_elements(sizes: Sizes) -> int:
    """Return the elements that are reduced at one time; DeepSpeed insists on an even number."""
    bucket = min(sizes.parameter_count // BUCKETS_PER_MODEL, LARGEST_BUCKET)
    return max(2, bucket - bucket % 2)


def is_reduced_in_place(
    strategy: Strategy, accumulation: Accumulation | Mixture, precision: Precision
) -> bool:
    """Whether stage 2 reduces gradients where they are, without copying them to its bucket.

    The bucket has the model's dtype and would round a whole window's fp32 sums to it: in bf16 by
    1.4e-3 of the gradient's norm, in place by 1e-9 (tests/distributed/window_sums.py, 2 ranks). It
    moves the same bytes and needs less memory: neither the bucket nor its cast to fp32.
    """
    return (strategy, accumulation) == ("zero2", "replicated") and precision != "fp32"


def zero_optimization(strategy: Strategy, sizes: Sizes) -> dict[str, Any]:
    """Return the section about ZeRO itself; the memory formula reads its sizes here too."""
    bucket = bucket_elements(sizes)
    block = sizes.block_parameters
    zero: dict[str, Any] = {
        "stage": STAGES[strategy],
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        # Overlapped reduction in stages 1 and 2 has given wrong gradients (DeepSpeed issue 5294).
        "overlap_comm": strategy == "zero3",
    }
    if strategy == "zero3":
        zero |= {
            "stage3_prefetch_bucket_size": block,
            # The defaults keep models under 1e9 parameters gathered from forward to backward,
            # which would undo the sharding of every GPT-2 but the largest.
            "stage3_max_reuse_distance": block,
            "stage3_max_live_parameters": 2 * block,
            # Biases and norms are too small to be worth a gather each.
            "stage3_param_persistence_threshold": sizes.largest_vector,
        }
    return zero
