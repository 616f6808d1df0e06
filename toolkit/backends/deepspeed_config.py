"""DeepSpeed's configuration, derived from the run: nothing in it is said a second time."""

from typing import Any

from toolkit.backends.strategies import Precision, Strategy
from toolkit.batching import BatchPlan
from toolkit.model.sizes import ModelSizes

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


def build_deepspeed_config(
    strategy: Strategy,
    *,
    plan: BatchPlan,
    sizes: ModelSizes,
    precision: Precision,
    grad_clip: float,
) -> dict[str, Any]:
    """Return the configuration dictionary for a ZeRO stage; sizes in it are in elements.

    Masters, optimizer state, reduction and accumulation are fp32 under every precision.
    """
    return {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.grad_accum_steps,
        "train_batch_size": plan.sequences_per_step,
        "gradient_clipping": grad_clip,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": zero_optimization(strategy, sizes),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }


def bucket_elements(sizes: ModelSizes) -> int:
    """Return the elements that are reduced at one time; DeepSpeed insists on an even number."""
    bucket = min(sizes.parameter_count // BUCKETS_PER_MODEL, LARGEST_BUCKET)
    return bucket - bucket % 2


def zero_optimization(strategy: Strategy, sizes: ModelSizes) -> dict[str, Any]:
    """Return the section about ZeRO itself; the memory formula reads its sizes here too."""
    bucket = bucket_elements(sizes)
    block = 12 * sizes.n_embd**2 + 13 * sizes.n_embd
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
            "stage3_param_persistence_threshold": 10 * sizes.n_embd,
        }
    return zero
