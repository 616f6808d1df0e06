"""The search keeps what fits and misses nothing faster."""

from dataclasses import replace

import pytest

from toolkit.config import load_run_config
from toolkit.engines.strategies import STRATEGIES
from toolkit.errors import UsageError
from toolkit.memory.hardware import find_gpu
from toolkit.memory.largest import StepTokens
from toolkit.prediction.devices import find_speed
from toolkit.prediction.network import RingNetwork, parse_rate
from toolkit.prediction.search import Answer, Cluster, search
from toolkit.program.events import Collective

TOKENS = 131_072


def answer(gpu: str, gpus: int = 8, only: int | None = None, per_machine: int = 8) -> Answer:
    config = load_run_config(None, ["model.preset=gpt2", "precision=bf16"])
    cluster = Cluster(
        gpu=find_gpu(gpu),
        speed=find_speed(gpu),
        gpus=gpus,
        per_machine=per_machine,
        between=parse_rate("100Gbit"),
    )
    return search(config, StepTokens(wanted=TOKENS, is_fixed=True, only=only), cluster, STRATEGIES)


def test_no_micro_batch_on_its_own_is_faster_than_the_best() -> None:
    best = answer("H100-80").best
    assert best is not None
    for size in (1, 2, 4, 8, 16):
        other = answer("H100-80", only=size).best
        assert other is not None
        assert best.middle_s <= other.middle_s * (1 + 1e-9)


def test_rows_that_fit_come_first_and_fit() -> None:
    gpu = find_gpu("RTX 5090")
    rows = answer("RTX 5090").rows
    assert [row.fits for row in rows] == sorted((row.fits for row in rows), reverse=True)
    assert all(gpu.holds(row.peak) == row.fits for row in rows)


@pytest.mark.parametrize(("gpu", "per_machine"), [("B200", 8), ("H100-80", 4)])
def test_beyond_the_calibration_only_a_range_is_given(gpu: str, per_machine: int) -> None:
    row = answer(gpu, per_machine=per_machine).rows[0].as_json()
    assert [row[name] for name in ("step_s", "tokens_per_s", "mfu", "exposed_s")] == [None] * 4
    assert 0 < row["step_s_range"][0] < row["step_s_range"][1]


def test_within_the_calibration_the_number_lies_in_its_range() -> None:
    row = answer("H100-80").rows[0].as_json()
    low, high = row["step_s_range"]
    assert low < row["step_s"] < high


def test_one_gpu_is_single() -> None:
    assert {row.settings.strategy for row in answer("H100-80", gpus=1).rows} == {"single"}


def test_a_link_between_machines_limits_and_replica_groups_share_it() -> None:
    step = next(row for row in answer("H100-80").rows if row.settings.strategy == "hsdp").settings
    step = replace(step, world_size=16, replicas=2)
    slow = RingNetwork(step, per_machine=8, within=400e9, between=8e9)
    world = Collective("all_gather", 16 * 10**9, 2, "world", blocks=True)
    replicas = Collective("all_gather", 2 * 10**9, 2, "replicas", blocks=True)
    shards = Collective("all_gather", 8 * 10**9, 2, "shards", blocks=True)
    assert slow.seconds(world) == pytest.approx(15 / 8, rel=1e-3)
    assert slow.seconds(replicas) == pytest.approx(1.0, rel=1e-3)
    assert slow.seconds(shards) == pytest.approx(7 / 400, rel=1e-2)


@pytest.mark.parametrize("text", ["fast", "0Gbit", "400"])
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="400Gbit"):
        parse_rate(text)
