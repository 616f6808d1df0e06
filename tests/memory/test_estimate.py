import subprocess
import sys
import time

import pytest

from tests.program.held_gradients import held_gradient_bytes
from toolkit.config import load_run_config
from toolkit.engines.deepspeed_config import zero_optimization
from toolkit.engines.strategies import Accumulation, Strategy, supported_pairs
from toolkit.errors import UsageError
from toolkit.memory.states import checkpoint_bytes, model_state_bytes
from toolkit.model import loss
from toolkit.model.sizes import ModelSizes, preset_sizes
from toolkit.program import loss as loss_walk
from toolkit.program import zero as zero_walk
from toolkit.program.events import Collective, Program
from toolkit.program.fsdp2 import Fsdp2Walk
from toolkit.program.readers.held import read_held
from toolkit.program.readers.peak import changes, read_peak, totals
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import build_engine_walk, estimate_peak, write_step
from toolkit.program.zero12 import Zero12Walk

PAIRS = supported_pairs()


def step(strategy: Strategy = "single", accumulation: Accumulation = "replicated", **changes):
    settings = {
        "sizes": preset_sizes("gpt2"),
        "strategy": strategy,
        "accumulation": accumulation,
        "world_size": 1 if strategy == "single" else 8,
        "replicas": 2 if strategy == "hsdp" else 1,
        "grad_accum_steps": 2,
    }
    return StepSettings(**{**settings, **changes})


def test_model_states_are_the_published_sums() -> None:
    assert model_state_bytes(10**9, stage=0, ranks=1) == 16 * 10**9
    figures = [model_state_bytes(7_500_000_000, stage=s, ranks=64) / 1e9 for s in (0, 1, 2, 3)]
    assert [round(figure, 1) for figure in figures] == [120.0, 31.4, 16.6, 1.9]


def test_a_checkpoint_holds_fp32_parameters_and_two_moments() -> None:
    assert checkpoint_bytes(10, adam=True) == 120
    assert checkpoint_bytes(10, adam=False) == 40


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("strategy", "accumulation"), PAIRS)
def test_a_step_frees_what_it_allocates(strategy, accumulation, precision, checkpointing) -> None:
    settings = step(
        strategy,
        accumulation,
        precision=precision,
        activation_checkpointing=checkpointing,
        loss="chunked" if checkpointing else "plain",
        dropout=0.1 if checkpointing else 0.0,
        grad_accum_steps=3,
    )
    between = Program()
    build_engine_walk(settings, between).start()
    held = dict.fromkeys(estimate_peak(settings).parts, 0)
    for part, size in changes(write_step(settings)):
        held[part] += size
        assert held[part] >= 0
    replaced = 4 * settings.sizes.parameter_count if (strategy, accumulation) == PAIRS[1] else 0
    assert sum(held.values()) - held["other"] == totals(between)[-1] - replaced


@pytest.mark.parametrize(("strategy", "accumulation"), PAIRS)
def test_the_parts_sum_to_the_peak(strategy, accumulation) -> None:
    peak = estimate_peak(step(strategy, accumulation))
    assert sum(peak.parts.values()) == peak.total
    assert min(peak.parts.values()) >= 0


def test_a_sum_that_is_not_freed_is_found() -> None:
    """The check above is one that can fail."""
    program = write_step(step())
    program.free("gradients", 1)
    assert totals(program)[-1] < totals(write_step(step()))[-1]


def test_replicated_accumulation_holds_all_gradients_and_sharded_a_share() -> None:
    parameters = preset_sizes("gpt2").parameter_count
    replicated, sharded = (
        estimate_peak(step("fsdp2", mode, world_size=4)).parts["gradients"]
        for mode in ("replicated", "sharded")
    )
    assert replicated == 4 * parameters
    assert sharded == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("strategy", "accumulation"), PAIRS)
