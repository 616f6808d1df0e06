"""What every engine must do beyond GPT-2's equal updates: other models, windows that an exception
leaves, fp16 with its own scaler, fp32 sums, and a name for what has moved inside its library.

Two launches serve all engines on two ranks, hybrid sharding needs one on four.
"""

import json
from functools import cache
from typing import Any

import pytest

from tests.distributed import engines
from tests.half_precision import OVERFLOWS
from toolkit.engines.deepspeed_internals import OPTIMIZERS, PARAMETERS, SCALER
from toolkit.engines.strategies import Strategy, possible_accumulations
from toolkit.engines.torch_internals import GROUP, PARAMETER, STATE
from toolkit.launch.processes import launch
from toolkit.shipped import ROOT

pytestmark = pytest.mark.distributed

LAUNCHES: tuple[tuple[int, tuple[Strategy, ...]], ...] = (
    (1, ("single",)),
    (2, ("ddp", "fsdp2", "fsdp2_no_reshard")),
    (2, ("zero1", "zero2", "zero3")),
    (4, ("hsdp",)),
)
# Four processes on two cores take half a minute.
HYBRID = pytest.param("hsdp", marks=pytest.mark.long)
STRATEGIES = ("single", *LAUNCHES[1][1], *LAUNCHES[2][1], HYBRID)
ROUNDING = 1e-5


@cache
def launched(ranks: int, strategies: tuple[Strategy, ...]) -> list[dict[str, Any]]:
    printed = launch(
        # Every strategy is made inside; this one brings the processes together.
        "ddp" if ranks > 1 else "single",
        ranks,
        [engines.__file__, *strategies],
        timeout_s=280.0,
        environment={"PYTHONPATH": str(ROOT)},
    )
    lines = [line for line in printed.splitlines() if line.startswith("FOUND ")]
    return [json.loads(line.removeprefix("FOUND ")) for line in lines]


def found(part: str, strategy: Strategy) -> list[dict[str, Any]]:
    [everything] = [launched(*each) for each in LAUNCHES if strategy in each[1]]
    findings = [f for f in everything if (f["part"], f["strategy"]) == (part, strategy)]
    assert findings
    return findings


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_model_trains_as_in_plain_pytorch(strategy: Strategy) -> None:
    findings = found("other_models", strategy)
    assert len(findings) == 1 + len(possible_accumulations(strategy))
    for finding in findings:
        assert finding["losses"] < ROUNDING, finding
        assert finding["grad_norms"] < ROUNDING, finding
        assert finding["parameters"] < ROUNDING, finding


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp2_no_reshard", HYBRID])
def test_another_model_is_sharded_by_its_own_blocks(strategy: Strategy) -> None:
    for finding in found("other_models", strategy):
        assert finding["facts"]["sharded blocks"] == "3"
        assert finding["facts"]["wrapper"] == "FSDPConvolutional"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_window_that_was_left_changes_nothing_of_the_next(strategy: Strategy) -> None:
    """Left after one to all of four micro-steps; giving it up needs no other rank."""
    for finding in found("abandoned_windows", strategy):
        for distance, collectives in finding["cleared"]:
            assert distance < 1e-6, finding
            assert collectives == 0, finding


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_clearing_the_next_gradient_is_far_off(strategy: Strategy) -> None:
    """Or ranks wait for each other: stage 2 in fp32 overwrites what a coalesced window leaves, but
    reduces it first."""
    for finding in found("abandoned_windows", strategy):
        distance, collectives = finding["without clearing"]
        assert distance > 0.5 or collectives, finding


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fp16_unscales_before_it_clips(strategy: Strategy) -> None:
    for finding in found("half_precision", strategy):
        exact, half = finding["norms"]
        assert exact > 0.3, "the step must be clipped"
        assert half == pytest.approx(exact, rel=1e-2)
        assert finding["parameters"] < 1e-3
        assert finding["scale"] == {"scale": 2.0**16, "held": 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fp16_leaves_out_an_overflow_and_the_loop_repeats_it_at_a_lower_scale(
    strategy: Strategy,
) -> None:
    for finding in found("half_precision", strategy):
        assert finding["left_out"]
        assert finding["unmoved"]
        assert finding["repeated"] > 1
        assert finding["moved"]
        assert finding["lowered"]["scale"] < OVERFLOWS / 2
        assert finding["repeated_norm"] == pytest.approx(finding["norms"][0], rel=0.2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_fp16_scale_and_its_count_load_into_another_engine(strategy: Strategy) -> None:
    for finding in found("half_precision", strategy):
        lowered = finding["lowered"]
        assert finding["loaded"] == lowered
        assert finding["counted_on"] == {**lowered, "held": lowered["held"] + 1}


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1", "zero2", "zero3"])
def test_an_attribute_that_has_moved_is_named(strategy: Strategy) -> None:
    for finding in found("moved_attributes", strategy):
        sentences = finding["sentences"]
        for name, sentence in sentences.items():
            assert f" has no {name}, which " in sentence, (name, sentence)
        expected = {"_get_fsdp_state", *STATE, *GROUP, *PARAMETER}
        if strategy != "fsdp2":
            kind = next(iter(sentences.values())).split(": ")[1].split(" ")[0]
            scaler = SCALER if finding["precision"] == "fp16" else ()
            expected = {*OPTIMIZERS[kind], *PARAMETERS[kind], *scaler}
        assert set(sentences) == expected


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_coalesced_bf16_windows_sums_are_averaged_in_fp32(strategy: Strategy) -> None:
    errors = found("window_sums", strategy)
    assert errors[0]["error"] < 1e-6
    if strategy == "zero2":
        assert errors[1]["error through the bucket"] > 1e-4


@pytest.mark.parametrize("strategy", ["fsdp2", HYBRID])
def test_an_exchange_scatters_the_sum_to_the_bit(strategy: Strategy) -> None:
    """Over two ranks, and over four."""
    findings = found("exchanged", strategy)
    assert [finding["sent"] for finding in findings] == ["torch.bfloat16", "torch.float32"]
    for finding in findings:
        assert finding["summed"] == "torch.float32"
        assert finding["equal"]


def test_a_run_may_be_resumed_with_another_mixture() -> None:
    """To the bit with the same one; Adam makes more of a rounded gradient than its size."""
    same, *others = found("resumed", "fsdp2")
    assert same["equal"]
    assert all(finding["state"] for finding in (same, *others))
    for finding in others:
        assert finding["distance"] < 1e-4, finding
