"""The formulas, by hand: GPT-2 124M has 124,439,808 parameters, 85,054,464 of them in blocks."""

import pytest

from tests.program.communication import Range, expected_collectives
from toolkit.engines.strategies import supported_pairs
from toolkit.model.sizes import ModelSizes, preset_sizes

GPT2 = preset_sizes("gpt2", vocab_size=50_257)
P, BLOCKS = 124_439_808, 85_054_464


def expected(strategy, accumulation="replicated", *, world_size=8, replicas=1, precision="fp32"):
    found = expected_collectives(
        strategy,
        accumulation,
        sizes=GPT2,
        grad_accum_steps=4,
        precision=precision,
        world_size=world_size,
        replicas=replicas,
    )
    return {kind: collective.bytes for kind, collective in found.items()}


def exactly(count: int) -> Range:
    return Range(count, count)


def test_ddp_reduces_once_or_at_every_micro_step():
    assert expected("ddp")["all_reduce"] == exactly(4 * P)
    assert expected("ddp", "sharded")["all_reduce"] == exactly(4 * 4 * P)
    assert expected("ddp")["all_gather"] == exactly(0)


def test_fsdp2_gathers_blocks_twice_unless_they_stay():
    assert expected("fsdp2")["all_gather"] == exactly(4 * 4 * (P + BLOCKS))
    assert expected("fsdp2_no_reshard", "sharded")["all_gather"] == exactly(4 * 4 * P)
    assert expected("fsdp2_no_reshard", "replicated")["all_gather"] == exactly(4 * P)
    assert expected("fsdp2", precision="bf16")["all_gather"] == exactly(4 * 2 * (P + BLOCKS))
    assert expected("fsdp2", precision="bf16")["reduce_scatter"] == exactly(4 * P)


def test_hybrid_sharding_all_reduces_the_shard_across_replicas():
    for mode, across in (("replicated", 1), ("sharded", 4), ("deferred", 1)):
        found = expected("hsdp", mode, world_size=8, replicas=2)
        assert found["all_reduce"] == exactly(across * 4 * P // 4)
        assert found["reduce_scatter"] == exactly((1 if mode == "replicated" else 4) * 4 * P)


def test_zero_1_and_2_all_reduce_whatever_they_are_told():
    for strategy in ("zero1", "zero2"):
        assert expected(strategy)["all_reduce"] == exactly(4 * P)
        assert expected(strategy)["all_gather"] == exactly(4 * P)
        assert expected(strategy)["reduce_scatter"] == exactly(0)
    assert expected("zero2", "sharded")["all_reduce"] == exactly(4 * 4 * P)


def test_zero3_gathers_between_once_and_every_use():
    bound = expected("zero3", "sharded")["all_gather"]
    assert 4 * 4 * 0.99 * P < bound.at_least < 4 * 4 * P
    assert 2 * bound.at_least < bound.at_most < 3.5 * bound.at_least


@pytest.mark.parametrize(("strategy", "accumulation"), supported_pairs())
def test_a_world_of_one_gathers_nothing(strategy, accumulation):
    found = expected(strategy, accumulation, world_size=1)
    assert found["all_gather"] == exactly(0)


def test_calls_of_buckets_follow_from_their_size():
    """13B in buckets of 2.5e8 elements: 485 tensors; none above 5e8 and the largest tensor."""
    sizes = ModelSizes(40, 40, 5120, 50_304, 1024)
    found = expected_collectives(
        "zero2",
        "sharded",
        sizes=sizes,
        grad_accum_steps=3,
        precision="bf16",
        world_size=64,
        replicas=1,
    )
    assert found["all_reduce"].calls == Range(3 * 17, 3 * (40 * 12 + 4 + 51))
