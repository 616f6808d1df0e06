import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.data.shard_files import write_llmc
from toolkit.engines.strategies import STRATEGIES
from toolkit.errors import Preempted, ToolkitError, UntrustedError, UsageError
from toolkit.shipped import ROOT, find_launch_file
from toolkit.training import start as start_module
from toolkit.training.run_folder import end_start
from toolkit.training.start import launch_command, start


class Launcher:
    """Stands in for `accelerate launch`: what the job leaves and what the launcher returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[list[str]] = []
        self.status = 0
        self.leaves: dict[str, object] | None = None

    def run(self, command: list[str]) -> int:
        self.commands.append(command)
        if self.leaves is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            end_start(self.folder, {"reason": "put in by the test", **self.leaves})
        return self.status


@pytest.fixture
def launcher(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    launcher = Launcher(run_file.parent / "runs" / "tiny")
    monkeypatch.setattr(start_module, "run_launcher", launcher.run)
    return launcher


def test_the_printed_line_is_the_one_that_is_run(
    run_file: Path,
    launcher: Launcher,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert start("fsdp2", run_file, ["seed=2"], num_processes=4) == 0
    line = (
        "accelerate launch --config_file configs/accelerate/fsdp2.yaml --num_processes 4 "
        f"launch/train.py --config {run_file} seed=2"
    )
    assert capsys.readouterr().out == line + "\n"
    own_launcher = [sys.executable, "-m", "toolkit.launch.launcher"]
    assert launcher.commands == [[*own_launcher, *line.split()[1:]]]


def test_from_another_folder_the_paths_are_whole(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_file.parent)
    command = launch_command(find_launch_file("single"), run_file, [], num_processes=None)
    assert str(ROOT / "configs" / "accelerate" / "single.yaml") in command
    assert str(ROOT / "launch" / "train.py") in command
    assert "--num_processes" not in command


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_its_launch_file(strategy: str) -> None:
    assert find_launch_file(strategy).is_file()


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("zero4", "did you mean 'zero"),
        ("fsdp", "did you mean 'fsdp2'?"),
        ("horovod", "there are single, ddp, fsdp2"),
        ("../secrets", "there are single"),
    ],
)
def test_an_unknown_strategy_is_refused_with_a_hint(strategy: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_launch_file(strategy)
    assert f"unknown strategy '{strategy}'" in str(caught.value)
    assert words in str(caught.value)


def test_a_launch_file_of_ones_own_may_stand_for_the_strategy(
    run_file: Path, launcher: Launcher
) -> None:
    own = run_file.parent / "mein Größtes.yaml"
    own.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nuse_cpu: true\n")
    assert start(str(own), run_file, [], num_processes=None) == 0
    (command,) = launcher.commands
    assert command[command.index("--config_file") + 1] == str(own)


def test_a_path_without_a_file_is_named_as_a_path() -> None:
    assert find_launch_file("none/here.yaml") == Path("none/here.yaml")


def test_the_workers_code_is_returned(run_file: Path, launcher: Launcher) -> None:
    launcher.status = 1
    launcher.leaves = {"exit": 75}
    assert start("single", run_file, [], num_processes=None) == 75


def test_workers_that_a_signal_ends_before_they_can_save_are_to_be_started_again(
    run_file: Path, launcher: Launcher
) -> None:
    launcher.status = 128 + signal.SIGTERM
    with pytest.raises(Preempted, match="before this start could save anything; start it again"):
        start("ddp", run_file, [], num_processes=2)


def test_a_run_that_ends_twice_in_the_same_way_has_the_same_code(
    run_file: Path, launcher: Launcher
) -> None:
    launcher.status = 1
    launcher.leaves = {"exit": 6, "reason": "step 3: the loss is nan"}
    codes = [start("single", run_file, [], num_processes=None) for _ in range(2)]
    assert codes == [6, 6]


def test_an_earlier_starts_summary_shows_nothing_of_this_one(
    run_file: Path, launcher: Launcher
) -> None:
    launcher.folder.mkdir(parents=True)
    end_start(launcher.folder, {"exit": 6, "reason": "an earlier start's"})
    launcher.status = 1
    assert start("single", run_file, [], num_processes=None) == 1
    launcher.status = 0
    assert start("single", run_file, [], num_processes=None) == 0


def test_a_launcher_that_failed_is_never_taken_for_done(run_file: Path, launcher: Launcher) -> None:
    launcher.status = 1
    launcher.leaves = {"exit": 0}
    assert start("single", run_file, [], num_processes=None) == 1


def _no_shards(run_file: Path) -> None:
    (run_file.parent / "train" / "shard_000000.bin").unlink()


def _too_few_tokens(run_file: Path) -> None:
    write_llmc(run_file.parent / "train" / "shard_000000.bin", [1] * 512)


def _damaged_val(run_file: Path) -> None:
    shard = run_file.parent / "val" / "shard_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])


def _padding_id(run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace("vocab_size: 512", "vocab_size: 50304"))
    write_llmc(run_file.parent / "train" / "shard_000000.bin", [*range(1000), 50_290])


def _typing_error(run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace("vocab_size", "vocab_sise"))


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (_no_shards, UsageError, "train: holds no shard"),
        (_too_few_tokens, UsageError, "one step needs 513 tokens"),
        (_damaged_val, UntrustedError, "val/shard_000000.bin: the header has"),
        (_padding_id, UsageError, "is id 50290, but a vocabulary of 50257 ends at id 50256"),
        (_typing_error, UsageError, "did you mean 'model.vocab_size'?"),
    ],
)
def test_nothing_is_launched_that_would_fail(
    run_file: Path,
    launcher: Launcher,
    fault: Callable[[Path], None],
    error: type[ToolkitError],
    words: str,
) -> None:
    fault(run_file)
    with pytest.raises(error) as caught:
        start("ddp", run_file, [], num_processes=None)
    assert words in str(caught.value)
    assert launcher.commands == []


def test_an_output_folder_that_cannot_be_is_refused_before_the_line_is_printed(
    run_file: Path, launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_file.parent / "runs").write_text("a file")
    with pytest.raises(UsageError, match="runs/tiny: cannot be made a run folder"):
        start("ddp", run_file, [], num_processes=None)
    assert launcher.commands == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("tracker", "installed", "is_good"),
    [
        ("wandb", [], False),
        ("wandb", ["wandb"], True),
        ("tensorboard", ["wandb"], False),
        ("tensorboard", ["tensorboardX"], True),
    ],
)
def test_a_tracker_that_is_not_installed_is_refused(
    run_file: Path,
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
    tracker: str,
    installed: list[str],
    is_good: bool,
) -> None:
    monkeypatch.setattr(start_module, "find_spec", lambda name: name in installed or None)
    wanted = nullcontext() if is_good else pytest.raises(UsageError, match=f"'{tracker}' is not in")
    with wanted:
        start("ddp", run_file, [f"training.trackers=[{tracker}]"], num_processes=None)
    assert bool(launcher.commands) == launcher.folder.exists() == is_good


def test_a_world_that_does_not_divide_the_batch_is_refused(
    run_file: Path, launcher: Launcher
) -> None:
    with pytest.raises(UsageError, match="x 3 ranks"):
        start("ddp", run_file, [], num_processes=3)
    assert launcher.commands == []
