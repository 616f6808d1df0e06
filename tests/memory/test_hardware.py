import csv
from pathlib import Path

import pytest

from toolkit.errors import UsageError
from toolkit.memory import hardware
from toolkit.memory.hardware import GIB, find_gpu, load_gpus, with_unit


@pytest.mark.parametrize(
    ("gpu", "gib"), [("T4", 14.56), ("L40S", 44.53), ("H100-96", 95.04), ("RTX A6000", 47.54)]
)
def test_memory_is_what_the_device_reports(gpu: str, gib: float) -> None:
    assert find_gpu(gpu).memory_bytes == round(gib * GIB)


def test_every_size_has_a_source() -> None:
    with Path(hardware.__file__).with_name("hardware.csv").open() as file:
        assert all(row["source"] for row in csv.DictReader(file))
    sizes = [gpu.memory_bytes for gpu in load_gpus()]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100-80"),
        ("Tesla V100-SXM2-32GB", "V100-32"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla T4", "T4"),
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("A6000", "RTX A6000"),
        ("a100 80gb", "A100-80"),
        ("h200", "H200"),
    ],
)
def test_a_gpu_is_found_by_the_names_that_people_and_programs_have_for_it(
    name: str, gpu: str
) -> None:
    assert find_gpu(name).name == gpu


def test_every_reported_name_finds_its_own_gpu() -> None:
    for gpu in load_gpus():
        assert {find_gpu(name).name for name in (gpu.name, *gpu.reported_as)} == {gpu.name}


@pytest.mark.parametrize(
    ("size", "memory"),
    [("24GiB", 24 * GIB), ("23.5 gib", 47 * GIB // 2), ("24564MiB", 24564 * 2**20), ("24GB", 24e9)],
)
def test_a_size_is_taken_as_it_is(size: str, memory: int) -> None:
    assert find_gpu(size).memory_bytes == memory
    assert find_gpu(size).name == size


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100", "A100-40, A100-80, or give a size such as 24GiB"),
        ("RTX 3090 Ti", "RTX 3090"),
        ("NVIDIA A100-SXM...", "A100-"),
        ("80", "or give a size such as 24GiB"),
        ("-24GiB", "or give a size such as 24GiB"),
        ("nvidia", "T4, V100-16, "),
    ],
)
def test_an_unknown_name_is_a_sentence_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"--gpu: unknown '{name}'; there are .*{near}"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (24 * GIB, "24 GiB"),
        (GIB * 3 // 16, "0.188 GiB"),
        (GIB // 200, "5.12 MiB"),
        (8192, "8 KiB"),
    ],
)
def test_a_size_has_the_unit_in_which_it_is_read(size: int, shown: str) -> None:
    assert with_unit(size) == shown
