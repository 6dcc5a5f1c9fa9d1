"""What a slot computes: records that have waited give the results that they would have given one by one."""

from operator import itemgetter

import numpy as np
import pyarrow as pa
import pytest
from small_job import CONFIG, TIMED

from keyshift.protocol.slot import SlotMachine
from keyshift.runtime import computation as module
from keyshift.runtime.arrow import ArrowOperator
from keyshift.runtime.computation import Computation
from keyshift.state.memory import MemoryStore
from keyshift.state.timers import EVENT
from keyshift.wire.config import result_schema, slot_schema
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW

WORKLOAD = CONFIG.make_workload()
UNITS = range(4)


class Partial(list):
    """Units without keys, by number: of their keys 1 is missing, and what was held back is remembered."""

    def __init__(self, *units):
        super().__init__(units)
        self.held, self.touched = [], set()

    def hold_back(self, events, where, watermark, now):
        missing = pa.array([key == 1 for key in events["key"].to_pylist()])
        self.held.append((events.filter(missing).num_rows, where))
        return events.filter(pa.array([not each for each in missing.to_pylist()]))

    def used(self, units):
        self.touched.update(units)


def computation_of(workload, machine, states, keys):
    """A computation, and its operator."""
    [stage] = workload.stages
    operator = ArrowOperator(stage, slot_schema(stage), result_schema(stage))
    store = MemoryStore("", stage.operator().state_schema, None)
    made = Computation(operator, machine, keys, store, states, len(UNITS))
    for unit in UNITS:
        made.begin(unit)
    return made, operator


@pytest.fixture
def make():
    return lambda keys=(): computation_of(WORKLOAD, SlotMachine(0, 1, UNITS, [], 1), {}, keys)[0]


def events_of(workload, keys, **columns):
    """Events of one frame, as a router hands them on."""
    schema = slot_schema(workload.stages[0])
    columns |= {"key": keys, "position": range(len(keys)), "unit": workload.units[list(keys)]}
    return pa.RecordBatch.from_pydict({n: pa.array(columns[n], schema.field(n).type) for n in schema.names})


def record(*keys, router=0, version=1, offset=0):
    return events_of(WORKLOAD, keys, t=[7] * len(keys)), (router, version, offset, 0)


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


RECORDS = [record(1, 2, 1, offset=4), record(1, router=1, offset=9), record(5, 1, version=2, offset=5)]


@pytest.mark.parametrize("keys_here", [False, True], ids=["queued", "waited for their keys"])
def test_records_that_waited_are_processed_at_once_with_the_results_of_one_by_one(make, keys_here):
    together, apart = make(), make()
    results = together.process_all(RECORDS, 1, keys_here)
    assert len(results) == 1
    assert rows(results) == [row for each in RECORDS for row in rows(apart.process(*each, 1))]
    assert [row["count"] for row in rows(results) if row["key"] == 1] == [1, 2, 3, 4]
    assert together.heat.tolist() == apart.heat.tolist() and together.heat.sum() == 6


def test_what_was_done_for_partial_units_is_told(make):
    keys = Partial(0)
    make(keys).process_all(RECORDS, 1, keys_here=True)
    assert keys.touched == {int(WORKLOAD.units[key]) for key in (1, 2, 5)}
    assert not keys.held, "their keys are known to be here"


def test_queued_records_of_units_without_their_keys_are_looked_through_one_by_one(make):
    keys = Partial(0)
    results = make(keys).process_all(RECORDS, 1)
    assert [row["key"] for row in rows(results)] == [2, 5]
    assert keys.held == [(2, (0, 1, 4, 0)), (1, (1, 1, 9, 0)), (1, (0, 2, 5, 0))]


def test_an_event_is_counted_once_however_often_it_waited(make):
    """In a queue for its unit, and then for its key."""
    computation = make(Partial(0))
    assert len(rows(computation.process_all([record(1, 2, 1)], 1))) == 1
    computation.process_all([record(1, 1)], 1, keys_here=True)
    expected = np.zeros(len(computation.heat), int)
    np.add.at(expected, WORKLOAD.units[[1, 2, 1]], 1)
    assert computation.heat.tolist() == expected.tolist()


def test_a_frame_is_split_by_unit_in_the_order_of_its_events():
    keys = [5, 1, 2, 1, 5, 7]
    events, _ = record(*keys)
    parts = dict(ArrowOperator.by_unit(None, events))
    assert list(parts) == sorted({int(WORKLOAD.units[key]) for key in keys})
    for unit, part in parts.items():
        of_unit = [row for row in events.to_pylist() if row["unit"] == unit]
        assert part.to_pylist() == of_unit
        assert part.nbytes == events.nbytes * len(of_unit) // len(keys), "what is queued is counted by it"


# -- time --------------------------------------------------------------------------------------------------------------

MS = 1000
WINDOWS = TIMED.make_workload()


class TimedSlot:
    """An operation with units 0 to 3, whose clock is set. Times are in ms."""

    def __init__(self, monkeypatch):
        self.now_ms = 1000
        monkeypatch.setattr(module, "TIMERS_EVERY_US", 0)
        self.machine = SlotMachine(0, 2, UNITS, [], 1)
        self.states = {}
        self.computation, self.operator = computation_of(WINDOWS, self.machine, self.states, ())

    def record(self, met_ms, *events, router=0, offset=0):
        """Events (key, at) of one frame that met a watermark."""
        keys, ats = zip(*events, strict=True)
        times = [at * MS for at in ats]
        return events_of(WINDOWS, keys, t=times, at=times), (router, 1, offset, met_ms * MS)

    def process(self, *record):
        return rows(self.computation.process(*self.record(*record), self.now_ms * MS))

    def timers_due(self, watermark_ms):
        return rows(self.computation.timers_due(watermark_ms * MS, self.now_ms * MS))


