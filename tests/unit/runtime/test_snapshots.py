"""What a snapshot writes down of each unit: the whole once, later what has changed."""

import gc
import weakref

import pytest
from small_job import counts, state

from keyshift.runtime import snapshots as module
from keyshift.runtime.snapshots import Snapshots
from keyshift.state.timers import EVENT

UNITS = 3


@pytest.fixture
def states():
    return {unit: state(dict.fromkeys(range(4), unit)) for unit in range(UNITS)}


def test_the_first_part_of_a_unit_is_the_whole_and_stays_as_it_was(states):
    parts = Snapshots().take(states)
    assert [part.unit for part in parts] == list(states)
    states[1].values[0] = (9, b"")
    states[1].timers.set(EVENT, 5, 0)
    assert counts(parts[1].whole) == dict.fromkeys(range(4), 1) and not len(parts[1].timers)


def test_later_only_what_has_changed_is_written(states):
    snapshots = Snapshots()
    snapshots.take(states)
    assert snapshots.take(states) == []
    states[1].values[0] = (9, b"")
    states[1].delete(3)
    states[2].timers.set(EVENT, 5, 0)
    first, second = snapshots.take(states)
    assert (first.unit, first.whole, first.changed, first.deleted) == (1, None, [(0, (9, b""))], [3])
    assert (second.unit, second.changed, second.deleted, len(second.timers)) == (2, [], [], 1)
    assert snapshots.take(states) == []


def test_if_something_of_what_was_written_is_gone_all_is_written_anew(states):
    snapshots = Snapshots()
    snapshots.take(states)
    states[1].values[0] = (9, b"")
    assert [(part.unit, part.follows, counts(part.whole)[0]) for part in snapshots.take(states, whole=True)] == [
        (0, 0, 0),
        (1, 0, 9),
        (2, 0, 2),
    ]
    states[1].values[1] = (9, b"")
    (part,) = snapshots.take(states)
    assert (part.number, part.follows, part.changed) == (3, 2, [(1, (9, b""))])


def test_if_no_other_may_follow_nothing_is_noted_and_one_that_does_has_all_as_it_is(states):
    snapshots = Snapshots(tracks=False)
    snapshots.take(states)
    for key in range(100):
        states[1].values[key] = (9, b"")
    assert not states[1].values.changed, "it would grow with the keys"
    assert [(part.unit, part.follows) for part in snapshots.take(states)] == [(unit, 0) for unit in states]
    assert counts(snapshots.take(states)[1].whole) == dict.fromkeys(range(100), 9)


def test_a_unit_whose_state_is_another_one_is_written_whole(states):
    snapshots = Snapshots()
    snapshots.take(states)
    came_back = states | {1: state({7: 7})}
    (part,) = snapshots.take(came_back)
    assert counts(part.whole) == {7: 7}
    del came_back[2]
    assert snapshots.take(came_back) == []
    (part,) = snapshots.take(states | {1: came_back[1]})
    assert part.unit == 2 and part.whole is not None


@pytest.mark.parametrize(("unit", "whole"), [(0, [False, True, False, True]), (1, [False, False, True, False])])
def test_a_unit_is_written_whole_again_when_its_parts_are_many_and_not_all_units_at_once(
    states, monkeypatch, unit, whole
):
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    snapshots = Snapshots()
    snapshots.take(states)
    wholes = []
    for number in range(4):
        states[unit].values[0] = (number, b"")
        (part,) = snapshots.take(states)
        wholes.append(part.whole is not None)
    assert wholes == whole


def test_a_unit_is_written_whole_again_when_its_parts_are_larger_than_the_whole(states):
    snapshots = Snapshots()
    snapshots.take(states)
    states[1].values[0] = (9, b"")
    assert snapshots.take(states)[0].whole is None
    for key in range(4):
        states[1].values[key] = (9, b"")
    assert snapshots.take(states)[0].whole is not None, "5 rows behind 4"


def test_each_part_names_the_one_that_it_follows_and_what_could_not_be_written_is_written_whole_the_next_time(states):
    snapshots, chains = Snapshots(), {unit: [] for unit in states}
    for number in range(4):
        for part in snapshots.take(states):
            chains[part.unit].append((part.number, part.follows))
        states[0].values[0] = (number, b"")
        if number % 2:
            states[1].values[0] = (number, b"")
    assert chains == {0: [(1, 0), (2, 1), (3, 2), (4, 3)], 1: [(1, 0), (3, 1)], 2: [(1, 0)]}
    snapshots.forget(snapshots.take(states))
    (again,) = [part for part in snapshots.take(states) if part.unit == 0]
    assert (again.number, again.follows, counts(again.whole)[0]) == (6, 0, 3)


def test_state_that_has_left_with_its_slot_is_not_kept_alive(states):
    snapshots = Snapshots()
    snapshots.take(states)
    state_of_one = weakref.ref(states[1])
    states.clear()
    gc.collect()
    assert state_of_one() is None
