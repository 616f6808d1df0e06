"""What a measured machine takes: lines through modules, and what whole micro-steps take of them."""

import pytest

from tests.benchmarks.cases import profile
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.machine_profile import MachineProfile, MicroStep, WorkPoint
from toolkit.prediction.measure import measure_machine
from toolkit.prediction.profiled import MeasuredCompute, fit_line
from toolkit.program.events import KINDS, Compute, Kind
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=64, vocab_size=256, block_size=32)
STEP = StepSettings(
    sizes=SIZES,
    strategy="single",
    accumulation="replicated",
    world_size=1,
    seq_len=32,
    precision="fp32",
    device="cpu",
)


def point(kind: Kind, flops: int, moved: int, seconds: float) -> WorkPoint:
    return WorkPoint(kind=kind, flops=flops, bytes=moved, seconds=seconds)


def machine(whole: float) -> MachineProfile:
    """A microsecond a module and 1e9 bytes a second; micro-steps take `whole` times as long."""
    work = tuple(point(kind, 0, n, 1e-6 + n / 1e9) for kind in KINDS for n in (10**4, 10**6))
    events = [e for e in write_step(STEP).events if isinstance(e, Compute) and e.phase != "update"]
    seconds = sum(1e-6 + event.bytes / 1e9 for event in events)
    step = MicroStep(
        sizes=SIZES, micro_batch_size=1, seq_len=32, forward_s=0.0, backward_s=whole * seconds
    )
    return profile().model_copy(update={"work": work, "micro_steps": (step,)})


def test_shapes_on_a_line_give_that_line() -> None:
    shapes = [(10**6, 10**4), (10**8, 10**5), (10**7, 10**6), (10**9, 10**7)]
    points = [point("matmul", f, b, 1e-5 + f / 1e10 + b / 1e9) for f, b in shapes]
    assert fit_line(points) == pytest.approx((1e-5, 1e-10, 1e-9))


def test_no_term_of_a_line_is_negative() -> None:
    falling = [point("matmul", 10**6, 10**4, 2e-3), point("matmul", 10**8, 10**4, 1e-3)]
    assert min(fit_line(falling)) >= 0


@pytest.mark.parametrize("whole", [1.0, 1.5])
def test_what_a_micro_step_takes_beyond_its_modules_is_theirs(whole: float) -> None:
    measured = MeasuredCompute(machine(whole))
    assert measured.whole == pytest.approx(whole)
    event = Compute("forward", "matmul", 0, 10**6)
    assert measured.compute_s(event) == pytest.approx(whole * 1.001e-3)
    assert measured.compute_s(event._replace(phase="update")) == pytest.approx(1.001e-3)


def test_a_profile_of_links_alone_says_nothing_of_modules() -> None:
    with pytest.raises(UsageError, match="has no modules"):
        MeasuredCompute(profile())


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_this_machine_is_measured() -> None:
    found = measure_machine(2)
    assert (found.world_size, found.link_mbit_per_s) == (2, None)
    assert found.environment.versions["torch"]
    assert {each.kind for each in found.work} == set(KINDS)
    assert 0.5 < MeasuredCompute(found).whole < 5
