"""Machines that were set up differently: refused before the first step, on both."""

from pathlib import Path

import pytest

from tests.distributed.test_machines import free_port, start
from tests.distributed.test_runs import folder, summary
from toolkit.backends.strategies import Strategy

__all__ = ["folder"]  # the fixture
pytestmark = pytest.mark.distributed


def refusals(
    folder: Path, tmp_path: Path, *other: str, strategy: Strategy, name: str
) -> tuple[str, str]:
    """Start two machines, the second with other values; return what each prints."""
    port = free_port()
    outs = [tmp_path / f"{rank}.log" for rank in range(2)]
    machines = [
        start(folder, rank, port, *overrides, name=name, out=out, strategy=strategy)
        for rank, (overrides, out) in enumerate(zip(((), other), outs, strict=True))
    ]
    try:
        codes = [machine.wait(timeout=100) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    first, second = (out.read_text() for out in outs)
    assert codes == [1, 1], first + second
    return first, second


def test_another_seed_is_refused_on_both_machines(folder: Path, tmp_path: Path) -> None:
    printed = refusals(folder, tmp_path, "seed=7", strategy="ddp", name="seeds")
    for text in printed:
        assert "the ranks are not about to train the same: seed is 7 on rank 1" in text
        assert "Traceback" not in text
    found = summary(folder, "seeds")
    assert found["exit"] == 2
    assert "and 1337 on rank 0" in found["reason"]
    assert not list((folder / "runs" / "seeds").glob("checkpoints/*"))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero2"])
@pytest.mark.parametrize("override", ["optimizer.lr=0.01", "optimizer.grad_clip=0.1", "data"])
def test_every_engine_refuses(
    folder: Path, tmp_path: Path, strategy: Strategy, override: str
) -> None:
    key, name = override.partition("=")[0], f"{strategy}-{override.partition('=')[0]}"
    if override == "data":
        key, override = "shards of data.train", f"data.train={folder / 'val'}"
    printed = refusals(folder, tmp_path, override, strategy=strategy, name=name)
    assert all(f"train the same: {key} is " in text for text in printed)
    assert summary(folder, name)["exit"] == 2
