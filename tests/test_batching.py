import pytest

from toolkit.batching import plan_batch
from toolkit.errors import UsageError


@pytest.mark.parametrize(
    ("tokens", "micro", "seq_len", "world", "grad_accum"),
    [
        (524_288, 16, 1_024, 1, 32),
        (524_288, 16, 1_024, 8, 4),
        (1_048_576, 4, 4_096, 8, 8),
        (12, 2, 1, 2, 3),
    ],
)
def test_the_step_is_the_product(tokens, micro, seq_len, world, grad_accum):
    plan = plan_batch(
        tokens_per_step=tokens, seq_len=seq_len, micro_batch_size=micro, world_size=world
    )
    assert plan.grad_accum_steps == grad_accum
    assert micro * seq_len * plan.grad_accum_steps * world == tokens
    assert plan.sequences_per_step == tokens // seq_len
    assert plan.tokens_per_wave * plan.grad_accum_steps == tokens


def test_the_step_means_the_same_on_any_number_of_ranks():
    plans = [
        plan_batch(tokens_per_step=4_096, seq_len=64, micro_batch_size=4, world_size=world)
        for world in (1, 2, 4, 16)
    ]
    assert {plan.sequences_per_step for plan in plans} == {64}
    assert [plan.grad_accum_steps for plan in plans] == [16, 8, 4, 1]


def test_description_in_waves():
    plan = plan_batch(tokens_per_step=524_288, seq_len=1_024, micro_batch_size=16, world_size=8)
    assert plan.describe() == (
        "524,288 tokens per step = 16 sequences x 1,024 tokens x 4 micro-steps x 8 ranks "
        "(4 waves of 131,072 tokens)"
    )
    single = plan_batch(tokens_per_step=8, seq_len=8, micro_batch_size=1, world_size=1)
    assert single.describe() == (
        "8 tokens per step = 1 sequence x 8 tokens x 1 micro-step x 1 rank (1 wave of 8 tokens)"
    )


def refusal(**numbers):
    with pytest.raises(UsageError) as caught:
        plan_batch(**numbers)
    return str(caught.value)


def test_a_remainder_is_refused_with_the_numbers_and_the_way_out():
    message = refusal(tokens_per_step=128, seq_len=8, micro_batch_size=3, world_size=2)
    assert "batch.tokens_per_step 128" in message
    assert "3 sequences x 8 tokens x 2 micro-steps x 2 ranks = 96" in message
    assert "3 sequences x 8 tokens x 3 micro-steps x 2 ranks = 144" in message
    assert message.endswith("batch.micro_batch_size to one of 1, 2, 4, 8")


def test_numbers_that_it_names_do_fit():
    for tokens in (96, 144):
        plan_batch(tokens_per_step=tokens, seq_len=8, micro_batch_size=3, world_size=2)
    for micro in (1, 2, 4, 8):
        plan_batch(tokens_per_step=128, seq_len=8, micro_batch_size=micro, world_size=2)


def test_less_than_one_wave_names_only_the_number_above():
    message = refusal(tokens_per_step=16, seq_len=8, micro_batch_size=4, world_size=2)
    assert "= 64, not 16" in message
    assert "0 micro-steps" not in message
    assert message.endswith("batch.micro_batch_size to one of 1")


def test_a_world_size_that_no_micro_batch_fits_reports_it():
    message = refusal(tokens_per_step=16, seq_len=1, micro_batch_size=2, world_size=3)
    assert "2 sequences x 1 tokens x 2 micro-steps x 3 ranks = 12" in message
    assert "no batch.micro_batch_size fits: 16 is no multiple of 1 tokens x 3 ranks" in message


@pytest.mark.parametrize(
    ("tokens", "micro", "world", "sizes"),
    [
        (1_000, 1, 1, "1,024 (the smallest that fits), or choose"),
        (1_000, 1, 8, "8,192 (the smallest that fits), or choose"),
        (
            1_000,
            16,
            8,
            "131,072 (the smallest that fits), or with batch.micro_batch_size 1 to 8,192 "
            "(the smallest that fits), or choose",
        ),
        (1_500, 1, 1, "1,024 or 2,048, or choose"),
        (
            5_000,
            2,
            2,
            "4,096 or 8,192, or with batch.micro_batch_size 1 to 4,096 or 6,144, or choose",
        ),
        (6_144, 2, 2, "4,096 or 8,192, or batch.micro_batch_size to one of 1, 3"),
    ],
)
def test_the_nearest_sizes_that_fit_are_always_named(tokens, micro, world, sizes):
    message = refusal(
        tokens_per_step=tokens, seq_len=1_024, micro_batch_size=micro, world_size=world
    )
    assert f"; set batch.tokens_per_step to {sizes}" in message


@pytest.mark.parametrize("name", ["tokens_per_step", "seq_len", "micro_batch_size", "world_size"])
def test_numbers_below_one_are_refused(name):
    numbers = dict.fromkeys(("tokens_per_step", "seq_len", "micro_batch_size", "world_size"), 1)
    assert refusal(**{**numbers, name: 0}) == f"{name} must be at least 1, got 0"
