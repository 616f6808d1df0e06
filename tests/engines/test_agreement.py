"""What is said of ranks that were started differently; real ranks are in tests/distributed."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from toolkit.engines import agreement
from toolkit.engines.agreement import MAX_SUBJECTS, compare_ranks, differences, digests
from toolkit.engines.process_group import _compare_devices
from toolkit.errors import UsageError


def test_equal_facts_have_no_difference():
    assert differences([{"seed": 1, "betas": [0.9, 0.95]}] * 3, ["a", "a", "b"]) == []


def test_a_difference_names_key_values_ranks_and_hosts():
    facts = [{"seed": 1337, "lr": 0.1}, {"seed": 7, "lr": 0.1}]
    assert differences(facts, ["node1", "node2"]) == [
        "seed is 7 on rank 1 (node2), 1337 on rank 0 (node1)"
    ]


def test_the_few_come_first_and_each_host_is_named_once():
    facts = [{"seed": 7 if rank in (4, 5, 6, 7) else 1} for rank in range(12)]
    hosts = [f"n{rank // 4}" for rank in range(12)]
    assert differences(facts, hosts) == [
        "seed is 7 on rank 4 (n1) with 3 more, 1 on rank 0 (n0) and rank 8 (n2) with 6 more"
    ]


def test_a_key_that_a_rank_does_not_have_is_missing_there():
    assert differences([{"a": None}, {}], ["x", "y"]) == [
        "a is missing on rank 1 (y), null on rank 0 (x)"
    ]


def test_many_values_are_cut_short():
    (clause,) = differences([{"a": rank} for rank in range(9)], ["x"] * 9)
    assert clause.endswith("5 on rank 5 (x), 5 more")
    (clause,) = differences([{"a": "x" * 1000}, {"a": "y"}], ["x"] * 2)
    assert len(clause) < 200


def test_every_value_changes_the_digest_of_its_subject_alone():
    def parts(facts):
        whole = digests(facts)
        assert len(whole) == MAX_SUBJECTS * 32
        return [whole[start : start + 32] for start in range(0, len(whole), 32)]

    first = parts({"code": {"a.py": "1"}, "data": {"tokens": 5}})
    other = parts({"code": {"a.py": "1"}, "data": {"tokens": 6}})
    assert [a == b for a, b in zip(first, other, strict=True)] == [True, False, *6 * [True]]
    assert parts({"data": {"a": 1, "b": 2}}) == parts({"data": {"b": 2, "a": 1}})


class Peers:
    """`torch.distributed` as seen by rank 0 of two, the other being given; counts the calls."""

    def __init__(self, monkeypatch, facts):
        self.facts = facts
        self.calls = []
        for name in ("get_world_size", "all_gather", "all_gather_object"):
            monkeypatch.setattr(agreement.dist, name, getattr(self, name))

    def get_world_size(self):
        return 2

    def all_gather(self, gathered, own):
        self.calls.append("all_gather")
        gathered[0].copy_(own)
        gathered[1].copy_(torch.frombuffer(bytearray(digests(self.facts)), dtype=torch.uint8))

    def all_gather_object(self, gathered, own):
        self.calls.append("all_gather_object")
        gathered[:] = [own, ("node2", {name: self.facts[name] for name in own[1]})]


REMEDIES = {"configuration": "start every rank alike", "data": "copy the shards"}


def compare(facts):
    return compare_ranks(facts, REMEDIES, device=torch.device("cpu"))


def test_equal_ranks_take_one_collective(monkeypatch):
    facts = {"configuration": {"seed": 1}, "data": {"tokens": 5}, "free": {"cores": 4}}
    peers = Peers(monkeypatch, facts)
    assert compare(facts) == []
    assert peers.calls == ["all_gather"]


def test_what_may_differ_is_returned(monkeypatch):
    peers = Peers(monkeypatch, {"configuration": {"seed": 1}, "free": {"cores": 8}})
    host = socket.gethostname()
    assert compare({"configuration": {"seed": 1}, "free": {"cores": 4}}) == [
        f"cores is 8 on rank 1 (node2), 4 on rank 0 ({host})"
    ]
    assert peers.calls == ["all_gather", "all_gather_object"]


def test_all_subjects_that_differ_are_in_one_sentence(monkeypatch):
    Peers(monkeypatch, {"configuration": {"seed": 7}, "data": {"n": 6}, "free": {"cores": 8}})
    with pytest.raises(UsageError) as caught:
        compare({"configuration": {"seed": 1}, "data": {"n": 5}, "free": {"cores": 4}})
    host = socket.gethostname()
    assert str(caught.value) == (
        f"the ranks differ in configuration: seed is 7 on rank 1 (node2), 1 on rank 0 ({host}); "
        f"start every rank alike; the ranks differ in data: n is 6 on rank 1 (node2), 5 on rank 0 "
        f"({host}); copy the shards"
    )


def test_a_rank_without_a_gpu_is_named_before_the_backends_meet(monkeypatch):
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    store.set("device of 1", '["cuda", "node2"]')
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device is cuda on rank 1 \(node2\), cpu on rank 0 \("):
        _compare_devices(store, 0, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _compare_devices(store, 0, 2)
