import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from small_steps import step

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Assignments, SlotId, Step, Versions, VersionsInJson, hash_keys, units_of


def test_the_hash_of_a_key_never_changes_between_releases():
    # The first outputs of SplitMix64 with seed 0 are the hashes of 0, gamma, 2 gamma, ... (checked by hand below)
    assert hash_keys(np.array([0])).tolist() == [0xE220A8397B1DCDAF]
    assert hash_keys(np.array([1, -1])).tolist() == [_splitmix(1), _splitmix(2**64 - 1)]


def _splitmix(seed: int) -> int:
    mask = 2**64 - 1
    x = (seed + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 1000), st.integers(1, 64))
def test_a_bin_lies_within_its_key_group(keys, key_groups, bins):
    array = np.array(keys, np.int64)
    groups, units = units_of(array, key_groups), units_of(array, key_groups, bins)
    assert groups.dtype == units.dtype == np.int32
    assert ((units >= 0) & (units < key_groups * bins)).all()
    assert (units // bins == groups).all()


def test_keys_spread_evenly_over_groups_and_over_the_bins_of_a_group():
    counts = np.bincount(units_of(np.arange(100_000), 16, 8), minlength=128)
    assert counts.min() > 0.8 * counts.mean()
    assert counts.max() < 1.2 * counts.mean()


@given(st.integers(1, 300), st.data())
def test_a_contiguous_assignment_gives_each_slot_one_range_of_about_equal_size(units, data):
    slots = data.draw(st.integers(1, units))
    assignment = Assignment.contiguous(units, slots)
    sizes = np.bincount(assignment.owner, minlength=slots)
    assert list(assignment.owner) == sorted(assignment.owner) == assignment.slot_of.tolist()
    assert sizes.max() - sizes.min() <= 1 <= sizes.min()
    assert [unit for slot in range(slots) for unit in assignment.units_of(slot)] == list(range(units))


@pytest.mark.parametrize("slots", [0, -1, 9])
def test_an_impossible_number_of_slots_is_named_with_what_is_allowed(slots):
    with pytest.raises(BadInput, match=rf"slots = {slots}.*between 1 and.*8"):
        Assignment.contiguous(8, slots)


@given(st.integers(1, 40), st.integers(1, 6), st.data())
def test_making_the_moves_to_a_target_reaches_it_and_leaves_nothing_to_move(units, slots, data):
    owners = st.lists(st.integers(0, slots - 1), min_size=units, max_size=units)
    current, target = (Assignment(3, tuple(data.draw(owners))) for _ in range(2))
    reached = current.after(Step(current.moves_to(target)))
    assert reached.owner == target.owner
    assert reached.version == 4
    assert reached.moves_to(target) == ()
    assert len(current.moves_to(target)) == sum(a != b for a, b in zip(current.owner, target.owner, strict=True))


def test_a_move_from_a_slot_that_is_not_the_owner_and_an_assignment_that_is_not_newer_are_refused():
    with pytest.raises(BadInput, match="unit 1 belongs to slot 0, not to 5"):
        Assignment(1, (0, 0, 1)).after(step((1, 5, 1)))
    made = Assignments([Assignment(3, (SlotId(0),) * 2)])
    for wrong in (Assignment(3, (SlotId(1),) * 2), Assignment(4, (SlotId(1),) * 3)):
        with pytest.raises(BadInput, match="must be newer than 3, and of 2 units"):
            made.append(wrong)
    assert made.of(7) == made[0], "it still counts"
    with pytest.raises(BadInput, match="assignment 2: there was none by then"):
        made.of(2)


def a_course(seed: int, length: int) -> list[Assignment]:
    """Versions with gaps, most of them under the owners of the one before."""
    rng = np.random.default_rng(seed)
    version, owner, found = 1, [0, 0, 1, 1], []
    for _ in range(length):
        if rng.random() < 0.3:
            owner[rng.integers(4)] = int(rng.integers(3))
        found.append(Assignment(version, tuple(map(SlotId, owner))))
        version += 1 + int(rng.random() < 0.2)
    return found


@given(st.integers(0, 1000), st.integers(0, 20), st.integers(0, 20))
def test_assignments_are_as_they_were_put_in(seed: int, length: int, first: int):
    course = a_course(seed, length)
    whole = Assignments(course)
    joined = Assignments(course[:first]) + Assignments(course[first:])
    read = Assignments.from_json(json.loads(json.dumps(whole.to_json())))
    for made in (whole, joined, read):
        assert list(made) == course and len(made) == len(course) and made == whole
        assert [made.of(each.version) for each in course] == course
        assert not course or (made[-1] == course[-1] and made[0] == course[0])
    joined.append(Assignment(10**6, (SlotId(2),) * 4))
    assert list(whole) == course, "the others are what they were"


def test_assignments_take_no_room_for_versions_under_the_same_owners():
    owner = tuple(SlotId(unit % 4) for unit in range(1000))
    made = Assignments(Assignment(version, tuple(owner)) for version in range(1, 2000))
    assert len(made) == 1999 and made[-1].version == 1999
    assert len(json.dumps(made.to_json())) < 10_000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))))
def test_versions_are_those_that_were_put_in_whatever_they_overlap(spans: list[tuple[int, int]]):
    made, wanted = Versions(), set[int]()
    for first, count in spans:
        made, wanted = made.plus(first, first + count), wanted | {*range(first, first + count)}
    assert sorted(made) == sorted(wanted) and len(made) == len(wanted)
    assert [version for version in range(40) if version in made] == sorted(wanted)
    as_before = TypeAdapter(VersionsInJson).validate_json(json.dumps([*wanted]))
    assert list(as_before) == sorted(wanted) and len(as_before.rows) <= len(made.rows)


def test_versions_in_a_row_take_no_room():
    made = Versions().plus(3, 7).plus(5, 10**15).plus(10**15, 10**15 + 1)
    assert made == Versions(((3, 10**15 + 1),)) and 10**15 in made and 2 not in made
