import pytest

from toolkit.engines import strategies
from toolkit.engines.strategies import (
    ACCUMULATIONS,
    STRATEGIES,
    SUPPORT,
    check_accumulation,
    check_installed,
    check_precision,
    supported_pairs,
)
from toolkit.errors import UsageError


def test_the_table_is_complete():
    assert set(SUPPORT) == set(STRATEGIES)
    assert all(set(modes) == set(ACCUMULATIONS) for modes in SUPPORT.values())
    assert all(support.note for modes in SUPPORT.values() for support in modes.values())


def test_every_strategy_has_the_default_mode():
    assert all(SUPPORT[strategy]["replicated"].possible for strategy in STRATEGIES)


def test_deferred_is_for_hybrid_sharding_alone():
    assert [s for s in STRATEGIES if SUPPORT[s]["deferred"].possible] == ["hsdp"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_a_pair_is_accepted_or_refused_with_the_reason(strategy, accumulation):
    if (strategy, accumulation) in supported_pairs():
        check_accumulation(strategy, accumulation)
        return
    with pytest.raises(UsageError) as caught:
        check_accumulation(strategy, accumulation)
    message = str(caught.value)
    assert f"'{accumulation}'" in message
    assert f"'{strategy}'" in message
    assert SUPPORT[strategy][accumulation].note in message
    assert "replicated" in message


def test_sharded_on_zero1_says_why():
    with pytest.raises(UsageError, match="stage 1 reduces gradients only at the boundary"):
        check_accumulation("zero1", "sharded")


def test_a_precision_that_the_device_lacks_names_those_it_has():
    check_precision("bf16", "cpu")
    check_precision("fp16", "cuda")
    with pytest.raises(
        UsageError, match="'fp16' is not available on device 'cpu'; available there: fp32, bf16"
    ):
        check_precision("fp16", "cpu")
    for device in ("mps", "something-new"):
        with pytest.raises(UsageError, match=r"available there: fp32$"):
            check_precision("bf16", device)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_zero_asks_for_deepspeed(strategy, monkeypatch):
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    if not strategy.startswith("zero"):
        check_installed(strategy)
        return
    with pytest.raises(UsageError, match=r"'zero\d' .* pip install scaling-toolkit\[deepspeed\]"):
        check_installed(strategy)
    monkeypatch.undo()
    check_installed(strategy)
