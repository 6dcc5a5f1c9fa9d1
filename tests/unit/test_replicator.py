"""Copies are kept beside a unit and make its move small; whatever happens to them, the unit arrives as it was."""

import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from small_job import CONFIG, DEADLINE_S, VALUE, counts, state

from keyshift.errors import KeyshiftError
from keyshift.executor.replicator import Replicator
from keyshift.executor.slot_host import Copies, SlotHost
from keyshift.executor.transfer import Parcel, StateClients
from keyshift.state import rows

HOLDER = 1
SCHEMA = pa.schema([pa.field("key", pa.int64()), *VALUE])


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


class Slot:
    """The slot that owns the units, and the process that holds their copies."""

    def __init__(self, host, clients):
        self.host, self.lock = host, threading.Lock()
        self.states = {3: state(dict.fromkeys(range(600), 1)), 4: state({})}
        self.parts, self.acknowledged, self.failures = [], [], []
        self.door = threading.Event()  # parts pass while it is set
        self.door.set()
        self.after_part = lambda: None
        add = host.copies.add

        def copied(slot, unit, number, batches, deleted):
            assert self.door.wait(DEADLINE_S)
            add(slot, unit, number, batches, deleted)
            self.parts.append((unit, number, sum(batch.num_rows for batch in batches)))
            self.after_part()

        host.copies.add = copied
        self.replicator = Replicator(
            SCHEMA,
            clients,
            self.states,
            self.lock,
            lambda slot: host.server.address,
            lambda request, answer: self.acknowledged.append((request, answer)),
            self.failures.append,
        )

    def start(self, request="one", lag_keys=0, whole=False, units=((3, HOLDER), (4, HOLDER))):
        with self.lock:
            self.replicator.start(request, list(units), 0.01, lag_keys, whole)

    def put(self, content, unit=3):
        with self.lock:
            for key, count in content.items():
                self.states[unit].values[key] = (count, b"payload")

    def leave(self, destination=HOLDER, unit=3, **more):
        with self.lock:
            made = self.states.pop(unit)
            return self.replicator.shrink(Parcel(unit, state=made, **more), destination)

    def arrives(self, parcel, slot=HOLDER):
        """The unit, as its destination builds it."""
        made = self.host.copies.take(slot, parcel.unit, parcel.delta_of) if parcel.delta_of is not None else state({})
        batches, deleted = parcel.values(SCHEMA, 1000)
        made.install(list(batches))
        for key in deleted:
            made.delete(key)
        return counts(made)


@pytest.fixture(scope="module")
def served():
    host = SlotHost(CONFIG)
    clients = StateClients(CONFIG.token, 10.0, SCHEMA, CONFIG.chunk_bytes)
    yield host, clients
    clients.close()
    host.server.shutdown()


@pytest.fixture
def slot(served):
    host, clients = served
    host.copies = Copies(CONFIG, VALUE)
    slot = Slot(host, clients)
    yield slot
    slot.door.set()
    slot.replicator.close()
    assert not slot.failures


