"""The closed-form estimate of a step's memory."""

import subprocess
import sys
import time

import pytest

from tests.memory.steps import PAIRS, step
from tests.program.held_gradients import held_gradient_bytes
from toolkit.config import load_run_config
from toolkit.engines.strategies import Accumulation
from toolkit.errors import UsageError
from toolkit.memory.states import checkpoint_bytes, model_state_bytes
from toolkit.model import loss
from toolkit.model.sizes import preset_sizes
from toolkit.program import loss as loss_walk
from toolkit.program.events import Collective, Program
from toolkit.program.fsdp2 import Fsdp2Walk
from toolkit.program.readers.held import read_held
from toolkit.program.readers.peak import changes, totals
from toolkit.program.settings import settings_of_run
from toolkit.program.step import build_engine_walk, estimate_peak, write_step


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
    code = "import sys, toolkit.memory.question, toolkit.memory.remarks"
    code += "; print('torch' in sys.modules)"
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
