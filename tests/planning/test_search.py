"""The search keeps what fits and misses nothing faster."""

from dataclasses import replace

import pytest

from toolkit.config import load_run_config
from toolkit.engines.strategies import STRATEGIES, Strategy
from toolkit.memory.hardware import find_gpu
from toolkit.memory.largest import StepTokens, largest_micro_batch
from toolkit.planning.answer import Answer, changes, find_answer
from toolkit.planning.candidates import VARIANTS, Candidate, Search
from toolkit.planning.cluster import Cluster, ClusterFile, build_cluster
from toolkit.planning.timing import time_step
from toolkit.prediction.network import RingNetwork
from toolkit.program.events import Collective

TOKENS = 131_072


def cluster_of(gpu: str, gpus: int = 8, per_machine: int = 8) -> Cluster:
    file = ClusterFile(gpu=gpu, per_machine=per_machine, between="100Gbit")
    return build_cluster(file, gpus=gpus, per_machine=None, between=None)


def search_of(only: int | None = None, strategies: tuple[Strategy, ...] = STRATEGIES) -> Search:
    config = load_run_config(None, ["model.preset=gpt2", "precision=bf16"])
    return Search(config, StepTokens(wanted=TOKENS, is_fixed=True, only=only), strategies)


def answer(gpu: str, gpus: int = 8, only: int | None = None, per_machine: int = 8) -> Answer:
    return find_answer(search_of(only), cluster_of(gpu, gpus, per_machine))


def test_no_micro_batch_on_its_own_is_faster_than_the_best() -> None:
    best = answer("H100-80").best
    assert best is not None
    for size in (1, 2, 4, 8, 16):
        other = answer("H100-80", only=size).best
        assert other is not None
        assert best.order_s <= other.order_s * (1 + 1e-9)


@pytest.mark.parametrize("gpu", ["RTX 5090", "H100-80"])
def test_what_is_passed_over_is_no_faster_than_the_best_of_its_strategy(gpu: str) -> None:
    cluster, search = cluster_of(gpu), search_of()
    found = {row.settings.strategy: row.order_s for row in find_answer(search, cluster).rows[::-1]}
    for shape in search.shapes(cluster):
        for walks in search.variants(shape):
            candidate = Candidate(walks, walks.largest(cluster.gpu))
            if candidate.fits:
                timing = time_step(candidate.settings, candidate.program, cluster)
                assert timing.middle.step_s >= found[shape.strategy] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("gpu", "seq_len", "sequences"),
    # In short sequences a chunk of the loss has fewer rows than it could: no straight line there.
    [("RTX 5090", 1024, 128), ("RTX 5090", 1024, 480), ("4GiB", 64, 480)],
)
def test_few_walks_find_the_micro_batch_that_many_find(
    gpu: str, seq_len: int, sequences: int
) -> None:
    cluster = replace(cluster_of("RTX 5090"), gpu=find_gpu(gpu))
    words = ["model.preset=gpt2", "precision=bf16", f"data.seq_len={seq_len}"]
    tokens = StepTokens(wanted=sequences * seq_len, is_fixed=True)
    search = Search(load_run_config(None, words), tokens, STRATEGIES)
    shapes = list(search.shapes(cluster))
    assert len(shapes) > 10
    for shape in shapes[::3]:
        for walks in search.variants(shape):
            expected = largest_micro_batch(walks.shape, search.tokens, cluster.gpu)
            assert walks.largest(cluster.gpu) == expected


def test_rows_that_fit_come_first_and_fit() -> None:
    gpu = find_gpu("RTX 5090")
    rows = answer("RTX 5090").rows
    assert [row.fits for row in rows] == sorted((row.fits for row in rows), reverse=True)
    assert all(gpu.holds(row.peak) == row.fits for row in rows)


def test_the_number_of_configurations_is_all_of_their_factors() -> None:
    cluster, search = cluster_of("H100-80"), search_of()
    shapes = len(list(search.shapes(cluster)))
    assert search.size(cluster) == shapes * len(VARIANTS) * 5  # micro-batches 1, 2, 4, 8 and 16


@pytest.mark.parametrize(("gpu", "per_machine"), [("B200", 8), ("H100-80", 4)])
def test_beyond_the_calibration_only_a_range_is_given(gpu: str, per_machine: int) -> None:
    row = answer(gpu, per_machine=per_machine).rows[0].as_json()
    assert [row[name] for name in ("step_s", "tokens_per_s", "mfu", "exposed_s")] == [None] * 4
    assert 0 < row["step_s_range"][0] < row["step_s_range"][1]


def test_only_strategies_that_were_measured_get_a_number() -> None:
    rows = {row.settings.strategy: row.as_json() for row in answer("H100-80").rows}
    low, high = rows["fsdp2"]["step_s_range"]
    assert low < rows["fsdp2"]["step_s"] < high
    assert rows["ddp"]["step_s"] is None


def test_one_gpu_is_single() -> None:
    assert {row.settings.strategy for row in answer("H100-80", gpus=1).rows} == {"single"}


def test_a_faster_link_and_more_memory_make_no_step_slower() -> None:
    plain = answer("RTX 5090", per_machine=4)
    assert plain.best is not None
    link, memory = changes(plain)
    assert link.best is not None
    assert memory.best is not None
    assert link.best.order_s < plain.best.order_s
    assert memory.best.order_s <= plain.best.order_s


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
