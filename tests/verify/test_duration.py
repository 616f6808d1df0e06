"""What `toolkit verify` says of its own duration follows from what it is going to run."""

from dataclasses import replace

from toolkit.model.sizes import preset_sizes
from toolkit.verify.cases import TINY, Case
from toolkit.verify.duration import expected_seconds
from toolkit.verify.verdict import Launch

CASE = Case(accumulation="replicated", grad_accum_steps=4)
SHARDED = replace(CASE, accumulation="sharded")
DDP, HSDP = Launch("ddp", 2), Launch("hsdp", 4)


def test_launches_cases_and_compilation_add_up() -> None:
    one = expected_seconds({DDP: [CASE]}, TINY, cores=2)
    two = expected_seconds({DDP: [CASE, SHARDED]}, TINY, cores=2)
    compiled = expected_seconds({DDP: [CASE, replace(CASE, compile=True)]}, TINY, cores=2)
    launches = expected_seconds({DDP: [CASE], Launch("fsdp2", 2): [CASE]}, TINY, cores=2)
    assert 0 < one < two < compiled
    assert two < launches < 2.01 * one


def test_more_processes_than_cores_wait_for_each_other() -> None:
    few, enough = (expected_seconds({HSDP: [CASE]}, TINY, cores=n) for n in (2, 4))
    assert 1.5 * enough < few < 2 * enough


def test_a_model_of_real_size_takes_its_arithmetic() -> None:
    small = expected_seconds({DDP: [CASE]}, TINY, cores=2)
    whole = expected_seconds({DDP: [replace(CASE, whole_vocabulary=True)]}, TINY, cores=2)
    large = expected_seconds({DDP: [CASE]}, preset_sizes("gpt2"), cores=2)
    assert small < whole < large
    assert large > 60 * 20


def test_a_reference_that_serves_several_cases_is_computed_once() -> None:
    sizes = preset_sizes("gpt2")
    one = expected_seconds({DDP: [CASE]}, sizes, cores=2)
    both = expected_seconds({DDP: [CASE, SHARDED]}, sizes, cores=2)
    assert both < 1.5 * one
