import pytest

from benchmarks import fitting
from benchmarks.fitting import batches, needed_bytes, reason_to_skip
from benchmarks.machine import Machine
from tests.benchmarks.arms import GIB, LAPTOP, arm
from toolkit.engines import strategies

GPU = Machine("NVIDIA A100-SXM4-80GB", "cuda", 2, 80 * GIB)


def test_what_the_estimate_says_cannot_fit_is_skipped() -> None:
    small, large = arm(), arm(micro_batch_size=200_000)
    assert reason_to_skip(small, LAPTOP) is None
    assert "GiB are needed and there are 16 GiB" in str(reason_to_skip(large, LAPTOP))


def test_what_the_machine_has_not_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason_to_skip(arm(precision="fp16"), LAPTOP) == "fp16 is not available on cpu"
    four = arm(strategy="ddp", world_size=4)
    assert reason_to_skip(four, GPU) == "4 ranks need as many GPUs, and there are 2"
    assert reason_to_skip(four, LAPTOP) is None
    linked = arm(strategy="ddp", world_size=2, link_mbit_per_s=100)
    monkeypatch.setattr(fitting, "_links_unavailable", lambda: "links need root")
    assert reason_to_skip(linked, LAPTOP) == "links need root"
    monkeypatch.setattr(fitting, "_links_unavailable", lambda: None)
    assert reason_to_skip(linked, LAPTOP) is None
    more = linked.model_copy(update={"world_size": 3})
    assert reason_to_skip(more, LAPTOP) == "a link joins 2 ranks, not 3"


def test_an_engine_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    assert "needs DeepSpeed" in str(reason_to_skip(arm(strategy="zero1", world_size=2), LAPTOP))
    assert reason_to_skip(arm(strategy="ddp", world_size=2), LAPTOP) is None


def test_arms_that_are_compared_are_kept_together() -> None:
    arms = [
        arm(strategy=strategy, world_size=2, grad_accum_steps=steps)
        for steps in (1, 4, 16)
        for strategy in ("ddp", "fsdp2")
    ]
    assert list(batches(arms, LAPTOP, alive=3)) == [arms[:2], arms[2:4], arms[4:]]
    assert list(batches(arms, LAPTOP, alive=4)) == [arms[:4], arms[4:]]
    assert list(batches(arms, LAPTOP, alive=1)) == [[one] for one in arms]


def test_a_batch_fits_in_memory_and_has_one_link() -> None:
    arms = [arm(grad_accum_steps=steps) for steps in range(1, 4)]
    for_two = Machine("cpu", "cpu", 0, 2 * needed_bytes(arms[2], LAPTOP))
    assert list(batches(arms, for_two, alive=8)) == [arms[:2], arms[2:]]
    links = [arm(strategy="ddp", world_size=2, link_mbit_per_s=rate) for rate in (100, 200)]
    assert list(batches(links, LAPTOP, alive=8)) == [[links[0]], [links[1]]]
