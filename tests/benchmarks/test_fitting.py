import pytest

from benchmarks import fitting
from benchmarks.fitting import batches, needed_bytes, reason_to_skip
from benchmarks.machine import Machine
from tests.benchmarks.cases import GIB, LAPTOP, case
from toolkit.engines import strategies

GPU = Machine("NVIDIA A100-SXM4-80GB", "cuda", 2, 80 * GIB)


def test_what_the_estimate_says_cannot_fit_is_skipped() -> None:
    small, large = case(), case(micro_batch_size=200_000)
    assert reason_to_skip(small, LAPTOP) is None
    assert "GiB are needed and there are 16 GiB" in str(reason_to_skip(large, LAPTOP))


def test_what_the_machine_has_not_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason_to_skip(case(precision="fp16"), LAPTOP) == "fp16 is not available on cpu"
    four = case(strategy="ddp", world_size=4)
    assert reason_to_skip(four, GPU) == "4 ranks need as many GPUs, and there are 2"
    assert reason_to_skip(four, LAPTOP) is None
    linked = case(strategy="ddp", world_size=2, link_mbit_per_s=100)
    monkeypatch.setattr(fitting, "_links_unavailable", lambda: "links need root")
    assert reason_to_skip(linked, LAPTOP) == "links need root"
    monkeypatch.setattr(fitting, "_links_unavailable", lambda: None)
    assert reason_to_skip(linked, LAPTOP) is None
    more = linked.model_copy(update={"world_size": 3})
    assert reason_to_skip(more, LAPTOP) == "a link joins 2 machines of as many ranks, not 3 ranks"


def test_an_engine_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    assert "needs DeepSpeed" in str(reason_to_skip(case(strategy="zero1", world_size=2), LAPTOP))
    assert reason_to_skip(case(strategy="ddp", world_size=2), LAPTOP) is None


def test_cases_that_are_compared_are_kept_together() -> None:
    cases = [
        case(strategy=strategy, world_size=2, grad_accum_steps=steps)
        for steps in (1, 4, 16)
        for strategy in ("ddp", "fsdp2")
    ]
    assert list(batches(cases, LAPTOP, alive=3)) == [cases[:2], cases[2:4], cases[4:]]
    assert list(batches(cases, LAPTOP, alive=4)) == [cases[:4], cases[4:]]
    assert list(batches(cases, LAPTOP, alive=1)) == [[one] for one in cases]


def test_a_batch_fits_in_memory_and_has_one_link() -> None:
    cases = [case(grad_accum_steps=steps) for steps in range(1, 4)]
    for_two = Machine("cpu", "cpu", 0, 2 * needed_bytes(cases[2], LAPTOP))
    assert list(batches(cases, for_two, alive=8)) == [cases[:2], cases[2:]]
    links = [case(strategy="ddp", world_size=2, link_mbit_per_s=rate) for rate in (100, 200)]
    assert list(batches(links, LAPTOP, alive=8)) == [[links[0]], [links[1]]]