def test_gradients_held_between_micro_steps_are_those_of_the_closed_formula(
    strategy, accumulation, precision
) -> None:
    settings = step(
        strategy,
        accumulation,
        precision=precision,
        sizes=preset_sizes("gpt2", vocab_size=50_304),
        grad_accum_steps=3,
    )
    assert read_held(write_step(settings)) == held_gradient_bytes(
        strategy,
        accumulation,
        precision=precision,
        sizes=settings.sizes,
        world_size=settings.world_size,
        replicas=settings.replicas,
    )


def test_what_stays_gathered_is_gathered_once_per_window() -> None:
    def gathers_of_the_root(accumulation: Accumulation) -> int:
        settings = step("fsdp2_no_reshard", accumulation, grad_accum_steps=3)
        root = Fsdp2Walk(settings, Program()).root
        gathers = [
            event.bytes
            for event in write_step(settings).events
            if isinstance(event, Collective) and event.kind == "all_gather"
        ]
        return gathers.count(2 * root.gathered)

    assert gathers_of_the_root("sharded") == 3 * gathers_of_the_root("replicated") > 0


def test_the_logits_are_twelve_bytes_each_and_the_chunked_loss_never_holds_them() -> None:
    plain = estimate_peak(step(micro_batch_size=16))
    chunked = estimate_peak(step(micro_batch_size=16, loss="chunked"))
    assert plain.parts["loss"] == 12 * 16 * 1024 * preset_sizes("gpt2").vocab_size
    assert plain.moment == "loss backward"
    assert chunked.parts["loss"] < plain.parts["loss"] / 10


def test_the_chunk_is_the_models() -> None:
    assert loss_walk.CHUNK_ROWS == loss.CHUNK_ROWS
    assert loss_walk.BLOCK_ROWS == loss.BLOCK_ROWS


def test_more_of_anything_takes_more() -> None:
    for change in ({"micro_batch_size": 2}, {"foreach": True, "seq_len": 8}):
        base = {key: value for key, value in change.items() if key == "seq_len"}
        assert estimate_peak(step(**change)).total > estimate_peak(step(**base)).total


def test_foreach_adamw_peaks_in_the_optimizer() -> None:
    peak = estimate_peak(step(foreach=True, seq_len=8))
    assert peak.moment == "optimizer step"
    sizes = preset_sizes("gpt2")
    vectors = 13 * sizes.n_embd * sizes.n_layer + 2 * sizes.n_embd
    assert peak.parts["optimizer"] == 12 * sizes.parameter_count - 4 * vectors


def test_gpt2_xl_takes_milliseconds() -> None:
    settings = step("fsdp2", sizes=preset_sizes("gpt2-xl"), world_size=64, grad_accum_steps=8)
    times = []
    for _ in range(5):
        started = time.process_time()
        estimate_peak(settings)
        times.append(time.process_time() - started)
    assert min(times) < 0.05


def test_the_formula_imports_no_torch() -> None:
    code = "import sys, toolkit.commands.estimate; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1, got 0"),
        ({"seq_len": 2048}, "seq_len 2048 is above block_size 1024"),
        ({"world_size": 2}, "'single' is one process"),
        ({"strategy": "ddp", "world_size": 3, "replicas": 2}, "do not divide"),
        ({"accumulation": "deferred"}, "impossible with strategy 'single'"),
    ],
)
def test_bad_settings_are_a_sentence(changes, words) -> None:
    with pytest.raises(UsageError, match=words):
        step(**changes)


def test_settings_are_the_runs(run_file) -> None:
    config = load_run_config(run_file, ["model.dropout=0.1", "optimizer.name=sgd"])
    settings = settings_of_run(config, "ddp", world_size=2, device="cpu")
    assert settings.sizes == config.model.sizes()
    assert (settings.micro_batch_size, settings.seq_len, settings.grad_accum_steps) == (4, 32, 2)
    assert (settings.precision, settings.optimizer) == ("fp32", "sgd")
    assert settings.attention == "math"


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
