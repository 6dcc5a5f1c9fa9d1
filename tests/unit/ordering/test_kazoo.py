"""Turns of kazoo, by hand: two channels, a log that the test writes, and a leader that is asked what it proposes."""

import pytest

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering import LogPlace, Position, Propose, Record, Resign, Setting
from keyshift.ordering.kazoo import MOST, Kazoo
from keyshift.ordering.model import sequence_of
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, TICK, Row

SETTING = Setting(2, 10, session_us=50_000, order_us=1_000)


def data(router, offset, watermark=0, version=1):
    return Row(DATA, router, version, offset, watermark, b"event")


def up_to(router, offset):
    return router, sequence_of(data(router, offset))


def opened():
    return Kazoo(SETTING, Position.begin(SETTING, 1))


def taken(machine):
    turns = []
    while (turn := machine.take(True)) is not None:
        turns.append([(row.router, row.offset) for row in turn.rows] or "barriers")
    return turns


def proposed(machine):
    (effect,) = machine.take_effects()
    assert isinstance(effect, Propose)
    return effect.record


def leader(term=1):
    machine = opened()
    machine.elected(term)
    machine.heard([(0, proposed(machine))])
    return machine


def test_a_record_is_delivered_as_one_turn_when_the_own_channels_are_as_far():
    machine = opened()
    machine.arrived([data(0, 0, 12), data(1, 0)])
    machine.heard([(0, Record(1, 0)), (1, Record(1, 1, 77, (up_to(1, 1), up_to(0, 0))))])
    assert taken(machine) == []
    machine.arrived([data(1, 1, 25)])
    turn = machine.take(True)
    assert [(row.router, row.offset) for row in turn.rows] == [(1, 0), (1, 1), (0, 0)]
    assert (turn.number, turn.met, turn.reached, turn.clock) == (1, 0, 10, 77)


def test_the_clock_does_not_fall_when_another_leader_is_behind():
    machine = opened()
    machine.arrived([data(0, 0), data(0, 1)])
    machine.heard([(0, Record(1, 0)), (1, Record(1, 1, 77, (up_to(0, 0),)))])
    machine.heard([(2, Record(2, 0)), (3, Record(2, 1, 50, (up_to(0, 1),)))])
    assert [machine.take(True).clock for _ in range(2)] == [77, 77]


def test_a_leader_orders_what_comes_though_its_clock_is_set_back():
    machine = leader()
    machine.arrived([data(0, 0)])
    machine.propose(10_000_000)
    machine.heard([(1, proposed(machine))])
    machine.arrived([data(0, 1)])
    machine.propose(5_000_000)
    assert proposed(machine) == Record(1, 2, 5_000_000, (up_to(0, 1),))


def test_a_record_orders_at_most_a_thousand_elements():
    machine = leader()
    machine.arrived([data(0, offset) for offset in range(MOST - 1)] + [data(1, offset) for offset in range(5)])
    machine.propose(10_000)
    assert proposed(machine).entries == (up_to(0, MOST - 2), up_to(1, 0))


def test_a_leader_without_its_record_resigns_when_its_session_is_over():
    machine = leader()
    machine.arrived([data(0, 0)])
    machine.propose(10_000)
    proposed(machine)
    machine.propose(60_000)
    assert machine.take_effects() == []
    machine.propose(60_001)
    assert machine.take_effects() == [Resign()]
    machine.propose(90_000)
    assert machine.take_effects() == []


@pytest.mark.parametrize(
    ("recorded", "last_us"),
    [(False, 5_050_000), (True, 5_050_010)],
    ids=["without its record", "to whom nothing comes any more"],
)
def test_a_leader_resigns_though_its_clock_is_set_back_meanwhile(recorded, last_us):
    machine = leader()
    machine.arrived([data(0, 0)])
    machine.propose(10_000_000)
    record = proposed(machine)
    if recorded:
        machine.heard([(1, record)])
    machine.propose(5_000_000)
    machine.propose(last_us)
    assert machine.take_effects() == []
    machine.propose(last_us + 1)
    assert machine.take_effects() == [Resign()]


def test_a_leader_to_whom_nothing_comes_any_more_resigns_as_others_may_have_what_it_does_not_order():
    machine = leader()
    machine.arrived([data(0, 0)])
    machine.propose(10_000)
    machine.heard([(1, proposed(machine))])
    machine.arrived([Row(TICK, 1, 1, 0, 12)])
    machine.propose(50_000)
    machine.heard([(2, proposed(machine))])
    machine.propose(100_010)
    assert machine.take_effects() == [], "the mark of another channel has come since"
    machine.propose(100_011)
    assert machine.take_effects() == [Resign()]
    machine.propose(200_000)
    assert machine.take_effects() == []


