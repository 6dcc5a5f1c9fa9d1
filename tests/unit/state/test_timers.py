import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keyshift.model.errors import ProtocolViolation
from keyshift.state.timers import EVENT, PROCESSING, TIMER_SCHEMA, Agenda, Timers

KINDS = st.sampled_from([EVENT, PROCESSING])
TIMES = st.integers(-5, 20) | st.integers(-(2**63), 2**63 - 1)
KEYS = st.integers(0, 5) | st.integers(-(2**63), 2**63 - 1)


def moved(timers: Timers) -> Timers:
    there = Timers()
    there.install(timers.export())
    return there


class AgainstASet(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.timers, self.model, self.reached = Timers(), set(), [0, 0]

    @rule(kind=KINDS, time_us=TIMES, key=KEYS)
    def set(self, kind, time_us, key):
        self.timers.set(kind, time_us, key)
        self.model.add((kind, time_us, key))

    @rule(kind=KINDS, time_us=TIMES, key=KEYS)
    def delete(self, kind, time_us, key):
        self.timers.delete(kind, time_us, key)
        self.model.discard((kind, time_us, key))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), again=st.booleans())
    def delete_one_that_is_there(self, data, again):
        timer = data.draw(st.sampled_from(sorted(self.model)))
        self.timers.delete(*timer)
        self.model.discard(timer)
        if again:
            self.set(*timer)

    @rule(kind=KINDS, until_us=TIMES)
    def due(self, kind, until_us):
        expected = sorted(timer for timer in self.model if timer[0] == kind and timer[1] <= until_us)
        assert self.timers.keys_due(kind, until_us) == {key for *_, key in expected}
        assert self.timers.due(kind, until_us) == [timer[1:] for timer in expected]
        self.model -= set(expected)

    @rule(watermark=TIMES, now_us=TIMES)
    def reach(self, watermark, now_us):
        self.timers.reach(watermark, now_us)
        self.reached = [max(self.reached[0], watermark), max(self.reached[1], now_us)]

    @rule()
    def hand_over(self):
        left, self.timers = self.timers, moved(self.timers)
        left.set(EVENT, 1, 1)  # what happens at the source later is not of the unit any more
        left.reach(2**62, 2**62)

    @rule(more=st.sets(st.tuples(KINDS, TIMES, KEYS), max_size=3), watermark=TIMES, now_us=TIMES)
    def install_more(self, more, watermark, now_us):
        others = Timers()
        for timer in more:
            others.set(*timer)
        others.reach(watermark, now_us)
        self.timers.install(others.export())
        self.model |= more
        self.reached = [max(self.reached[0], watermark), max(self.reached[1], now_us)]

    @invariant()
    def it_holds_what_the_set_holds(self):
        assert len(self.timers) == len(self.model)
        assert [self.timers.watermark, self.timers.clock] == self.reached
        overdue = False
        for kind, reached in zip((EVENT, PROCESSING), self.reached, strict=True):
            first = min((time_us for k, time_us, _ in self.model if k == kind), default=None)
            assert self.timers.next(kind) == first
            overdue |= first is not None and first <= reached
        assert self.timers.overdue() == overdue


TestTimersBehaveLikeASet = AgainstASet.TestCase


def test_timers_that_are_put_off_or_set_again_and_again_do_not_gather():
    put_off, again = Timers(), Timers()
    for time_us in range(10_000):
        put_off.delete(PROCESSING, time_us, 1)
        put_off.set(PROCESSING, time_us + 1, 1)
        again.set(EVENT, 5, 1)
    assert len(put_off) == len(again) == 1
    assert max(len(pickle.dumps(each)) for each in (put_off, again)) < 3000
    assert put_off.due(PROCESSING, 10_000) == [(10_000, 1)]


@pytest.mark.parametrize(
    "batch, named",
    [
        (pa.RecordBatch.from_pylist([{"kind": 1, "time": 0, "key": 0}]), "expected"),
        (pa.RecordBatch.from_pylist([{"kind": 5, "time": 0, "key": 0}], schema=TIMER_SCHEMA), r"\[5\]"),
    ],
    ids=["other types", "other kind"],
)
def test_a_batch_that_is_no_export_is_refused_and_changes_nothing(batch, named):
    timers = Timers()
    with pytest.raises(ProtocolViolation, match=named):
        timers.install(batch)
    assert len(timers) == 0


# -- agenda ------------------------------------------------------------------------------------------------------------

UNITS = st.integers(0, 2)
MOMENTS = st.integers(0, 20)
CHANGE = st.tuples(st.sampled_from(["set", "delete"]), UNITS, KINDS, st.integers(1, 20))
CHANGE |= st.tuples(st.just("reach"), UNITS, MOMENTS, MOMENTS) | st.tuples(st.just("leave"), UNITS)
CHANGES = st.lists(CHANGE | st.tuples(st.just("due"), MOMENTS, MOMENTS), max_size=30)


@given(CHANGES)
def test_an_agenda_names_every_unit_with_a_timer_that_is_due(changes):
    """Due in the time of the slot, or in that of the unit, which may be ahead."""
    agenda, here = Agenda(), {}
    for name, *arguments in changes:
        if name == "due":
            until = {EVENT: arguments[0], PROCESSING: arguments[1]}
            named = agenda.due(*arguments)
            assert named == sorted(set(named)) and set(named) <= here.keys()
            for unit, timers in here.items():
                reached = {EVENT: timers.watermark, PROCESSING: timers.clock}
                firsts = {kind: timers.next(kind) for kind in until}
                due = any(at is not None and at <= max(until[kind], reached[kind]) for kind, at in firsts.items())
                assert unit in named or not due
            for unit in named:
                agenda.note(unit, here[unit])
            continue
        unit, *rest = arguments
        if name == "leave":
            here.pop(unit, None)
            agenda.forget(unit)
            continue
        timers = here.setdefault(unit, Timers())
        if name == "reach":
            timers.reach(*rest)
        else:
            getattr(timers, name)(*rest, 7)
        agenda.note(unit, timers)


def test_an_agenda_names_a_unit_once_and_not_for_a_timer_that_is_still_to_come():
    agenda, timers = Agenda(), Timers()
    timers.set(EVENT, 10, 1)
    timers.set(EVENT, 12, 2)
    timers.set(PROCESSING, 5, 1)
    agenda.note(3, timers)
    agenda.note(3, timers)
    assert agenda.due(9, 4) == []
    assert agenda.due(10, 5) == [3]
    assert agenda.due(99, 99) == [], "it was not noted again"
    timers.due(EVENT, 10), timers.due(PROCESSING, 5)
    agenda.note(3, timers)
    assert agenda.due(11, 99) == []
    assert agenda.due(12, 0) == [3]
