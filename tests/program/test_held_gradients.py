"""The formulas, by hand; tests/distributed measures them on running engines."""

import pytest

from tests.program.held_gradients import held_gradient_bytes
from toolkit.model.sizes import ModelSizes, preset_sizes

GPT2 = preset_sizes("gpt2", vocab_size=50_257)
WHOLE = 4 * 124_439_808


def held(
    strategy, accumulation="replicated", *, world_size=8, replicas=1, sizes=GPT2, precision="fp32"
):
    return held_gradient_bytes(
        strategy,
        accumulation,
        precision=precision,
        sizes=sizes,
        world_size=world_size,
        replicas=replicas,
    )


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp2", "fsdp2_no_reshard", "zero1"])
def test_replicated_gradients_are_whole_whatever_the_world(strategy):
    assert held(strategy) == WHOLE


def test_stage_3_has_its_partitions_buffer_besides():
    assert held("zero3") == WHOLE * 9 // 8
    assert held("zero2") == WHOLE


def test_stage_1_in_bf16_keeps_the_last_micro_steps_own():
    assert held("zero1", precision="bf16") == WHOLE * 3 // 2


def test_sharded_gradients_are_one_part_but_ddps():
    assert held("fsdp2", "sharded") == held("zero3", "sharded") == WHOLE // 8
    assert held("ddp", "sharded") == WHOLE


def test_hybrid_sharding_holds_a_part_of_its_group():
    for mode in ("sharded", "deferred"):
        assert held("hsdp", mode, replicas=2) == WHOLE // 4


def test_stage_2_keeps_a_tensor_across_the_border_whole():
    sizes = ModelSizes(n_layer=1, n_head=1, n_embd=2, vocab_size=8, block_size=4)
    # Matrices of 16, 8, 12, 4, 16 and 16 elements: half of them, 36, is where the third ends.
    # Vectors of 2, 2, 6, 2, 2, 2, 8, 2 and twice 2: half of 30 lies 1 before the end of a 2.
    assert held("zero2", "sharded", world_size=2, sizes=sizes) == 4 * (36 + 15 + 1)
    assert held("zero2", "sharded", world_size=1, sizes=sizes) == 4 * (72 + 30)


def test_the_rank_that_holds_most_counts():
    sizes = ModelSizes(n_layer=4, n_head=4, n_embd=128, vocab_size=4096, block_size=128)
    # The border lies 57,344 elements into a matrix of 65,536: rank 1 keeps those besides its half.
    assert held("zero2", "sharded", world_size=2, sizes=sizes) == 4 * (667_008 + 57_344)


def test_a_tensor_larger_than_a_part_is_kept_by_all_that_have_some_of_it():
    embedding = 50_257 * 768
    assert held("zero2", "sharded") > 4 * embedding > 2 * WHOLE // 8
