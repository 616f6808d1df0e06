"""What each engine holds, gathers and frees by the estimate."""

import pytest

from tests.memory.steps import PAIRS, step
from toolkit.engines.deepspeed_config import zero_optimization
from toolkit.model.sizes import ModelSizes, preset_sizes
from toolkit.program import zero as zero_walk
from toolkit.program.events import Collective, Program
from toolkit.program.readers.peak import changes, read_peak, totals
from toolkit.program.step import build_engine_walk, estimate_peak, write_step
from toolkit.program.zero12 import Zero12Walk


def test_ddp_without_bucket_views_holds_a_second_set_of_gradients() -> None:
    parameters = preset_sizes("gpt2").parameter_count
    views, apart, freed = (
        write_step(step("ddp", "sharded", gradient_as_bucket_view=view, set_to_none=freed))
        for view, freed in ((True, None), (False, None), (False, True))
    )
    assert totals(apart)[-1] - totals(views)[-1] == 4 * parameters
    assert read_peak(apart).total - read_peak(views).total == 4 * parameters
    assert totals(freed)[-1] == totals(views)[-1]


@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("frees", [True, False])
@pytest.mark.parametrize(("strategy", "accumulation"), PAIRS)
def test_gradients_stay_between_steps_only_where_they_are_zeroed(
    strategy, accumulation, frees, views
) -> None:
    settings = step(
        strategy,
        accumulation,
        set_to_none=frees,
        gradient_as_bucket_view=views,
        grad_accum_steps=3,
    )
    between = Program()
    build_engine_walk(settings, between).start()
    held, after = (
        sum(size for part, size in changes(program) if part == "gradients")
        for program in (between, write_step(settings))
    )
    assert held == after
    if strategy == "single" or strategy.startswith("fsdp2"):
        assert (held == 0) is frees


def test_a_compiled_block_keeps_what_cannot_be_computed_again_at_least() -> None:
    changes = {"precision": "bf16", "world_size": 2, "micro_batch_size": 4}
    plain, compiled = (
        estimate_peak(step("fsdp2", "sharded", compile=on, **changes)) for on in (False, True)
    )
    sizes = preset_sizes("gpt2")
    assert plain.least == plain.total == compiled.total
    # The outputs of two LayerNorms and of GELU, in bf16.
    spared = sizes.n_layer * 6 * 2 * 4 * 1024 * sizes.n_embd
    assert compiled.total - compiled.least == spared


def test_one_rank_gathers_nothing() -> None:
    for strategy in ("fsdp2", "zero3"):
        alone, two = (
            [event.kind for event in write_step(settings).events if isinstance(event, Collective)]
            for settings in (step(strategy, "sharded", world_size=ranks) for ranks in (1, 2))
        )
        assert "all_gather" in two
        assert "all_gather" not in alone


def test_what_stage_3_gathers_ahead_follows_from_the_sizes_it_is_given(monkeypatch) -> None:
    sizes = ModelSizes(n_layer=6, n_head=4, n_embd=128, vocab_size=512, block_size=128)

    def peak(**changes: int) -> int:
        zero = {**zero_optimization("zero3", sizes), **changes}
        monkeypatch.setattr(zero_walk, "zero_optimization", lambda *_: zero)
        return estimate_peak(step("zero3", "sharded", sizes=sizes, seq_len=32)).total

    assert peak(stage3_prefetch_bucket_size=0) < peak()
    assert peak(stage3_max_live_parameters=10**9, stage3_max_reuse_distance=10**9) > peak()


@pytest.mark.parametrize(
    ("sizes", "ranks", "rest_gib"),
    [
        # Stage 2 keeps 2 P of working copy and 16 P / ranks, whatever else there is.
        (ModelSizes(40, 40, 5120, 50_304, 1024), 64, 28),
        (ModelSizes(96, 96, 12_288, 50_304, 1024), 1024, 336),
    ],
    ids=["13B", "175B"],
)
def test_buckets_of_large_models_do_not_fill_the_device(sizes, ranks, rest_gib) -> None:
    peak = estimate_peak(
        step("zero2", "sharded", sizes=sizes, world_size=ranks, activation_checkpointing=True)
    )
    assert peak.parts["communication"] < 4 * 2**30
    assert peak.total < (rest_gib + 4) * 2**30


def test_one_rank_keeps_only_the_large_gradients_of_its_own_part() -> None:
    """175B on 1,024 ranks: two matrices of 4 d^2 that a part of 170 million elements touches."""
    width = 12_288
    settings = step(
        "zero2", "sharded", sizes=ModelSizes(96, 96, width, 50_304, 1024), world_size=1024
    )
    assert Zero12Walk(settings, Program()).may_stay == 8 * width**2


def test_offloaded_masters_and_moments_are_not_on_the_device() -> None:
    settings = {"precision": "bf16", "world_size": 2}
    here, offloaded = (
        estimate_peak(step("zero2", "sharded", offload_optimizer=offload, **settings))
        for offload in (False, True)
    )
    assert offloaded.parts["optimizer"] == 0
    parameters = preset_sizes("gpt2").parameter_count
    assert here.total - offloaded.total == 16 * parameters // 2
