"""Keys that are elsewhere: what waits, what is asked for once, what may be dropped, and when a unit is whole."""

from keyshift.protocol.absent_keys import AbsentKeys


def opened() -> AbsentKeys[str]:
    made: AbsentKeys[str] = AbsentKeys()
    made.open(4)
    return made


def held() -> AbsentKeys[str]:
    """Records a, b for key 1 and c for key 2 wait; both keys were asked for."""
    made = opened()
    for key, record in ((1, "a"), (1, "b"), (2, "c")):
        made.hold(4, key, record)
    assert made.requests() == {4: [1, 2]}
    return made


def test_a_slice_is_as_large_as_asked_and_what_is_left_is_not_overtaken():
    made = held()
    made.arrived(4, [1, 2])
    assert made.drain(1) == (["a"], [])
    assert made.admit(4, [1]) == {1}, "b still waits: what comes now goes behind it"
    made.hold(4, 1, "d")
    assert made.requests() == {}, "the key is here"
    assert made.drain(2) == (["b", "d"], [])
    assert made.drain(2) == (["c"], [])
    assert made.admit(4, [1, 2]) == set()


def test_a_copy_is_kept_while_records_wait_for_it():
    made = held()
    made.arrived(4, [1, 2])
    assert made.evict(4, [1, 2, 3]) == set()


def test_no_copy_is_dropped_once_the_rest_is_on_its_way():
    """What comes may be older than what was written back."""
    made = opened()
    made.want(4, 1)
    made.arrived(4, [1])
    made.fetch_rest(4)
    assert made.evict(4, [1]) == set()
    assert made.lacks(4, [1]) == set()


def test_a_unit_is_whole_when_the_rest_and_all_that_was_asked_for_is_here():
    made = held()
    made.fetch_rest(4)
    made.arrived_whole(4)
    assert made.admit(4, [2, 3]) == {2, 3}, "an answer is on its way: what comes with it must not be too late"
    assert made.drain(9) == ([], [])
    made.arrived(4, [1, 2])
    assert made.lacks(4, [3]) == set()
    assert made.drain(9) == (["a", "b", "c"], [4])
    assert 4 not in made
