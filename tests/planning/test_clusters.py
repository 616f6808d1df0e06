"""Known machines, and files of one's own."""

from pathlib import Path

import pytest

from toolkit.errors import UsageError
from toolkit.planning.cluster import (
    build_cluster,
    load_cluster_file,
    parse_rate,
    shipped_clusters,
)


def test_a_dozen_machines_are_known_each_with_its_sources() -> None:
    linked = []
    for name in shipped_clusters():
        file = load_cluster_file(name)
        assert file.sources
        build_cluster(file, gpus=file.per_machine, per_machine=None, between=None)
        linked += [name] if file.between else []
    assert len(linked) >= 12


def test_what_is_given_beside_the_file_takes_the_place_of_its_keys() -> None:
    file = load_cluster_file("aws-p5")
    cluster = build_cluster(file, gpus=8, per_machine=4, between="1Tbit")
    assert (cluster.per_machine, cluster.between) == (4, 125e9)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "gpu: A100-80\nper_machine: 4\nmachines: 2\nwithin: 800Gbit\nbetween: 100Gbit\n"
    )
    cluster = build_cluster(load_cluster_file(str(path)), gpus=None, per_machine=None, between=None)
    assert (cluster.gpus, cluster.speed.link_bytes_per_s) == (8, 100e9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu: A100-80\nper_machine: 4\nmashines: 3\n", "did you mean 'machines'"),
        ("per_machine: 4\n", "gpu is missing"),
        ("gpu: A100-80\nper_machine: 0\n", "per_machine must be at least 1"),
    ],
)
def test_a_wrong_file_gets_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        load_cluster_file(str(path))


def test_an_unknown_machine_names_those_that_are_near() -> None:
    with pytest.raises(UsageError, match="aws-p5"):
        load_cluster_file("aws_p5")


@pytest.mark.parametrize("text", ["fast", "0Gbit", "400"])
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="400Gbit"):
        parse_rate(text)
