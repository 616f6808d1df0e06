"""What cannot be started is refused in one sentence."""

from pathlib import Path

import pytest

from tests.data.shard_files import write_llmc
from tests.training.runs import summary
from toolkit.engines import strategies
from toolkit.training import worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")


class Refused:
    """What a worker that could not start printed and returned."""

    def __init__(self, capsys: pytest.CaptureFixture[str], run_file: Path, *overrides: str) -> None:
        self.code = worker.main(["--config", str(run_file), *overrides])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        (line,) = printed.err.splitlines()
        assert line.startswith("error: ")
        self.sentence = line.removeprefix("error: ")


def test_an_unknown_key_is_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    run_file.write_text(run_file.read_text().replace("warmup_steps", "warmup_step"))
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(run_file) in refused.sentence
    assert "optimizer.warmup_step'; did you mean 'optimizer.warmup_steps'?" in refused.sentence


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.step=3", "did you mean 'training.steps'?"),
        ("training.steps=many", "training.steps"),
        ("training.steps", "has no '='"),
        ("batch.micro_batch_size=5", "batch.micro_batch_size to one of"),
        ("accumulation=sharded", "impossible with strategy 'single'"),
    ],
)
def test_a_bad_override_is_named(
    capsys: pytest.CaptureFixture[str], run_file: Path, override: str, words: str
) -> None:
    refused = Refused(capsys, run_file, override)
    assert refused.code == 2
    assert words in refused.sentence


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused = Refused(capsys, tmp_path / "nothing.yaml")
    assert refused.code == 2
    assert str(tmp_path / "nothing.yaml") in refused.sentence


def test_missing_data_is_named_and_in_the_summary(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    refused = Refused(capsys, run_file, "data.train=no/such/folder")
    assert refused.code == 2
    assert "'no/such/folder' matches no shard" in refused.sentence
    assert summary(run_file)["exit"] == 2
    assert summary(run_file)["reason"] == refused.sentence


def test_an_id_outside_the_vocabulary_is_named_with_its_limit_and_file(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    shard = write_llmc(run_file.parent / "train" / "shard_000000.bin", [1] * 600 + [512] + [2] * 99)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert f"{shard}: token 600 (byte 2224) is id 512" in refused.sentence
    assert "a vocabulary of 512 ends at id 511" in refused.sentence


def test_too_little_data_is_refused_with_both_numbers(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    write_llmc(run_file.parent / "train" / "shard_000000.bin", [1] * 512)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "one step needs 513 tokens" in refused.sentence
    assert "there are 512" in refused.sentence


def test_a_damaged_shard_is_not_trusted(capsys: pytest.CaptureFixture[str], run_file: Path) -> None:
    shard = run_file.parent / "train" / "shard_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    refused = Refused(capsys, run_file)
    assert refused.code == summary(run_file)["exit"] == 3
    assert f"{shard}: the header has 2500 tokens" in refused.sentence


def test_a_file_where_the_run_folder_goes_is_named(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    (run_file.parent / "runs").write_text("in the way")
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(run_file.parent / "runs" / "tiny") in refused.sentence


def test_a_launch_of_another_kind_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "mixed_precision 'fp8' is not supported" in refused.sentence


def test_an_engine_that_is_not_installed_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "pip install scaling-toolkit[deepspeed]" in refused.sentence


def test_a_launch_file_that_does_not_go_with_the_run_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Path(__file__).parents[2] / "configs" / "accelerate" / "single.yaml"
    launch_file = run_file.parent / "launch.yaml"
    launch_file.write_text(shipped.read_text() + "mixed_precision: bf16\n")
    monkeypatch.setattr(worker, "find_launch_file", lambda: launch_file)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(launch_file) in refused.sentence
    assert "mixed_precision: bf16, the run has precision: fp32" in refused.sentence
