"""Two clocks over programs written by hand, and over those of the engines."""

from dataclasses import replace

import pytest

from toolkit.engines.strategies import Accumulation, Strategy, supported_pairs
from toolkit.model.sizes import ModelSizes
from toolkit.program.events import Collective, Program
from toolkit.program.readers.seconds import ComputeTimes, StepTime, read_seconds
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

SMALL = ModelSizes(n_layer=4, n_head=4, n_embd=128, vocab_size=4096, block_size=128)
TIMES = ComputeTimes(forward_s=0.1, backward_s=0.2, update_s=0.01)


class Rate:
    """All collectives take their bytes by one rate; what is overlapped takes some computation."""

    def __init__(self, bytes_per_s: float, core_s_per_byte: float = 0.0) -> None:
        self.bytes_per_s = bytes_per_s
        self.core_s_per_byte = core_s_per_byte

    def seconds(self, collective: Collective) -> float:
        return collective.bytes / self.bytes_per_s

    def core_seconds(self, collective: Collective) -> float:
        return collective.bytes * self.core_s_per_byte


def step(strategy: Strategy, accumulation: Accumulation, **changes: object) -> StepSettings:
    settings = {
        "sizes": SMALL,
        "strategy": strategy,
        "accumulation": accumulation,
        "world_size": {"single": 1, "hsdp": 4}.get(strategy, 2),
        "replicas": 2 if strategy == "hsdp" else 1,
        "seq_len": 128,
        "grad_accum_steps": 4,
        "precision": "fp32",
        "device": "cpu",
    }
    return StepSettings(**{**settings, **changes})  # type: ignore[arg-type]


def read(settings: StepSettings, *, bytes_per_s: float = 1e8) -> StepTime:
    return read_seconds(write_step(settings), TIMES, Rate(bytes_per_s))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("strategy", "accumulation"), supported_pairs())
def test_a_step_is_what_is_computed_and_what_is_waited_for(
    strategy: Strategy, accumulation: Accumulation, device: str
) -> None:
    found = read(step(strategy, accumulation, device=device))
    assert found.step_s == pytest.approx(4 * 0.3 + 0.01 + found.exposed_s)
    assert 0 <= found.exposed_s <= found.communication_s * (1 + 1e-9)
    assert (found.communication_s > 0) is (strategy != "single")


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp2_no_reshard", "hsdp", "zero1", "zero2"])
def test_on_a_cpu_these_hide_nothing(strategy: Strategy) -> None:
    found = read(step(strategy, "replicated"))
    assert found.exposed_s == pytest.approx(found.communication_s)


@pytest.mark.parametrize("strategy", ["fsdp2", "hsdp"])
def test_streams_hide_what_gloo_waits_for(strategy: Strategy) -> None:
    gloo, streams = (read(step(strategy, "sharded", device=on)) for on in ("cpu", "cuda"))
    assert streams.communication_s == pytest.approx(gloo.communication_s)
    assert streams.exposed_s < 0.5 * gloo.exposed_s


def test_ddp_hides_all_but_what_comes_after_the_last_gradient() -> None:
    # Gradients come from the head down. The first bucket is full with the matrix that takes it
    # above 1 MiB; all others are complete only with the token embedding.
    width = SMALL.n_embd
    block = [4 * width**2, width, 4 * width**2, 4 * width, width, width, width**2, width]
    block += [3 * width**2, 3 * width, width, width]
    filled, waiting = 2 * width, iter(block * SMALL.n_layer)
    while 4 * filled < 2**20:
        filled += next(waiting)
    second = 4 * (SMALL.parameter_count - filled)
    found = read(step("ddp", "replicated"))
    assert found.communication_s == pytest.approx(4 * SMALL.parameter_count / 1e8)
    assert found.exposed_s == pytest.approx(second / 1e8)


def test_a_slow_link_exposes_buckets_that_queue() -> None:
    found = read(step("ddp", "replicated"), bytes_per_s=1e6)
    assert found.exposed_s > found.communication_s - 0.2


def test_a_gather_ahead_starts_when_the_one_before_has_been_used() -> None:
    """Two blocks of 1 s behind gathers of 1 s: the second gather hides behind the first block."""
    program = Program()
    program.begin("micro-step")
    program.at("forward")
    for ahead in (False, True):
        gather = Collective("all_gather", 1, 4, "shards", blocks=False, ahead=ahead)
        program.communicate(gather)
        program.wait(gather)
        program.compute(("matmul", 1, 0))
    found = read_seconds(program, ComputeTimes(2.0, 0.0, 0.0), Rate(1.0))
    assert found == StepTime(step_s=3.0, communication_s=2.0, exposed_s=1.0)


def test_collectives_of_one_group_queue_and_those_of_two_do_not() -> None:
    def step_of(second: Collective) -> StepTime:
        first = Collective("reduce_scatter", 3, 4, "shards", blocks=False)
        program = Program()
        for collective in (first, second):
            program.communicate(collective)
        for collective in (first, second):
            program.wait(collective)
        return read_seconds(program, TIMES, Rate(1.0))

    same = Collective("reduce_scatter", 2, 4, "shards", blocks=False)
    assert step_of(same).step_s == 5
    assert step_of(replace(same, group="replicas")).step_s == 3


def test_what_sends_a_result_on_waits_for_it() -> None:
    scattered = Collective("reduce_scatter", 3, 4, "shards", blocks=False)
    added = Collective("all_reduce", 2, 4, "replicas", blocks=False, after=scattered)
    program = Program()
    program.communicate(scattered)
    program.communicate(added)
    program.wait(added)
    assert read_seconds(program, TIMES, Rate(1.0)).step_s == 5


def test_threads_without_a_core_slow_down_what_they_hide_behind() -> None:
    program = write_step(step("ddp", "sharded"))
    alone, crowded = (read_seconds(program, TIMES, Rate(1e18, core)) for core in (0.0, 5e-9))
    assert crowded.step_s - alone.step_s == pytest.approx(4 * 4 * SMALL.parameter_count * 5e-9)


def test_hybrid_sharding_sends_less_between_its_replicas_when_it_defers() -> None:
    modes: tuple[Accumulation, ...] = ("replicated", "deferred", "sharded")
    replicated, deferred, sharded = (read(step("hsdp", mode)).communication_s for mode in modes)
    assert replicated < deferred < sharded
