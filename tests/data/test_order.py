import numpy as np

from toolkit.data.order import SequenceOrder, micro_batch_slots


def test_unshuffled_counts_up_and_starts_over():
    order = SequenceOrder(5, seed=0, shuffle=False)
    assert order.ids(3, 12).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_shuffled_is_numpys_permutation_of_seed_and_epoch():
    order = SequenceOrder(10, seed=1337, shuffle=True)
    expected = [np.random.default_rng([1337, epoch]).permutation(10) for epoch in range(3)]
    assert order.ids(0, 30).tolist() == np.concatenate(expected).tolist()
    assert order.ids(8, 12).tolist() == [*expected[0][8:], *expected[1][:2]]


def test_epochs_and_seeds_differ():
    order = SequenceOrder(100, seed=1, shuffle=True)
    other = SequenceOrder(100, seed=2, shuffle=True)
    assert order.ids(0, 100).tolist() != order.ids(100, 200).tolist()
    assert order.ids(0, 100).tolist() != other.ids(0, 100).tolist()


def test_the_order_does_not_depend_on_what_was_asked_before():
    order = SequenceOrder(7, seed=3, shuffle=True)
    later = order.ids(70, 80).tolist()
    order.ids(0, 7)
    order.ids(700, 710)
    assert order.ids(70, 80).tolist() == later
    assert SequenceOrder(7, seed=3, shuffle=True).ids(70, 80).tolist() == later


def test_slots_of_a_wave_follow_the_ranks():
    slots = [
        micro_batch_slots(m, micro_batch_size=2, world_size=3, rank=r)
        for m in range(2)
        for r in range(3)
    ]
    assert [(s.start, s.stop) for s in slots] == [(2 * i, 2 * i + 2) for i in range(6)]