@pytest.fixture
def slot(monkeypatch):
    return TimedSlot(monkeypatch)


ONE_OF_EACH = sorted({int(unit): key for key, unit in enumerate(WINDOWS.units)}.values())  # a key of each unit


def test_the_timers_that_are_due_before_a_frame_fire_at_once_and_before_it(slot):
    assert len(ONE_OF_EACH) > 2
    slot.process(1000, *((key, 1000) for key in ONE_OF_EACH))
    batches = slot.computation.process(*slot.record(1030, *((key, 1030) for key in ONE_OF_EACH)), slot.now_ms * MS)
    assert [set(batch["kind"].to_pylist()) for batch in batches] == [{WINDOW}, {ANSWER}]
    assert sorted(batches[0]["key"].to_pylist()) == ONE_OF_EACH
    for name, value in (("router", -1), ("offset", -1), ("version", 1), ("position", -1), ("count", 1)):
        assert set(batches[0][name].to_pylist()) == {value}
    assert batches[1]["count"].to_pylist() == [1] * len(ONE_OF_EACH)


def test_what_a_frame_uses_is_loaded_behind_what_its_timers_use(slot, monkeypatch):
    """A store that keeps no values has those of the last load alone: else it would read the frame's one by one."""
    first, second, *_ = ONE_OF_EACH
    slot.process(1000, (first, 1000))
    done = []
    store, process, advance = slot.computation._store, slot.operator.process, slot.operator.advance

    def load(wanted):
        done.append(sorted(key for _, keys in wanted for key in keys))

    monkeypatch.setattr(store, "load", load)
    monkeypatch.setattr(slot.operator, "process", lambda *of: done.append("process") or process(*of))
    monkeypatch.setattr(slot.operator, "advance", lambda *of: done.append("advance") or advance(*of))
    slot.process(1030, (first, 1030), (second, 1030))
    assert done == [[first], "advance", sorted([first, second]), "process"]


def test_only_the_units_whose_timers_are_due_are_looked_at(slot, monkeypatch):
    first, *others = ONE_OF_EACH
    slot.process(1000, (first, 1000))
    slot.process(1000, *((key, 1020) for key in others))
    looked_at = []
    advance = slot.operator.advance
    monkeypatch.setattr(slot.operator, "advance", lambda some, *of: looked_at.append(len(some)) or advance(some, *of))
    assert slot.timers_due(1029) == [] and looked_at == []
    assert [row["key"] for row in slot.timers_due(1030)] == [first]
    assert looked_at == [1]
    assert sorted(row["key"] for row in slot.timers_due(1050)) == others
    assert looked_at == [1, len(others)], "all of them in one call"
    slot.now_ms += 50
    assert {(row["kind"], row["key"]) for row in slot.timers_due(1050)} == {(IDLE, key) for key in ONE_OF_EACH}
    assert slot.timers_due(9999) == []


def test_a_timer_that_an_event_puts_off_fires_at_its_new_time(slot):
    slot.process(0, (1, 1000))
    slot.now_ms += 30
    slot.process(0, (1, 1000))
    slot.now_ms += 20
    assert slot.timers_due(0) == [], "as the first event set it"
    slot.now_ms += 30
    assert [(row["kind"], row["start"]) for row in slot.timers_due(0)] == [(IDLE, 1030 * MS)]


def test_a_timer_that_is_due_for_the_unit_but_not_yet_for_its_slot_fires(slot):
    slot.states[0].timers.reach(1100 * MS)
    slot.states[0].timers.set(EVENT, 1090 * MS, 0)
    slot.computation.came(0)
    slot.timers_due(1000)
    assert not len(slot.states[0].timers)


def test_records_that_waited_meet_each_its_own_watermark(monkeypatch):
    together, apart = TimedSlot(monkeypatch), TimedSlot(monkeypatch)
    a, b, *_ = ONE_OF_EACH
    met = {a: [(1000, 1000), (1000, 1009), (1030, 1030), (1040, 1029)], b: [(1000, 1000), (1010, 1000), (1030, 1019)]}
    # Unit by unit, as they are drained: the last of each is late, as the second is not.
    waiting = [together.record(of, (key, at), offset=of) for key, some in met.items() for of, at in some]
    results = rows(together.computation.process_all(waiting, 1000 * MS))
    one_by_one = [row for each in waiting for row in rows(apart.computation.process(*each, 1000 * MS))]
    by_key = itemgetter("key")
    assert sorted(results, key=by_key) == sorted(one_by_one, key=by_key) and len(results) == 9
    found = [(row["kind"], row["late"]) for row in results if row["key"] == b]
    assert found == [(ANSWER, False), (ANSWER, False), (WINDOW, False), (ANSWER, True)]
    assert together.computation.heat.tolist() == apart.computation.heat.tolist()
    calls = []
    process = together.operator.process
    together.operator.process = lambda *events: calls.append(events) or process(*events)
    together.computation.process_all(waiting, 1000 * MS)
    assert len(calls) == 3, "as many as there are watermarks in a unit"
