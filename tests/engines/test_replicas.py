"""Which rank is named when replicas are not the same bits; real ranks are in tests/distributed."""

from toolkit.engines.replicas import describe_drift

NAMES = ["wte", "wpe"]


def test_equal_replicas_are_no_problem() -> None:
    assert describe_drift({0: (1, 2), 1: (1, 2)}, NAMES) is None


def test_two_that_differ_cannot_be_told_apart() -> None:
    found = describe_drift({0: (1, 2), 1: (1, 3)}, NAMES)
    assert found == "ranks 0, 1 differ, without a majority, first in wpe"


def test_from_three_on_the_majority_names_the_one() -> None:
    found = describe_drift({0: (1, 2), 1: (9, 2), 2: (1, 2)}, NAMES)
    assert found == "rank 1 differs from the 2 others, first in wte"


def test_ranks_keep_their_global_numbers() -> None:
    found = describe_drift({1: (1, 2), 3: (1, 2), 5: (1, 2), 7: (1, 0)}, NAMES)
    assert found == "rank 7 differs from the 3 others, first in wpe"


def test_a_tie_names_nobody() -> None:
    found = describe_drift({0: (1, 2), 1: (1, 2), 2: (3, 2), 3: (3, 2)}, NAMES)
    assert found == "ranks 0, 1, 2, 3 differ, without a majority, first in wte"