def test_who_leads_when_the_input_has_ended_stays_and_does_not_make_way_for_the_next_one():
    machine = opened()
    machine.arrived([data(0, 0)])
    machine.propose(10_000)
    machine.heard([(0, Record(1, 0)), (1, Record(1, 1, 10_000, (up_to(0, 0),)))])
    assert taken(machine) == [[(0, 0)]]
    machine.elected(2)
    machine.heard([(2, proposed(machine))])
    asked = 0
    for now_us in range(100_000, 3_100_000, 10_000):
        machine.propose(now_us)
        for effect in machine.take_effects():
            asked += 1
            assert effect == Propose(Record(2, asked, now_us))
            machine.heard([(2 + asked, effect.record)])
    assert asked == 5, "at most two in a second"
    assert taken(machine) == [] and machine.position.log == LogPlace(7, 2, 5), "nobody reads them again"


def test_a_leader_that_is_cut_off_before_anything_has_come_to_it_resigns():
    machine = leader()
    machine.propose(10_000)
    machine.propose(509_999)
    assert machine.take_effects() == []
    machine.propose(510_000)
    assert proposed(machine) == Record(1, 1, 510_000)
    machine.propose(560_000)
    assert machine.take_effects() == []
    machine.propose(560_001)
    assert machine.take_effects() == [Resign()]


def test_a_leader_that_wakes_resigns_when_it_reads_another_term_and_its_records_are_dropped():
    machine = leader()
    machine.arrived([data(0, 0)])
    machine.propose(10_000)
    late = proposed(machine)
    machine.heard([(1, Record(2, 0)), (2, late)])
    assert machine.take_effects() == [Resign()]
    assert taken(machine) == []
    machine.elected(2)
    assert machine.take_effects() == [Resign()], "that term is another one's"


def captures(router, offset, name=b"one"):
    return Row(CAPTURE, router, 1, offset, 0, name)


def test_a_capture_cuts_no_record_and_comes_when_all_in_front_of_it_was_delivered():
    machine = opened()
    machine.arrived([data(0, 0), captures(0, 0), data(0, 1), data(1, 0)])
    machine.heard([(0, Record(1, 0)), (1, Record(1, 1, 5, (up_to(0, 1),))), (2, Record(1, 2, 6, (up_to(1, 0),)))])
    assert taken(machine) == [[(0, 0), (0, 1)], [(1, 0)]], "the other router has not said it"
    machine.arrived([captures(1, 0), data(1, 1)])
    assert machine.take(False) is None, "state is elsewhere"
    turn = machine.take(True)
    assert [row.router for row in turn.barriers] == [0, 1] and turn.number == 2
    assert machine.position.log == LogPlace(2, 1, 2)
    again = Kazoo(SETTING, machine.position)
    again.arrived([data(0, 1), data(1, 1)])  # behind the capture: one was delivered
    again.heard([(3, Record(1, 3, 7, (up_to(1, 1),)))])
    assert taken(again) == [[(1, 1)]]


def test_channels_that_have_passed_different_captures_end_the_replica():
    machine = opened()
    machine.arrived([captures(0, -1), captures(1, -1, b"two")])
    with pytest.raises(ProtocolViolation, match="channels have passed different captures: one, two"):
        machine.take(True)


def test_it_is_abreast_when_what_was_ordered_has_come_or_is_behind_a_barrier_here():
    machine = opened()
    assert machine.abreast
    machine.heard([(0, Record(1, 0)), (1, Record(1, 1, 5, (up_to(0, 2),)))])
    machine.arrived([data(0, 0, 10)])
    assert not machine.abreast
    barrier = Row(BARRIER, 0, 2, 0, 0)
    machine.arrived([barrier])
    assert machine.abreast, "the rest may come in the next batch, and this one has to end"
    machine.arrived([data(0, 1, 20, 2), data(0, 2, 20, 2)])
    assert machine.abreast


def test_what_was_ordered_in_front_of_where_the_log_is_read_from_orders_nothing():
    """Also if it comes into the log late: a process before has written it."""
    position = Position.begin(SETTING, 1).read_from(3)
    machine = Kazoo(SETTING, position)
    machine.arrived([data(0, 0), data(0, 1)])
    before = Record(1, 5, 4_000, (up_to(0, 0), up_to(1, 7)))
    machine.heard([(2, before), (3, before._replace(number=6))])
    assert taken(machine) == []
    machine.heard([(4, Record(2, 0)), (5, Record(2, 1, 9_000, (up_to(0, 1),)))])
    assert taken(machine) == [[(0, 0), (0, 1)]]
    assert position.read_from(2) == position and position.read_from(9).log == LogPlace(8)
