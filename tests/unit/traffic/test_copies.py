"""Which copy of a result counts, and when two replicas are known to differ."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_room import room_of

from keyshift.model.frames import OfTurn
from keyshift.traffic import copies
from keyshift.traffic.copies import Chains, Difference, FirstCopies, FirstResults, Standing, Superseded


def test_the_first_frame_of_each_turn_and_piece_counts_whoever_it_is_of():
    first = FirstCopies()
    came = [(0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 3, 0), (0, 1, 1), (1, 2, 0), (0, 3, 0), (0, 4, 0), (1, 2, 0)]
    assert [first.counts(*frame) for frame in came] == [True, False, True, True, False, True, False, True, False]
    again = [(0, 4, 0), (0, 4, 1)]  # of another replica: the first one has died before that piece
    assert [first.counts(*frame) for frame in again] == [False, True]


UNITS = range(4)


@given(st.integers(0, 2**32))
def test_each_result_of_a_unit_counts_once_wherever_replicas_have_the_unit_and_whoever_is_first(seed):
    """Each has its units in slots of its own, which change; what comes of a log comes in its order."""
    rng = random.Random(seed)
    of_turn = {number: rng.choices(range(4), k=rng.randrange(9)) for number in range(6)}  # units of its results
    logs = {}
    for replica in range(2):
        for number, units in of_turn.items():
            owner = [rng.randrange(2) for _ in UNITS]
            for slot in range(2):
                mine, log = [unit for unit in units if owner[unit] == slot], logs.setdefault((replica, slot), [])
                cuts = sorted(rng.choices(range(len(mine) + 1), k=2))
                pieces = mine[: cuts[0]], mine[cuts[0] : cuts[1]], mine[cuts[1] :]
                log += [(number, piece) for piece in pieces if piece] or [(number, [])]
    found, counted, come = FirstResults(slots=2), [], {}
    while any(logs.values()):
        replica, slot = place = rng.choice([place for place, log in logs.items() if log])
        number, units = logs[place].pop(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copies, "KEPT_TURNS_OF_UNITS", 0)  # whatever may be forgotten is
            first = found.count(replica, slot, number, units)
        for unit, counts in zip(units, first, strict=True):
            nth = come[replica, number, unit] = come.get((replica, number, unit), -1) + 1
            assert counts == ((number, unit, nth) not in counted)
            counted += [(number, unit, nth)] if counts else []
    assert len(counted) == sum(map(len, of_turn.values()))


def test_turns_of_long_ago_are_forgotten_and_no_result_of_them_is_the_first(monkeypatch):
    monkeypatch.setattr(copies, "KEPT_TURNS_OF_UNITS", 3)
    found = FirstResults(slots=1)
    for number in (1, 2, 4, 5, 6):
        assert all(found.count(0, 0, number, UNITS))
    assert not any(found.count(1, 0, 1, UNITS)) and not any(found.count(1, 0, 2, UNITS))
    assert all(found.count(1, 0, 3, UNITS)), "nobody has had it"
    room = room_of(found)
    for number in range(7, 500):
        found.count(0, 0, number, UNITS)
    assert room_of(found) < 2 * room


def test_a_log_that_is_read_far_ahead_of_another_one_takes_nothing_from_it(monkeypatch):
    """A resumed job's collector reads all of its logs once more, some MiB of each at a time."""
    monkeypatch.setattr(copies, "KEPT_TURNS_OF_UNITS", 3)
    found = FirstResults(slots=2)
    for number in range(1, 200):
        assert all(found.count(0, 0, number, [0, 1]))
    room = room_of(found)
    for number in range(1, 200):
        assert all(found.count(0, 1, number, [2] if number % 2 else []))
    assert room_of(found) < room / 2


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


def test_replicas_that_move_one_after_the_other_are_compared_where_they_have_the_same_assignment():
    chains = Chains(near_us=100, apart=True)
    for number, under in ((1, (1, 1)), (2, (2, 1)), (3, (-1, -1)), (4, (2, 2))):
        for replica in (0, 1):
            chain = 7 if number in (1, 4) else replica
            assert chains.told(replica, 0, turn(number, chain), 1000 * number, under[replica]) is None
    assert chains.compared == 2 and set(chains.standings()) == {0, 1}, "who keeps up does so all the time"
    assert chains.told(0, 0, turn(5, 5), 5000, 2) is None
    assert chains.told(1, 0, turn(5, 6), 5000, 2) == Difference(0, (0, 1), 5, 105, 4)


def test_slots_differ_by_themselves():
    chains = Chains()
    for slot in (0, 1):
        assert chains.told(0, slot, turn(1, 1)) is None
    assert chains.told(1, 0, turn(1, 2)) == Difference(0, (0, 1), 1, 101, 0)
    assert chains.told(1, 1, turn(1, 1)) is None


def test_chains_are_kept_until_others_may_have_come_to_them_and_not_for_days(monkeypatch):
    monkeypatch.setattr(copies, "KEPT_TURNS", 10)
    chains, rooms = Chains(), []
    for number in range(1000):
        assert chains.told(0, 0, turn(number, number)) is None
        rooms.append(room_of(chains))
    assert rooms[-1] < 2 * rooms[20]
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


def test_whoever_is_known_first_may_have_been_later_and_who_differs_does_not_keep_up():
    chains = Chains(near_us=300)
    tell(chains, 0, 0, (1,), 500)
    tell(chains, 1, 0, (1,), 0)
    assert chains.standings() == {1: Standing(1000, 1000)}
    chains = Chains(near_us=300)
    tell(chains, 0, 0, range(5), 0)
    tell(chains, 1, 0, range(2), 0)
    tell(chains, 1, 0, range(2, 5), 0, chain=99)
    assert set(chains.standings()) == {0}


def test_how_far_each_is_behind_the_furthest_is_known_of_its_worst_slot_and_of_what_it_told_last():
    chains = Chains(slots=2)
    assert chains.behind() == {}
    for replica, slot, number in ((0, 0, 9), (0, 1, 7), (1, 0, 8), (1, 1, 4)):
        chains.told(replica, slot, turn(number, number))
    assert chains.behind() == {0: 0, 1: 3}
    chains.told(1, 1, turn(9, 9))
    assert chains.behind() == {0: 2, 1: 1}, "each is behind in another slot"
    chains.told(1, 0, turn(2, 2))  # it has died, and comes back from what was written before
    assert chains.behind() == {0: 2, 1: 7}


def test_what_comes_once_more_is_superseded_and_nothing_else():
    done = Superseded(({0: 10, 1: 4}, {0: 8, 1: 4}), {"last": {0: 5}, "first": {0: 3}})
    assert done.covers(0, 0, 9, "last", 0, 6)
    assert not done.covers(0, 0, 10, "last", 0, 6), "the process that goes on has given it"
    assert not done.covers(0, 0, 9, "last", 0, 5), "that process begins behind it"
    assert (done.covers(1, 0, 8, "last", 0, 6), done.covers(1, 0, 7, "last", 0, 6)) == (False, True)
    assert done.covers(0, 0, 9, "first", 0, 4) and not done.covers(0, 0, 9, "first", 0, 3)
    assert done.covers(0, 1, 3, "last", 1, 0), "a slot that had no turn by then"
    left = done.within(({0: 7, 1: 9}, {0: 12, 1: 4}))
    assert left == Superseded(({0: 7, 1: 4}, {0: 8, 1: 4}), done.turns), "Kafka has lost the end of a log"
