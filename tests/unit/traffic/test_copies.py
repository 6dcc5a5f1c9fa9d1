"""Which copy of a result counts, and when two replicas are known to differ."""

import pytest

from keyshift.model.frames import OfTurn
from keyshift.traffic import copies
from keyshift.traffic.copies import Chains, Difference, FirstCopies, Standing


def test_the_first_frame_of_each_turn_and_piece_counts_whoever_it_is_of():
    first = FirstCopies()
    came = [(0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 3, 0), (0, 1, 1), (1, 2, 0), (0, 3, 0), (0, 4, 0), (1, 2, 0)]
    assert [first.counts(*frame) for frame in came] == [True, False, True, True, False, True, False, True, False]


def test_what_a_replica_has_not_given_before_it_died_counts_of_the_other():
    first = FirstCopies()
    assert [first.counts(0, 7, piece) for piece in (0, 1)] == [True, True]  # it dies before piece 2
    assert [first.counts(0, 7, piece) for piece in (0, 1, 2)] == [False, False, True]


def turn(number, chain, piece=0):
    return OfTurn(number, 100 + number, chain, piece)


def test_replicas_that_agree_are_not_told_of_and_the_turns_are_counted():
    chains = Chains()
    for replica in (0, 1, 2):
        for number in (1, 2, 5):
            assert chains.told(replica, 0, turn(number, 10 * number)) is None
            assert chains.told(replica, 0, turn(number, 10 * number, piece=1)) is None
    assert chains.compared == 6


@pytest.mark.parametrize("later", [0, 1])
def test_a_difference_is_told_once_with_the_last_turn_in_which_they_agreed(later):
    chains, found = Chains(), []
    for number in (1, 2, 4, 5, 6):
        for replica in (1 - later, later):
            chain = number if number < 5 or replica != 1 else 99
            found.append(chains.told(replica, 3, turn(number, chain)))
    assert [each for each in found if each] == [Difference(3, (1 - later, later), 5, 105, 4)]


def test_slots_differ_by_themselves():
    chains = Chains()
    for slot in (0, 1):
        assert chains.told(0, slot, turn(1, 1)) is None
    assert chains.told(1, 0, turn(1, 2)) == Difference(0, (0, 1), 1, 101, 0)
    assert chains.told(1, 1, turn(1, 1)) is None


def test_chains_are_kept_until_others_may_have_come_to_them_and_not_for_days(monkeypatch):
    monkeypatch.setattr(copies, "KEPT_TURNS", 10)
    chains = Chains()
    for number in range(1000):
        assert chains.told(0, 0, turn(number, number)) is None
    assert sum(map(len, chains._told.values())) <= 10
    assert chains.told(1, 0, turn(995, 995)) is None and chains.compared == 1
    assert chains.told(1, 0, turn(5, 77)) is None, "nobody knows any more"


def tell(chains, replica, slot, numbers, late_us, chain=0):
    """It has turn n at 1000 n, and as much later."""
    for number in numbers:
        chains.told(replica, slot, turn(number, chain or number), 1000 * number + late_us)


def test_who_keeps_up_does_so_in_all_slots_since_it_was_late_last():
    chains = Chains(slots=2, near_us=300)
    tell(chains, 0, 0, range(10), 0)
    assert chains.standings() == {}, "nobody knows yet"
    tell(chains, 1, 0, range(4), 301)
    tell(chains, 1, 0, range(4, 8), 300)
    assert chains.standings() == {}, "one slot has said nothing"
    tell(chains, 1, 1, range(10), 0)
    tell(chains, 0, 1, range(10), 10)
    assert chains.standings()[1] == Standing(4300, 7300) and chains.standings()[0] == Standing(10, 7000)
    tell(chains, 1, 0, (8,), 400)
    assert set(chains.standings()) == {0}
    tell(chains, 1, 0, (9,), 100)
    assert chains.standings()[1] == Standing(9100, 9000)


def test_whoever_is_known_first_may_have_been_later():
    chains = Chains(near_us=300)
    tell(chains, 0, 0, (1,), 500)
    tell(chains, 1, 0, (1,), 0)
    assert chains.standings() == {1: Standing(1000, 1000)}


def test_who_differs_does_not_keep_up():
    chains = Chains(near_us=300)
    tell(chains, 0, 0, range(5), 0)
    tell(chains, 1, 0, range(2), 0)
    tell(chains, 1, 0, range(2, 5), 0, chain=99)
    assert set(chains.standings()) == {0}