def test_a_copy_is_made_once_as_a_whole_and_then_of_what_changed(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    slot.put({5: 7, 6: 7, 1000: 1})
    until(lambda: len(slot.parts) == 3)
    assert sorted(slot.parts) == [(3, 0, 600), (3, 1, 3), (4, 0, 0)]


def test_it_is_said_once_that_all_copies_are_close_and_what_that_took(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    slot.put({5: 7})
    until(lambda: len(slot.parts) == 3)
    ((request, answer),) = slot.acknowledged
    assert request == "one"
    assert answer["units"] == 2 and answer["rounds"] >= 2
    assert answer["bytes"] >= sum(batch.nbytes for batch in slot.states[3].export(1000))


def test_copies_are_not_close_while_more_keys_change_than_allowed(slot):
    slot.after_part = lambda: slot.put(dict.fromkeys(range(20), len(slot.parts)))
    slot.start(lag_keys=19)
    until(lambda: len(slot.parts) > 5)
    assert not slot.acknowledged
    slot.after_part = lambda: slot.put(dict.fromkeys(range(19), len(slot.parts)))
    until(lambda: slot.acknowledged)


def test_asking_for_the_same_again_changes_nothing(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    slot.start()
    slot.put({5: 7})
    until(lambda: len(slot.parts) == 3)
    assert [number for unit, number, _ in slot.parts if unit == 3] == [0, 1]


def test_another_request_begins_anew(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    slot.start("two", units=((3, HOLDER),))
    until(lambda: len(slot.acknowledged) == 2)
    assert slot.parts[2:] == [(3, 0, 600)]
    assert slot.acknowledged[1][0] == "two"


def test_a_unit_that_moves_to_its_copy_sends_what_changed_since(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    with slot.lock:  # a round cannot come between
        state = slot.states[3]
        state.values[5] = (7, b"payload")
        state.values[1000] = (1, b"payload")
        state.delete(6)
        expected = counts(state)
        del slot.states[3]
        parcel = slot.replicator.shrink(Parcel(3, 9, 1, state=state), HOLDER)
    assert parcel.delta_of == 0 and parcel.changed == {5, 6, 1000}
    assert (parcel.unit, parcel.version, parcel.hop) == (3, 9, 1)
    assert slot.arrives(parcel) == expected


def test_a_unit_of_which_nothing_changed_sends_nothing(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    parcel = slot.leave()
    assert parcel.delta_of == 0 and not parcel.changed
    assert slot.arrives(parcel) == dict.fromkeys(range(600), 1)


def test_what_changed_while_a_part_was_on_its_way_is_sent_again_with_the_unit(slot):
    """Nobody knows yet whether the part has arrived."""
    slot.start()
    until(lambda: slot.acknowledged)
    slot.door.clear()
    slot.put({5: 7})
    with slot.lock:
        copy = slot.replicator._copies[3]
    until(lambda: copy.pending == {5})
    slot.put({6: 8})
    parcel = slot.leave()
    assert parcel.changed == {5, 6}
    slot.door.set()
    until(lambda: (3, 1, 1) in slot.parts)
    assert slot.arrives(parcel) == dict.fromkeys(range(600), 1) | {5: 7, 6: 8}


@pytest.mark.parametrize(
    "leaves", [{"destination": HOLDER + 1}, {"routers": frozenset({0})}], ids=["elsewhere", "lent"]
)
def test_a_unit_that_does_not_go_to_its_copy_for_good_is_sent_whole(slot, leaves):
    slot.start()
    until(lambda: slot.acknowledged)
    parcel = slot.leave(**leaves)
    assert parcel.delta_of is None
    assert slot.arrives(parcel) == dict.fromkeys(range(600), 1)


def test_a_unit_without_a_copy_is_sent_whole(slot):
    assert slot.leave().delta_of is None
    slot.start(units=((4, HOLDER),))
    until(lambda: slot.acknowledged)
    slot.states[3] = state({1: 1})
    assert slot.leave().delta_of is None


def test_a_unit_whose_first_copy_is_on_its_way_is_sent_whole(slot):
    slot.door.clear()
    slot.start()
    until(lambda: slot.replicator._copies)
    assert slot.leave().delta_of is None


def test_if_so_wished_a_unit_that_has_changed_is_sent_whole(slot):
    slot.start(whole=True)
    until(lambda: slot.acknowledged)
    with slot.lock:
        dirty, clean = slot.states.pop(3), slot.states.pop(4)
        dirty.values[5] = (7, b"payload")
        assert slot.replicator.shrink(Parcel(3, state=dirty), HOLDER).delta_of is None
        assert slot.replicator.shrink(Parcel(4, state=clean), HOLDER).delta_of == 0


def test_a_unit_that_has_left_is_not_copied_any_more(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    slot.leave()
    slot.put({1: 1}, unit=4)
    until(lambda: (4, 1, 1) in slot.parts)
    assert [number for unit, number, _ in slot.parts if unit == 3] == [0]


def test_a_copy_that_was_lost_is_made_anew(slot):
    slot.start()
    until(lambda: slot.acknowledged)
    assert slot.host.copies.take(HOLDER, 3, 0) is not None
    slot.put({5: 7})
    until(lambda: slot.parts.count((3, 0, 600)) == 2)
    parcel = slot.leave()
    assert slot.arrives(parcel) == dict.fromkeys(range(600), 1) | {5: 7}


def test_a_copy_under_load_arrives_as_the_unit_was(slot):
    """Whatever part is under way when it leaves."""
    done = threading.Event()

    def load():
        number = 0
        while not done.is_set():
            number += 1
            with slot.lock:
                unit = slot.states.get(3)
                if unit is not None:
                    unit.values[number % 700] = (number, b"payload")
                    unit.delete((number * 7) % 700)
            time.sleep(0.0005)

    thread = threading.Thread(target=load)
    thread.start()
    slot.start(lag_keys=10**6)
    until(lambda: len([part for part in slot.parts if part[0] == 3]) > 4)
    with slot.lock:
        unit = slot.states.pop(3)
        expected = counts(unit)
        parcel = slot.replicator.shrink(Parcel(3, state=unit), HOLDER)
    done.set()
    thread.join()
    assert parcel.delta_of is not None
    assert slot.arrives(parcel) == expected


# -- copies ------------------------------------------------------------------------------------------------------------


def part(content):
    return [rows.pack(SCHEMA, [(key, (count, b"payload")) for key, count in content.items()])]


@pytest.fixture
def copies():
    return Copies(CONFIG, VALUE)


def test_parts_of_a_copy_follow_each_other(copies):
    copies.add(1, 3, 0, part({1: 1, 2: 1, 3: 1}), [])
    copies.add(1, 3, 1, part({1: 2, 9: 1}), [2])
    assert counts(copies.take(1, 3, 1)) == {1: 2, 3: 1, 9: 1}


@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_part_that_does_not_follow_is_refused_unless_it_is_the_first(copies, number):
    copies.add(1, 3, 0, part({1: 1}), [])
    if number:
        with pytest.raises(KeyshiftError, match=f"part {number} of the copy of unit 3 came after part 0"):
            copies.add(1, 3, number, part({2: 2}), [])
        assert copies.take(1, 3, 0) is None, "what it would have been is not known"
    else:
        copies.add(1, 3, 0, part({2: 2}), [])
        assert counts(copies.take(1, 3, 0)) == {2: 2}


def test_a_part_of_a_copy_that_is_not_there_is_refused(copies):
    with pytest.raises(KeyshiftError, match="part 4 of the copy of unit 3 came after part -1"):
        copies.add(1, 3, 4, part({1: 1}), [])


def test_a_copy_may_have_more_than_was_asked_for_but_not_less(copies):
    copies.add(1, 3, 0, part({1: 1}), [])
    copies.add(1, 3, 1, part({1: 2}), [])
    copies.add(1, 4, 0, part({1: 1}), [])
    assert counts(copies.take(1, 3, 0)) == {1: 2}
    assert copies.take(1, 4, 1) is None


def test_a_copy_is_taken_once_and_by_the_slot_it_is_for(copies):
    copies.add(1, 3, 0, part({1: 1}), [])
    assert copies.take(2, 3, 0) is None
    assert copies.take(1, 3, 0) is not None
    assert copies.take(1, 3, 0) is None


def test_the_host_takes_what_is_for_its_slots_and_names_those_that_are_elsewhere(served):
    host, _ = served
    got = []
    host.tenants[1] = SimpleNamespace(parcels_arrived=lambda parcels: got.extend(parcels) or [True], message=got.append)
    assert host.receive(1, [Parcel(3)]) == [True]
    host.message("units", {"slot": 1, "wanted": [], "opened": []})
    assert got == [Parcel(3), {"slot": 1, "wanted": [], "opened": []}]
    with pytest.raises(KeyshiftError, match="slot 2 is not in this process"):
        host.receive(2, [Parcel(3)])
    del host.tenants[1]
