from collections.abc import Iterator
from typing import Any

import pytest

from toolkit.batching import plan_batch
from toolkit.engines.deepspeed_config import build_deepspeed_config, zero_optimization
from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.model.sizes import ModelSizes

SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=32)
PARAMETERS = 512 * 32 + 32 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
BLOCK = 12 * 32**2 + 13 * 32
PLAN = plan_batch(tokens_per_step=1536, seq_len=32, micro_batch_size=3, world_size=4)
STAGES: list[Strategy] = ["zero1", "zero2", "zero3"]


def build(
    strategy: Strategy,
    precision: Precision = "fp32",
    grad_clip: float = 0.5,
    accumulation: Accumulation = "replicated",
) -> Any:
    return build_deepspeed_config(
        strategy, accumulation, plan=PLAN, sizes=SIZES, precision=precision, grad_clip=grad_clip
    )


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    else:
        yield value


@pytest.mark.parametrize("strategy", STAGES)
def test_the_batch_is_the_runs(strategy: Strategy) -> None:
    config = build(strategy)
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 4
    assert config["train_batch_size"] == 48 == 3 * 4 * 4


@pytest.mark.parametrize("strategy", STAGES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nothing_is_left_to_accelerate_to_fill_in(strategy: Strategy, precision: Precision) -> None:
    assert "auto" not in list(leaves(build(strategy, precision)))


@pytest.mark.parametrize(("strategy", "stage"), [("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_the_stage(strategy: Strategy, stage: int) -> None:
    assert build(strategy)["zero_optimization"]["stage"] == stage


@pytest.mark.parametrize("grad_clip", [0.0, 0.5, 1.0])
def test_clipping_is_stated_also_where_it_is_off(grad_clip: float) -> None:
    assert build("zero2", grad_clip=grad_clip)["gradient_clipping"] == grad_clip


@pytest.mark.parametrize(
    ("precision", "enabled"),
    [("fp32", (False, False)), ("bf16", (True, False)), ("fp16", (False, True))],
)
def test_compute_follows_the_precision_and_sums_stay_fp32(
    precision: Precision, enabled: tuple[bool, bool]
) -> None:
    config = build("zero2", precision)
    assert (config["bf16"]["enabled"], config["fp16"]["enabled"]) == enabled
    assert config["data_types"]["grad_accum_dtype"] == "fp32"
    assert config["communication_data_type"] == "fp32"


@pytest.mark.parametrize("strategy", STAGES)
def test_buckets_are_an_eighth_of_the_model(strategy: Strategy) -> None:
    zero = build(strategy)["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == PARAMETERS // 8


@pytest.mark.parametrize("strategy", STAGES)
@pytest.mark.parametrize(
    "sizes",
    [ModelSizes(40, 40, 5120, 50_304, 1024), ModelSizes(96, 96, 12_288, 50_304, 1024)],
    ids=["13B", "175B"],
)
def test_buckets_do_not_grow_with_the_model_for_ever(strategy: Strategy, sizes: ModelSizes) -> None:
    zero = zero_optimization(strategy, sizes)
    deepspeeds_own = 500_000_000
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] <= deepspeeds_own


def test_a_bucket_is_even_as_deepspeed_insists() -> None:
    odd = ModelSizes(n_layer=1, n_head=1, n_embd=3, vocab_size=5, block_size=1)
    assert odd.parameter_count // 8 % 2 == 1
    assert zero_optimization("zero2", odd)["allgather_bucket_size"] % 2 == 0


@pytest.mark.parametrize(
    ("strategy", "overlap"), [("zero1", False), ("zero2", False), ("zero3", True)]
)
def test_overlap_is_stated_and_off_where_it_has_given_wrong_gradients(
    strategy: Strategy, overlap: bool
) -> None:
    assert build(strategy)["zero_optimization"]["overlap_comm"] is overlap


def test_stage_3_keeps_at_most_two_blocks_gathered() -> None:
    zero = build("zero3")["zero_optimization"]
    assert zero["stage3_max_live_parameters"] == 2 * BLOCK
    assert zero["stage3_max_reuse_distance"] == zero["stage3_prefetch_bucket_size"] == BLOCK
    assert not [key for key in build("zero2")["zero_optimization"] if key.startswith("stage3")]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulation", ["replicated", "sharded"])
@pytest.mark.parametrize("strategy", STAGES)
def test_a_windows_fp32_sums_pass_through_no_bucket_of_the_models_dtype(
    strategy: Strategy, accumulation: Accumulation, precision: Precision
) -> None:
    zero = build(strategy, precision, accumulation=accumulation)["zero_optimization"]
    rounds = (strategy, accumulation) == ("zero2", "replicated") and precision != "fp32"
    assert zero.get("contiguous_gradients", True) is not rounds
