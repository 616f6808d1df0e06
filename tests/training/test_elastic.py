"""What `toolkit train --machines` refuses before anything is started."""

from pathlib import Path

import pytest

from toolkit.errors import UsageError
from toolkit.training.elastic import read_machines, start_elastic


@pytest.mark.parametrize(("text", "found"), [("1:4", (1, 4)), ("3", (3, 3)), ("2:2", (2, 2))])
def test_a_range_of_machines(text: str, found: tuple[int, int]) -> None:
    assert read_machines(text) == found


@pytest.mark.parametrize("text", ["", "4:1", "0:4", "1:", "1-4", "-1:4", "one"])
def test_what_is_no_range_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=f"--machines {text}: the form is LEAST:MOST"):
        read_machines(text)


def test_a_batch_that_no_number_of_machines_can_share_is_refused(run_file: Path) -> None:
    """16 sequences a step, 4 at a time."""
    with pytest.raises(UsageError, match="tokens_per_step"):
        start_elastic("ddp", run_file, [], machines="1:4", per_machine=3, address="127.0.0.1")
    assert not (run_file.parent / "runs").exists()
