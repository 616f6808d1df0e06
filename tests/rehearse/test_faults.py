"""Faults by name, and what a machine is started with that has one."""

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit import cli
from toolkit.config import load_run_config
from toolkit.data.stream import TokenStream
from toolkit.errors import UsageError
from toolkit.launch.links import read_rate
from toolkit.rehearse.differences import difference
from toolkit.rehearse.faults import ENDINGS, Fault, read_fault
from toolkit.training.facts import source_digests

PACKAGE = Path(cli.__file__).parent


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("none", Fault("none", None)),
        ("link-down@20s", Fault("link-down", 20.0)),
        ("kill-machine@0.5s", Fault("kill-machine", 0.5)),
        ("other-config", Fault("other-config", None)),
    ],
)
def test_a_fault_reads_as_it_is_written(text: str, fault: Fault) -> None:
    assert read_fault(text) == fault
    assert str(fault) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("link-dwon", "there is no fault 'link-dwon'; did you mean 'link-down'?"),
        ("link-down@20", "the form is NAME or NAME@SECONDSs"),
        ("other-data@3s", "'other-data' is there from the start"),
        ("", "the form is NAME"),
    ],
)
def test_what_is_no_fault_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        read_fault(text)


def test_rates_are_read_in_both_units() -> None:
    assert [read_rate(text) for text in ("1Gbit", "2.5Gbit", "100Mbit")] == [1000, 2500, 100]
    for text in ("1", "1 Gbit", "1Gbyte", "0Mbit", "-1Gbit"):
        with pytest.raises(UsageError):
            read_rate(text)


def test_other_data_has_as_many_tokens_and_another_fingerprint(
    run_file: Path, tmp_path: Path
) -> None:
    config = load_run_config(run_file)
    own = difference("other-data", config, tmp_path)
    other = load_run_config(run_file, own.overrides)
    first, second = (TokenStream(c.data.train, vocab_size=512) for c in (config, other))
    assert len(first) == len(second)
    assert (first.read(1, 5000) == second.read(1, 5000)).all()
    assert first.fingerprint() != second.fingerprint()


def test_other_code_and_another_version_are_what_python_finds(
    run_file: Path, tmp_path: Path
) -> None:
    config = load_run_config(run_file)
    for fault in ("other-code", "other-version"):
        assert difference(fault, config, tmp_path).modules == tmp_path
    own, other = source_digests(PACKAGE), source_digests(tmp_path / "toolkit")
    assert [name for name in own if own[name] != other[name]] == ["toolkit/__init__.py"]
    code = "import numpy, importlib.metadata as m; print(m.version('numpy'), numpy.__version__)"
    environment = {"PYTHONPATH": str(tmp_path)}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    told, real = printed.split()
    assert told == f"{real}+other"


def test_only_mistakes_make_a_machine_another(run_file: Path, tmp_path: Path) -> None:
    config = load_run_config(run_file)
    mistakes = {name for name in ENDINGS if name.startswith(("other-", "wrong-"))}
    for fault in ENDINGS:
        folder = tmp_path / fault
        folder.mkdir()
        own = difference(fault, config, folder)
        assert (own != difference("none", config, folder)) == (fault in mistakes)
