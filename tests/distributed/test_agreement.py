"""Two launchers of one run that start it differently: refused before the first step."""

import shutil
from pathlib import Path

import pytest

from tests.data.shard_files import write_llmc
from tests.distributed.test_machines import free_port, start
from tests.distributed.test_runs import folder, summary
from toolkit.engines.strategies import Strategy

__all__ = ["folder"]  # the fixture
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


class Pair:
    """How two launchers of one run ended, the second with other words or in another folder."""

    def __init__(
        self,
        folder: Path,
        out: Path,
        *overrides: str,
        name: str,
        words: tuple[str, ...] = (),
        strategies: tuple[Strategy, Strategy] = ("ddp", "ddp"),
        folders: tuple[Path | None, Path | None] = (None, None),
    ) -> None:
        port = free_port()
        outs = [out / f"{number}.log" for number in (0, 1)]
        machines = [
            start(
                folder,
                rank,
                port,
                *words,
                *(overrides if rank else ()),
                name=name,
                out=outs[rank],
                strategy=strategies[rank],
                cwd=folders[rank],
            )
            for rank in (0, 1)
        ]
        try:
            self.codes = [machine.wait(timeout=110) for machine in machines]
        finally:
            for machine in machines:
                machine.kill()
        self.printed = [path.read_text() for path in outs]

    def check_refused(self, *clauses: str) -> None:
        """Each launcher prints one sentence with all of the clauses, and nothing was trained."""
        assert self.codes == [2, 2], self.printed
        for printed in self.printed:
            (line,) = [line for line in printed.splitlines() if "error: " in line]
            for clause in clauses:
                assert clause in line
            assert "Traceback" not in printed
            assert "step " not in printed


@pytest.fixture(scope="module")
def other_shards(folder: Path) -> Path:
    """As many tokens as there are in the run's own, in as many bytes."""
    (folder / "other").mkdir()
    write_llmc(folder / "other" / "shard_000000.bin", [(5 * i * i) % 500 for i in range(5000)])
    return folder / "other"


def test_every_difference_is_named_with_both_values(
    folder: Path, other_shards: Path, tmp_path: Path
) -> None:
    different = ("seed=7", "optimizer.lr=2.0e-3", "optimizer.grad_clip=0.5")
    shards = f"data.train={other_shards}"
    pair = Pair(folder, tmp_path, *different, shards, name="different")
    pair.check_refused(
        "the ranks differ in configuration: ",
        "seed is 7 on rank 1 (",
        ", 1337 on rank 0 (",
        "optimizer.lr is 0.002 on rank 1 (",
        "optimizer.grad_clip is 0.5 on rank 1 (",
        "start every rank with the same configuration; the ranks differ in data: ",
        "data.train.samples_sha256 is ",
    )
    found = summary(folder, "different")
    assert (found["exit"], found["steps"]) == (2, None)
    assert found["reason"] in pair.printed[0]
    assert found["reason"] in pair.printed[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "override", "clause"),
    [
        ("ddp", "seed=7", "seed is 7 on rank 1"),
        ("fsdp2", "optimizer.lr=2.0e-3", "optimizer.lr is 0.002 on rank 1"),
        ("fsdp2", "training.steps=7", "training.steps is 7 on rank 1"),
        ("zero2", "optimizer.grad_clip=0.5", "optimizer.grad_clip is 0.5 on rank 1"),
        ("zero3", "model.n_layer=3", "model.n_layer is 3 on rank 1"),
        ("ddp", "batch.micro_batch_size=2", "batch.micro_batch_size is 2 on rank 1"),
    ],
)
def test_one_difference_is_refused_under_every_kind_of_engine(
    folder: Path, tmp_path: Path, strategy: Strategy, override: str, clause: str
) -> None:
    name = f"{strategy}-{override.partition('=')[0]}"
    pair = Pair(folder, tmp_path, override, name=name, strategies=(strategy, strategy))
    pair.check_refused(clause)
    assert summary(folder, name)["exit"] == 2


@pytest.mark.long
@pytest.mark.parametrize("strategies", [("ddp", "fsdp2"), ("zero2", "ddp"), ("zero2", "zero3")])
def test_two_strategies_are_refused(
    folder: Path, tmp_path: Path, strategies: tuple[Strategy, Strategy]
) -> None:
    name = "-".join(strategies)
    first, second = strategies
    pair = Pair(folder, tmp_path, name=name, strategies=strategies)
    pair.check_refused(f"strategy is {second} on rank 1", f", {first} on rank 0")


@pytest.mark.long
def test_two_run_folders_are_refused_unless_nothing_is_saved(folder: Path, tmp_path: Path) -> None:
    homes = (tmp_path / "first", tmp_path / "second")
    for home in homes:
        home.mkdir()
    relative = "output_dir=runs"
    Pair(folder, tmp_path, name="apart", words=(relative,), folders=homes).check_refused(
        "the ranks differ in run folder: ", "is missing on rank 1", "output_dir must be one folder"
    )
    words = (relative, "training.checkpoint_every=never")
    unsaved = Pair(folder, tmp_path, name="unsaved", words=words, folders=homes)
    assert unsaved.codes == [0, 0]
    assert "differs    mark of rank 0 in the run folder is missing on rank 1" in unsaved.printed[0]


@pytest.mark.long
def test_other_paths_to_the_same_shards_train_and_a_resumed_run_is_compared_as_well(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "train", tmp_path / "copy")
    copy = f"data.train={tmp_path / 'copy'}"
    words = ("training.stop_at=3",)
    trained = Pair(folder, tmp_path, copy, name="resumed", words=words)
    assert trained.codes == [0, 0], trained.printed
    assert f'differs    data.train is ["{tmp_path / "copy"}"] on rank 1 (' in trained.printed[0]
    assert not list((folder / "runs" / "resumed").glob(".*mark*"))
    Pair(folder, tmp_path, "optimizer.lr=2.0e-3", name="resumed").check_refused("optimizer.lr is")
    assert summary(folder, "resumed")["steps"] == 3
