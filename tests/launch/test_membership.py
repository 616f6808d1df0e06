"""Who is there, by files that each machine renews."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.launch import membership
from toolkit.launch.membership import Membership, Round


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.02)
    monkeypatch.setattr(membership, "LOST_S", 0.5)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def names(members: Membership) -> list[str]:
    return [member.name for member in members.live()]


def test_machines_see_each_other_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    first, second = (Membership(tmp_path / "machines", f"10.0.0.{n}") for n in (1, 2))
    with first.present():
        assert eventually(lambda: names(first) == [first.name])
        with second.present():
            assert eventually(lambda: names(first) == [first.name, second.name])
            assert eventually(lambda: names(second) == [first.name, second.name])
            assert [member.address for member in first.live()] == ["10.0.0.1", "10.0.0.2"]
            second.wait_for(7)
            assert [member.awaits for member in first.live()] == [0, 7]
        assert eventually(lambda: names(first) == [first.name])
    assert not (tmp_path / "machines").exists()


def test_one_that_stops_renewing_has_gone_and_one_of_an_earlier_start_never_was(
    tmp_path: Path,
) -> None:
    own, other = (Membership(tmp_path, f"10.0.0.{n}") for n in (1, 2))
    stale = Membership(tmp_path, "10.0.0.3")
    stale._renew()
    with own.present(), other.present():
        assert eventually(lambda: names(own) == [own.name, other.name])
        other._left.set()
        assert eventually(lambda: names(own) == [own.name])


def test_a_folder_that_the_last_to_leave_takes_along_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Membership(tmp_path / "machines", "10.0.0.1")
    write_text, going = Path.write_text, [False]

    def in_a_folder_that_may_go(path: Path, text: str) -> int:
        if going.pop():
            shutil.rmtree(path.parent)
        going.append(False)
        return write_text(path, text)

    monkeypatch.setattr(membership, "BEAT_S", 60.0)
    monkeypatch.setattr(Path, "write_text", in_a_folder_that_may_go)
    with members.present():
        going[0] = True
        members.wait_for(1)
        assert [member.awaits for member in members.live()] == [1]
        going[0] = True
        members.begin(Round(1, {members.name: "10.0.0.1"}))
        assert members.newest().number == 1
    assert not (tmp_path / "machines").exists()


def test_a_round_is_begun_once(tmp_path: Path) -> None:
    first, second = (Membership(tmp_path / "machines", f"10.0.0.{n}") for n in (1, 2))
    with first.present(), second.present():
        assert first.newest() == Round(0, {})
        first.begin(Round(1, {"a": "10.0.0.1", "b": "10.0.0.2"}))
        second.begin(Round(1, {"b": "10.0.0.2"}))
        assert second.newest() == Round(1, {"a": "10.0.0.1", "b": "10.0.0.2"})
        first.begin(Round(2, {"b": "10.0.0.2"}))
        assert second.newest().number == 2


def test_the_end_is_known_to_those_who_were_there(tmp_path: Path) -> None:
    first, second = (Membership(tmp_path, f"10.0.0.{n}") for n in (1, 2))
    with first.present():
        assert first.code() is None
        first.finish(1, 3)
        with second.present():
            assert (first.code(), second.code()) == (3, None)
