"""Units whose keys are elsewhere, over a real server: every record meets its key once, in order, in every mode."""

import contextlib
import itertools
import random
import threading
from collections import Counter

import pyarrow as pa
import pytest
from small_job import CONFIG, DEADLINE_S, counts, state

from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Mode
from keyshift.runtime.arrow import ArrowOperator
from keyshift.runtime.key_access import RECORD_BYTES, Home, KeyAccess
from keyshift.state import rows
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.stream import Stream
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.state.key_couriers import KeyCouriers
from waits import until

UNIT = 3
VERSIONS = itertools.count(9)  # each test has its own: what another one left under way does not reach it
ACCESS, REMOTE = Mode(transfer="access", background=False), Mode(transfer="remote", background=False)
CACHED = Mode(transfer="remote", background=False, cache=True)


class Recorded(StateClients):
    """Clients that remember what was asked of them, and fail when they are told to."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls, self.failing = [], Counter()

    def _note(self, name, what):
        self.calls.append((name, what))
        if self.failing[name]:
            self.failing[name] -= 1
            raise ServiceUnavailable(f"{name} fails")

    def keys(self, address, stays, moved, written):
        if written:
            self._note("write", written)
        if stays:
            self._note("keys", stays)
        return super().keys(address, stays, moved, written)

    def rest(self, address, stays, arrived):
        self._note("rest", stays)
        return super().rest(address, stays, arrived)

    def asked(self):
        return [key for name, stays in self.calls if name == "keys" for *_, keys in stays for key in keys]


class Slot:
    """A slot that counts events per key, as ``slot_task`` does it: unit 3 has come, its keys are at ``host``."""

    def __init__(self, host, mode, there, uses_time=False):
        self.host, self.lock = host, threading.Lock()
        self.clients = Recorded(CONFIG.token, DEADLINE_S, host.state_schema, CONFIG.chunk_bytes)
        self.states = {UNIT: state({})}
        self.failures, self.done, self.whole = [], [], []  # done: (number, key) of each event
        self.sent, self.errands = 0, []
        operator = ArrowOperator(CONFIG.make_stage(), None, None)
        operator.uses_time = uses_time
        self.keys = KeyAccess(operator, self.states)
        self.couriers = KeyCouriers(self.clients, self.keys, self.turn, self.failures.append)
        self.arrive(mode, there)

    @contextlib.contextmanager
    def turn(self):
        with self.lock:
            yield
            errands, self.keys.errands = self.keys.errands, []
            self.errands += errands
            for errand in errands:
                self.couriers.send(errand)

    def open(self, unit, mode):
        with self.turn():
            self.keys.open(Home(self.host.server.address, mode, (unit, self.version)))

    def arrive(self, mode, there):
        self.version = next(VERSIONS)
        self.stay = UNIT, self.version
        self.host.lent[self.stay] = state(there)
        self.open(UNIT, mode)

    def events(self, *keys, watermark=0):
        with self.turn():
            made = [{"key": key, "unit": UNIT, "number": self.sent + i} for i, key in enumerate(keys)]
            self.sent += len(keys)
            self._process(pa.RecordBatch.from_pylist(made), (0, self.version, 0, watermark))
            self.keys.ask()

    def _process(self, events, where, known=False):
        if not known and (events := self.keys.hold_back(events, where, where[3], 0)) is None:
            return
        for key, number in zip(events["key"].to_pylist(), events["number"].to_pylist(), strict=True):
            count, payload = self.states[UNIT].values[key] or (0, b"payload")
            self.states[UNIT].values[key] = (count + 1, payload)
            self.done.append((number, key))
        self.keys.used([UNIT])

    def drain(self, most=16):
        with self.turn():
            waiting, whole = self.keys.drain(most, 0)
            for record in waiting:
                self._process(*record, known=True)
            self.whole += whole
            self.keys.ask()

    def fetch_rest(self):
        with self.turn():
            if UNIT not in self.whole:
                self.keys.fetch_rest(UNIT)

    def until_done(self):
        until(lambda: len(self.done) == self.sent, self.drain)

    def until_whole(self):
        until(lambda: UNIT in self.whole, self.drain)

    def until_written(self):
        def written():
            with self.lock:
                return not any(changes for _, changes in self.keys.unwritten([self.stay]))

        until(written)

    def home(self):
        """What lives there, by now."""
        there = self.host.rest(self.stay, None)
        found = {key: count for batch in there for key, (count, _) in rows.unpack(batch)}
        return found if self.stay in self.host.lent else None


@pytest.fixture(scope="module")
def host():
    host = SlotHost(CONFIG)
    yield host
    host.server.shutdown()


@pytest.fixture
def make(host):
    made = []

    def slot(mode, there, uses_time=False):
        made.append(Slot(host, mode, there, uses_time))
        return made[-1]

    yield slot
    for each in made:
        each.couriers.close()
        each.clients.close()
        assert not each.failures
    host.lent.clear()


# -- all modes ---------------------------------------------------------------------------------------------------------

MODES = [
    *(Mode(transfer="access", background=background) for background in (False, True)),
    *(Mode(transfer="remote", background=b, cache=c) for b in (False, True) for c in (False, True)),
]
in_all_modes = pytest.mark.parametrize(
    "mode", MODES, ids=lambda m: f"{m.transfer} {'background' * m.background} {'cache' * m.cache}"
)


@pytest.mark.parametrize("uses_time", [False, True], ids=["", "timers"])
@in_all_modes
def test_every_event_is_counted_once_and_in_order_and_the_unit_is_whole_in_the_end(make, mode, uses_time):
    rng = random.Random(7)
    there = {key: 100 * key for key in range(12)}
    slot = make(mode, there, uses_time)
    while slot.sent < 300:
        slot.events(*(rng.randrange(20) for _ in range(rng.randint(1, 7))))  # some keys are new
        for _ in range(rng.randint(0, 2)):
            slot.drain(rng.choice((1, 3, 16)))
    slot.until_done()
    slot.fetch_rest()
    slot.until_whole()
    times = Counter(key for _, key in slot.done)
    assert counts(slot.states[UNIT]) == {key: there.get(key, 0) + times[key] for key in sorted({*there, *times})}
    for key in times:
        numbers = [number for number, of in slot.done if of == key]
        assert numbers == sorted(set(numbers))
    if uses_time:
        assert slot.done == sorted(slot.done), "records of a unit do not overtake each other"
    assert not slot.keys
    until(lambda: slot.home() is None)


@pytest.mark.parametrize("uses_time", [False, True], ids=["", "timers"])
def test_what_waits_for_keys_takes_memory_until_it_is_done(make, uses_time):
    slot = make(ACCESS, {1: 10, 2: 20}, uses_time)
    slot.events(1, 2, 1)
    slot.events(2, 2)
    records = 2 if uses_time else 5
    assert records * RECORD_BYTES <= slot.keys.waiting_bytes < (records + 1) * RECORD_BYTES
    slot.until_done()
    assert slot.keys.waiting_bytes == 0


def test_records_of_other_keys_do_not_wait(make):
    slot = make(ACCESS, {1: 10, 2: 20})
    slot.events(1)
    slot.until_done()
    slot.events(2, 1, 2, 1)
    assert [key for _, key in slot.done] == [1, 1, 1]
    slot.until_done()
    assert counts(slot.states[UNIT]) == {1: 13, 2: 22}


def test_units_that_are_not_partial_are_not_held_back(make):
    slot = make(ACCESS, {})
    slot.states[UNIT + 1] = state({1: 1})
    other = pa.RecordBatch.from_pylist([{"key": 1, "unit": UNIT + 1, "number": 0}])
    assert slot.keys.hold_back(other, (0, slot.version, 0, 0), 0, 0).equals(other)
    assert slot.keys.may_advance(UNIT + 1, 10**9, 10**9)


def test_a_key_is_asked_for_once_and_with_the_others_of_its_time(make):
    slot = make(ACCESS, {1: 10, 2: 20})
    slot.events(1, 2, 1, 9)
    slot.events(2, 9)
    slot.until_done()
    assert sorted(slot.clients.asked()) == [1, 2, 9]
    assert slot.clients.calls[0] == ("keys", [(*slot.stay, [1, 2, 9])])


def test_what_went_over_the_wire_is_measured(make):
    slot = make(REMOTE, {1: 10, 2: 20})
    slot.events(1, 2, 9)
    slot.until_done()
    slot.until_written()
    measures = slot.couriers.measures
    assert measures["fetched_keys"] == 2
    assert measures["fetched_bytes"] >= 2 * len(b"payload") and measures["written_bytes"] >= 3 * len(b"payload")


# -- access: what is used moves ----------------------------------------------------------------------------------------


def test_a_key_lives_where_it_was_used_and_the_others_stay(make):
    slot = make(ACCESS, {1: 10, 2: 20, 3: 30})
    slot.events(1)
    slot.until_done()
    assert counts(slot.states[UNIT]) == {1: 11}
    slot.events(2)
    slot.until_done()
    assert slot.home() == {2: 20, 3: 30}, "the next request says what has moved"
    assert slot.couriers.measures["written_bytes"] == 0
    assert not slot.whole


@pytest.mark.parametrize("keys", [0, 500])
def test_the_rest_follows_once_in_the_background_without_any_record(make, keys):
    there = {key: key for key in range(keys)}
    slot = make(Mode(transfer="access"), there)
    slot.fetch_rest()
    slot.until_whole()
    assert counts(slot.states[UNIT]) == there
    assert [name for name, _ in slot.clients.calls] == ["rest"]
    until(lambda: slot.home() is None)


def test_answers_for_an_earlier_stay_are_not_taken(make):
    """The unit left and has come again, under another version."""
    slot = make(ACCESS, {1: 10})
    before = slot.stay
    slot.fetch_rest()
    slot.until_whole()
    slot.states[UNIT] = state({})
    slot.arrive(ACCESS, {1: 50})
    with slot.turn():
        assert not slot.keys.arrived(before, [1], [(1, (10, b"payload"))])
    slot.events(1)
    slot.until_done()
    assert counts(slot.states[UNIT]) == {1: 51}


def test_how_long_requests_are_gathered_is_said_by_the_step_that_the_unit_came_with(make):
    hours = Mode(transfer="access", background=False, fetch_interval_ms=3_600_000)
    slot = make(hours, {1: 10})
    slot.events(1)
    slot.until_done()
    slot.states[UNIT] = state({})
    slot.arrive(ACCESS, {1: 50})
    slot.events(1)
    slot.until_done()
    assert counts(slot.states[UNIT]) == {1: 51}


# -- remote: keys are used where they live -----------------------------------------------------------------------------


def test_what_was_used_is_written_back_and_the_copy_goes(make):
    slot = make(REMOTE, {1: 10, 2: 20})
    slot.events(1, 1, 9)
    slot.until_done()
    slot.until_written()
    assert slot.home() == {1: 12, 2: 20, 9: 1}
    until(lambda: counts(slot.states[UNIT]) == {})
    slot.events(1, 9)
    slot.until_done()
    slot.until_written()
    assert slot.home() == {1: 13, 2: 20, 9: 2}


def test_with_a_cache_the_copy_stays_and_every_change_is_written_through(make):
    slot = make(CACHED, {1: 10, 2: 20})
    slot.events(1)
    slot.until_done()
    for _ in range(5):
        slot.events(1)
    slot.until_done()
    slot.until_written()
    assert slot.home() == {1: 16, 2: 20}
    assert counts(slot.states[UNIT]) == {1: 16}
    assert slot.clients.asked() == [1]


def test_a_key_that_is_deleted_here_is_deleted_there(make):
    slot = make(REMOTE, {1: 10, 2: 20})
    slot.events(1)
    slot.until_done()
    slot.until_written()
    with slot.turn():
        slot.states[UNIT].delete(2)
        slot.keys.used([UNIT])
    slot.until_written()
    assert slot.home() == {1: 11}


def test_what_only_arrives_is_not_written_back(make):
    slot = make(CACHED, {1: 10})
    slot.fetch_rest()
    slot.until_whole()
    with slot.turn():
        slot.keys.used([UNIT])
    assert [name for name, _ in slot.clients.calls] == ["rest"]


# -- trouble -----------------------------------------------------------------------------------------------------------


def held_up(slot):
    """No request for keys goes out until the door is open; ``slot.waits``: one waits there."""
    door, keys = threading.Event(), slot.clients.keys
    slot.waits = threading.Event()

    def slow(*arguments):
        slot.waits.set()
        assert door.wait(DEADLINE_S)
        return keys(*arguments)

    slot.clients.keys = slow
    return door


def busy(slot):
    """The courier of ``slot`` is on its way, and gathers what else is to be done until the door is open."""
    door = held_up(slot)
    slot.events(999)
    until(slot.waits.is_set)
    return door


@in_all_modes
def test_of_a_unit_that_is_whole_no_changes_are_noted_any_more(make, mode):
    slot = make(mode, dict.fromkeys(range(20), 1))
    slot.events(3, 4)
    slot.fetch_rest()
    slot.until_whole()
    slot.until_done()
    slot.events(*range(20))
    assert not slot.states[UNIT].values.changed


@in_all_modes
def test_a_home_that_does_not_answer_for_a_while_costs_nothing(make, mode):
    slot = make(mode, dict.fromkeys(range(6), 100))
    for call in ("keys", "write", "rest"):
        slot.clients.failing[call] = 1
    for number in range(60):
        slot.events(number % 6, 7)
        slot.drain()
    slot.until_done()
    slot.fetch_rest()
    slot.until_whole()
    assert counts(slot.states[UNIT]) == dict.fromkeys(range(6), 110) | {7: 60}


def test_what_was_written_before_a_failure_counts_as_written_once(make):
    """Or it is not known any more when the last value has arrived, and the copy may go."""
    slot = make(REMOTE, {2: 20})
    door = held_up(slot)
    with slot.turn():
        slot.states[UNIT].values[9] = (1, b"payload")
        slot.keys.used([UNIT])
    slot.clients.failing["keys"] = 1
    slot.events(2)
    with slot.turn():
        slot.states[UNIT].values[9] = (2, b"payload")
        slot.keys.used([UNIT])
    door.set()
    slot.until_done()
    until(lambda: slot.home() == {2: 21, 9: 2})
    slot.events(9)
    slot.until_done()
    until(lambda: counts(slot.states[UNIT]) == {})


def test_what_was_written_is_not_written_again_because_the_rest_does_not_come(make):
    """It would count as written twice, and a copy would go while a later value is on its way."""
    slot = make(REMOTE, {1: 10, 2: 20})
    door = held_up(slot)
    slot.events(2)
    until(slot.waits.is_set)
    with slot.turn():
        slot.states[UNIT].values[9] = (1, b"payload")
        slot.keys.used([UNIT])
        slot.keys.fetch_rest(UNIT)
    slot.clients.failing["rest"] = 1
    door.set()
    slot.until_whole()
    writes = [what for name, what in slot.clients.calls if name == "write"]
    assert [name for name, _ in slot.clients.calls].count("rest") == 2
    assert [key for write in writes for *_, found in write for key, _ in found].count(9) == 1
    slot.until_written()


def test_a_write_that_is_stuck_there_does_not_overwrite_a_later_one(make, monkeypatch):
    """The stream was given up, but whoever served it goes on when he can."""
    plain, door, stuck, ended = SlotHost.write, threading.Event(), threading.Event(), threading.Event()

    def write(self, *arguments):
        if stuck.is_set():
            return plain(self, *arguments)
        stuck.set()
        assert door.wait(DEADLINE_S)
        plain(self, *arguments)
        ended.set()

    monkeypatch.setattr(SlotHost, "write", write)
    streams, read = [], Stream.read
    monkeypatch.setattr(Stream, "read", lambda stream: streams.append(stream) or read(stream))
    slot = make(REMOTE, {1: 10})
    slot.events(1)
    until(stuck.is_set, slot.drain)
    slot.events(1)
    streams[-1].end()  # as if it had been silent for too long
    until(lambda: slot.home() == {1: 12})
    door.set()
    assert ended.wait(DEADLINE_S)
    assert slot.home() == {1: 12}


def test_what_is_to_be_written_does_not_pile_up_while_a_home_does_not_answer(make):
    slot = make(CACHED, {1: 10, 2: 20})
    slot.events(1, 2)
    slot.until_done()
    slot.until_written()
    door, before, errands = busy(slot), len(slot.clients.calls), len(slot.errands)
    for _ in range(200):
        slot.events(1, 2)
    assert len(slot.errands) == errands + 1
    door.set()
    slot.until_done()
    slot.until_written()
    assert slot.home() == {1: 211, 2: 221, 999: 1}
    writes = [what for name, what in slot.clients.calls[before:] if name == "write"]
    assert len(writes) <= 3, "newer values took the place of older ones"


def test_what_changed_while_it_was_written_is_written_again_a_slice_at_a_time(make):
    slot = make(CACHED, {})
    with slot.turn():
        for key in range(600):
            slot.states[UNIT].values[key] = (key, b"payload")
        slot.keys.used([UNIT])
    slot.until_written()
    assert slot.home() == {key: key for key in range(600)}
    sizes = [len(found) for name, written in slot.clients.calls if name == "write" for *_, found in written]
    assert sizes == [256, 256, 88]


@pytest.fixture
def two(make, host):
    """A slot with two units whose keys are elsewhere, and whose rests are asked for together when the door is open."""
    slot = make(ACCESS, dict.fromkeys(range(600), 5))
    other = UNIT + 1, slot.version
    host.lent[other] = state(dict.fromkeys(range(600), 6))
    slot.states[other[0]] = state({})
    slot.open(other[0], ACCESS)
    slot.door = busy(slot)
    with slot.turn():
        slot.keys.fetch_rest(UNIT)
        slot.keys.fetch_rest(UNIT + 1)
    return slot


def test_a_rest_goes_on_where_its_stream_broke(two, monkeypatch):
    plain, read = SlotHost.rest, []

    def breaks(self, stay, after):
        for number, batch in enumerate(plain(self, stay, after)):
            if number == 2:
                raise RuntimeError("the line breaks")
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(SlotHost, "rest", breaks)
    two.door.set()
    until(lambda: sorted(two.whole) == [UNIT, UNIT + 1], two.drain)
    assert counts(two.states[UNIT]) == dict.fromkeys(range(600), 5) | {999: 1}
    assert counts(two.states[UNIT + 1]) == dict.fromkeys(range(600), 6)
    asked = [[(unit, after) for (unit, _), after in stays] for name, stays in two.clients.calls if name == "rest"]
    assert asked == [[(UNIT, None), (UNIT + 1, None)], [(UNIT, 255), (UNIT + 1, None)], [(UNIT + 1, 255)]]


def test_a_unit_that_has_become_whole_is_not_asked_for_again(two, monkeypatch):
    """Because the rest of another one did not come; it may be anywhere by then."""
    plain, whole = two.clients.rest, threading.Event()

    def rest(address, stays, arrived):
        plain(address, stays[:1], arrived)
        if len(stays) > 1:
            assert whole.wait(DEADLINE_S)
            raise ServiceUnavailable("the line breaks")

    monkeypatch.setattr(two.clients, "rest", rest)
    two.door.set()
    until(lambda: two.whole == [UNIT], two.drain)
    del two.states[UNIT]
    whole.set()
    until(lambda: two.whole == [UNIT, UNIT + 1], two.drain)
    assert [len(stays) for name, stays in two.clients.calls if name == "rest"] == [1, 1]


def test_what_still_comes_of_a_unit_that_has_become_whole_is_let_go(make):
    slot = make(ACCESS, {1: 10})
    slot.fetch_rest()
    slot.until_whole()
    del slot.states[UNIT]
    with slot.turn():
        slot.keys.rest_arrived(slot.stay, [1], [(1, (10, b"payload"))], True)


def test_a_record_that_waits_keeps_no_others_in_memory(make):
    slot = make(ACCESS, {1: 10, 2: 20})
    slot.events(1)
    slot.until_done()
    made = [{"key": 2 if number == 7 else 1, "unit": UNIT, "number": number} for number in range(1000)]
    with slot.turn():
        slot.keys.hold_back(pa.RecordBatch.from_pylist(made), (0, slot.version, 0, 0), 0, 0)
        slot.keys.arrived(slot.stay, [2], [(2, (20, b"payload"))])
        [(record, _)], _ = slot.keys.drain(1, 0)
    assert record["number"].to_pylist() == [7]
    assert record.get_total_buffer_size() < 1000
