"""Copies are kept beside a unit and make its move small; whatever happens to them, the unit arrives as it was."""

import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from small_job import CONFIG, DEADLINE_S, VALUE, counts, state

from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.state import rows
from keyshift.state.memory import MemoryState
from keyshift.wire.nodes import CopiesWanted
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import OfStep, Shipment
from keyshift.worker.slot.host import Copies, SlotHost
from keyshift.worker.state import replicator
from keyshift.worker.state.replicator import COPIES, Replicator
from waits import until

OWNER, HOLDER = 0, 1
SELDOM_S = 3600.0  # between rounds
SCHEMA = pa.schema([pa.field("key", pa.int64()), *VALUE])


def wanted(request, units, every_s, lag_keys=0, whole=False):
    """The order; units of another slot are in it, too."""
    copies = [(unit, OWNER, holder) for unit, holder in units] + [(9, HOLDER, OWNER)]
    return CopiesWanted(request, tuple(copies), every_s, lag_keys, whole)


class Slot:
    """The slot that owns the units, and the process that holds their copies."""

    def __init__(self, host, clients):
        self.host, self.lock = host, threading.Lock()
        self.states = {3: state(dict.fromkeys(range(600), 1)), 4: state({})}
        self.expected = set()
        self.parts, self.acknowledged, self.failures, self.said = [], [], [], []
        self.door = threading.Event()  # parts pass while it is set
        self.door.set()
        self.doors = {}  # of single units, beside that
        self.reached = []  # doors to which a part has come
        self.after_part = lambda: None
        self.last = {}  # slot and unit -> the part of the copy that came last
        self.dropped = []  # copies
        self.away, self.asked = set(), []  # slots that do not listen; those of which that was asked
        add, drop = host.copies.add, host.copies.drop

        def copied(slot, unit, part, batches, deleted):
            door = self.doors.get(unit, self.door)
            self.reached.append(door)
            assert self.door.wait(DEADLINE_S) and door.wait(DEADLINE_S)
            add(slot, unit, part, batches, deleted)
            self.last[slot, unit] = part
            self.parts.append((unit, part[1], sum(batch.num_rows for batch in batches)))
            self.after_part()

        host.copies.add = copied
        host.copies.drop = lambda *what: (drop(*what), self.dropped.append(what))
        self.replicator = self.made(clients, self.states, self.lock)

    def made(self, clients, states, lock):
        shared = SimpleNamespace(
            slot=OWNER,
            core=SimpleNamespace(states=states, machine=SimpleNamespace(expected=self.expected)),
            lock=lock,
            clients=clients,
            host=SimpleNamespace(state_schema=SCHEMA),
            background=SimpleNamespace(failed=self.failures.append),
            coordination=SimpleNamespace(
                acknowledge=lambda node, answer: self.acknowledged.append((node.path.split("/")[1], answer)),
                publish=lambda node, size: self.said.append(size),
            ),
        )
        return Replicator(shared, SimpleNamespace(of=lambda slot: self.host.server.address, listens=self.listens))

    def listens(self, slot):
        self.asked.append(slot)
        return slot not in self.away

    def start(self, request="one", lag_keys=0, whole=False, units=((3, HOLDER), (4, HOLDER)), every_s=0.01):
        with self.lock:
            self.replicator.start(wanted(request, units, every_s, lag_keys, whole))

    def put(self, content, unit=3):
        with self.lock:
            for key, count in content.items():
                self.states[unit].values[key] = (count, b"payload")

    def come(self, unit, content):
        """An expected unit."""
        with self.lock:
            self.states[unit] = state(content)
            self.expected.remove(unit)

    def leave(self, destination=HOLDER, unit=3, **more):
        with self.lock:
            made = self.states.pop(unit)
            return self.replicator.shrink(Shipment(unit, state=made, **more), destination)

    def arrives(self, shipment, slot=HOLDER):
        """The unit, as its destination builds it."""
        made = state({})
        if shipment.delta_of is not None:
            made = self.host.copies.take(slot, shipment.unit, shipment.delta_of)
        label, batches = shipment.leaving("", SCHEMA, 1000)
        made.install(list(batches))
        for key in label.deleted:
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
    host.copies = Copies(lambda slot, unit: MemoryState(VALUE))
    host.tenants = {holder: SimpleNamespace() for holder in (HOLDER, HOLDER + 1)}
    slot = Slot(host, clients)
    yield slot
    for door in (slot.door, *slot.doors.values()):
        door.set()
    slot.replicator.close()
    host.tenants.clear()
    assert not slot.failures


@pytest.fixture
def copied(slot):
    """A slot of whose units there are copies."""
    slot.start()
    until(lambda: slot.acknowledged)
    return slot


def test_a_copy_is_made_once_as_a_whole_and_then_of_what_changed_and_it_is_said_once_that_all_are_close(copied):
    with copied.lock:
        size = sum(batch.nbytes for batch in copied.states[3].export(1000))
    copied.put({5: 7, 6: 7, 1000: 1})
    until(lambda: len(copied.parts) == 3)
    assert sorted(copied.parts) == [(3, 0, 600), (3, 1, 3), (4, 0, 0)]
    ((request, answer),) = copied.acknowledged
    assert request == "one" and answer.units == 2 and answer.rounds >= 2 and answer.bytes >= size
    until(lambda: copied.replicator.copied_bytes > answer.bytes)  # what has changed since is sent, too


def test_what_was_copied_is_told_until_the_copies_are_close(slot, monkeypatch):
    monkeypatch.setattr(replicator, "SAY_S", 0.0)
    slot.start()
    until(lambda: slot.acknowledged)
    ((_, answer),) = slot.acknowledged
    assert slot.said == sorted(slot.said) and slot.said[0] == slot.said[-1] == answer.bytes > 0
    said = len(slot.said)
    slot.put({5: 7})
    until(lambda: (3, 1, 1) in slot.parts)
    assert len(slot.said) == said


def change_after_each_part(slot, numbers, unit=3):
    """So many keys of the unit, one number behind the other, and then the last one again and again."""
    left = [*numbers]

    def change():
        changed = left.pop(0) if len(left) > 1 else left[0]
        slot.put(dict.fromkeys(range(changed), len(slot.parts)), unit)

    slot.after_part = change


@pytest.mark.parametrize(
    ("changes", "rounds", "keys"),
    [([100, 80, 60, 40, 20, 19], 7, 19), ([100, 80, 60, 60], 5, 60)],
    ids=["until no more change than allowed", "until no fewer do"],
)
def test_copies_are_not_close_as_long_as_each_round_brings_them_closer(slot, changes, rounds, keys):
    change_after_each_part(slot, changes)
    slot.start(lag_keys=19, units=((3, HOLDER),))
    until(lambda: slot.acknowledged)
    ((_, answer),) = slot.acknowledged
    assert (answer.rounds, answer.keys) == (rounds, keys)


def test_copies_are_close_behind_the_first_round_if_as_many_keys_may_have_changed_as_there_are(slot):
    change_after_each_part(slot, [100])
    slot.start(lag_keys=600, units=((3, HOLDER),), every_s=SELDOM_S)
    until(lambda: slot.acknowledged)
    ((_, answer),) = slot.acknowledged
    assert (answer.rounds, answer.keys) == (1, 600)
    assert slot.leave().changed == set(range(100)), "what has changed meanwhile comes with the unit"


def test_asking_for_the_same_again_changes_nothing(copied):
    copied.start()
    for number in range(1, 5):  # rounds: within three another request would have been answered
        copied.put({5: 6 + number})
        until(lambda number=number: (3, number, 1) in copied.parts)
    assert [number for unit, number, _ in copied.parts if unit == 3] == [0, 1, 2, 3, 4]
    assert len(copied.acknowledged) == 1


def test_another_request_keeps_what_was_copied_and_counts_what_is_new(slot):
    slot.start(every_s=SELDOM_S)
    until(lambda: slot.acknowledged)
    slot.put({5: 7})
    slot.put({1: 1}, unit=4)
    slot.start("two", units=((3, HOLDER), (4, HOLDER + 1)), every_s=SELDOM_S)
    until(lambda: len(slot.acknowledged) == 2)
    assert slot.parts[2:] == [(3, 1, 1), (4, 0, 1)]
    (_, one), (request, two) = slot.acknowledged
    assert (request, two.rounds, two.units, two.keys) == ("two", 2, 2, 0)
    assert 0 < two.bytes < one.bytes + two.bytes == slot.replicator.copied_bytes, "of both, and each by itself"
    assert slot.arrives(slot.leave()) == dict.fromkeys(range(600), 1) | {5: 7}


def test_what_was_copied_for_a_request_that_never_was_close_counts_for_the_next_one(slot):
    door = slot.doors[4] = threading.Event()
    slot.start()
    until(lambda: door in slot.reached)
    slot.start("two", units=((3, HOLDER),))
    door.set()
    until(lambda: slot.acknowledged)
    ((request, answer),) = slot.acknowledged
    assert slot.parts == [(3, 0, 600), (4, 0, 0)]
    assert request == "two" and answer.bytes == slot.replicator.copied_bytes > 0


# -- rounds that are far apart -----------------------------------------------------------------------------------------


def test_another_request_does_not_wait_for_the_next_round(slot):
    slot.start(every_s=SELDOM_S)
    until(lambda: slot.acknowledged)
    slot.start("two", every_s=SELDOM_S)
    until(lambda: len(slot.acknowledged) == 2)
    _, (_, answer) = slot.acknowledged
    assert len(slot.parts) == 2 and (answer.units, answer.bytes) == (2, 0), "all is there"


def test_rounds_follow_soon_until_copies_are_close(slot, monkeypatch):
    """Who waits for them gives up if nothing is said for long."""
    monkeypatch.setattr(replicator, "SAY_S", 0.01)
    change_after_each_part(slot, [100, 50, 10])
    slot.start(lag_keys=19, units=((3, HOLDER),), every_s=SELDOM_S)
    until(lambda: slot.acknowledged)
    assert slot.acknowledged[0][1].rounds == 4
    assert slot.said[-1] > slot.said[0] > 0


def test_units_that_come_later_are_copied_soon(slot, monkeypatch):
    monkeypatch.setattr(replicator, "SAY_S", 0.01)
    slot.expected.add(5)
    slot.start(units=((4, HOLDER), (5, HOLDER)), every_s=SELDOM_S)
    until(lambda: (4, 0, 0) in slot.parts)
    slot.come(5, {1: 1})
    until(lambda: slot.acknowledged)
    assert (5, 0, 1) in slot.parts


# -- units that come and go --------------------------------------------------------------------------------------------


def test_units_that_come_later_are_copied_too_and_copies_are_not_close_before(slot):
    """Behind a batch boundary into another process units come in the background, while the order is there at once."""
    slot.expected |= {5, 6}
    slot.start(units=((4, HOLDER), (5, HOLDER), (6, HOLDER)))
    until(lambda: (4, 0, 0) in slot.parts)
    slot.come(5, dict.fromkeys(range(100), 1))
    until(lambda: (5, 0, 100) in slot.parts)
    for count in range(2, 6):  # rounds in which little changes
        slot.put({1: count}, unit=5)
        until(lambda count=count: (5, count - 1, 1) in slot.parts)
    assert not slot.acknowledged
    slot.come(6, dict.fromkeys(range(200), 1))
    until(lambda: slot.acknowledged)
    ((_, answer),) = slot.acknowledged
    assert (6, 0, 200) in slot.parts and answer.units == 3 and answer.bytes >= 300 * len(b"payload")
    slot.put({1: 7}, unit=6)
    assert slot.arrives(slot.leave(unit=6)) == dict.fromkeys(range(200), 1) | {1: 7}


def test_a_unit_of_the_order_that_does_not_come_any_more_is_not_waited_for(slot):
    slot.expected.add(5)
    slot.start(units=((4, HOLDER), (5, HOLDER)))
    until(lambda: (4, 0, 0) in slot.parts)
    assert not slot.acknowledged
    with slot.lock:  # it comes and leaves, and no round is between
        slot.expected.remove(5)
        assert slot.replicator.shrink(Shipment(5, state=state({1: 1})), HOLDER + 1).delta_of is None
    until(lambda: slot.acknowledged)
    ((_, answer),) = slot.acknowledged
    slot.states[5] = state({2: 2})  # back again
    for count in (1, 2):
        slot.put({1: count}, unit=4)
        until(lambda count=count: (4, count, 1) in slot.parts)
    assert slot.leave(unit=5).delta_of is None and answer.units == 1


def test_a_unit_that_moves_to_its_copy_sends_what_changed_since(copied):
    with copied.lock:  # a round cannot come between
        state = copied.states[3]
        state.values[5] = (7, b"payload")
        state.values[1000] = (1, b"payload")
        state.delete(6)
        expected = counts(state)
        del copied.states[3]
        shipment = copied.replicator.shrink(Shipment(3, 9, 1, state=state), HOLDER)
    assert shipment.delta_of[1] == 0 and shipment.changed == {5, 6, 1000}
    assert (shipment.unit, shipment.version, shipment.hop) == (3, 9, 1)
    assert copied.arrives(shipment) == expected


def test_what_changed_while_a_part_was_on_its_way_is_sent_again_with_the_unit(copied):
    """Nobody knows yet whether the part has arrived."""
    door = on_its_way(copied)
    copied.put({6: 8})
    shipment = copied.leave()
    assert shipment.changed == {0, 6}
    door.set()
    until(lambda: (3, 1, 1) in copied.parts)
    assert copied.arrives(shipment) == dict.fromkeys(range(600), 1) | {0: 2, 6: 8}


def kept(slot):
    """The copies of ``slot`` that its holders have; they are taken."""
    return {place for place, part in slot.last.items() if slot.host.copies.take(*place, part) is not None}


@pytest.mark.parametrize(
    "leaves",
    [{"destination": HOLDER + 1}, {"routers": frozenset({0})}, {"partial": True}],
    ids=["elsewhere", "lent", "without its keys"],
)
def test_a_unit_that_does_not_go_to_its_copy_for_good_is_sent_whole_and_the_copy_goes(copied, leaves):
    shipment = copied.leave(**leaves)
    assert shipment.delta_of is None
    assert copied.arrives(shipment) == ({} if shipment.partial else dict.fromkeys(range(600), 1))
    until(lambda: copied.dropped)
    assert kept(copied) == {(HOLDER, 4)}


def test_a_unit_without_a_copy_is_sent_whole(slot):
    assert slot.leave().delta_of is None
    slot.start(units=((4, HOLDER),))
    until(lambda: slot.acknowledged)
    slot.states[3] = state({1: 1})
    assert slot.leave().delta_of is None


def test_a_unit_whose_first_copy_is_on_its_way_is_sent_whole(slot):
    slot.door.clear()
    slot.start()
    until(lambda: slot.reached)
    assert slot.leave().delta_of is None


def test_if_so_wished_a_unit_that_has_changed_is_sent_whole(slot):
    slot.start(whole=True)
    until(lambda: slot.acknowledged)
    with slot.lock:
        dirty, clean = slot.states.pop(3), slot.states.pop(4)
        dirty.values[5] = (7, b"payload")
        assert slot.replicator.shrink(Shipment(3, state=dirty), HOLDER).delta_of is None
        assert slot.replicator.shrink(Shipment(4, state=clean), HOLDER).delta_of[1] == 0


def test_a_unit_that_has_left_is_not_copied_any_more(copied):
    copied.leave()
    copied.put({1: 1}, unit=4)
    until(lambda: (4, 1, 1) in copied.parts)
    assert [number for unit, number, _ in copied.parts if unit == 3] == [0]


def test_a_copy_that_was_lost_is_made_anew(copied):
    assert copied.host.copies.take(HOLDER, 3, copied.last[HOLDER, 3]) is not None
    copied.put({5: 7})
    until(lambda: copied.parts.count((3, 0, 600)) == 2)
    shipment = copied.leave()
    assert copied.arrives(shipment) == dict.fromkeys(range(600), 1) | {5: 7}


# -- the end of a batch ------------------------------------------------------------------------------------------------


def on_its_way(slot):
    """A part of the copy of unit 3 that does not arrive before its door opens."""
    door = slot.doors[3] = threading.Event()
    slot.put({0: 2})
    until(lambda: door in slot.reached)
    return door


def test_a_replicator_that_is_closed_in_its_round_leaves_the_units_behind_to_who_has_them_now(served, slot):
    """A part is on its way when the batch ends; the next holder has the same state, and a lock of its own."""
    shut = threading.Event()

    def copy(*part):
        if shut.is_set():
            raise ServiceUnavailable("closed")
        served[1].copy(*part)

    slot.replicator = slot.made(SimpleNamespace(copy=copy), slot.states, slot.lock)
    slot.start()
    until(lambda: slot.acknowledged)
    door = on_its_way(slot)
    with slot.lock:
        slot.replicator.stop()
    shut.set()

    states, lock = {4: slot.states[4]}, threading.Lock()
    following = slot.made(served[1], states, lock)
    with lock:
        following.start(wanted("two", [(4, HOLDER)], every_s=60))
    until(lambda: len(slot.acknowledged) == 2)
    with lock:
        states[4].values[7] = (7, b"payload")
    door.set()
    slot.replicator.close()
    until(lambda: (3, 1, 1) in slot.parts)
    time.sleep(0.1)  # for what a thread of the batch before might do
    with lock:
        shipment = following.shrink(Shipment(4, state=states.pop(4)), HOLDER)
    following.close()
    assert slot.arrives(shipment) == {7: 7}


def test_a_closed_replicator_has_sent_its_last_and_looks_at_no_state(slot):
    looked = []

    class Watched(type(slot.states[4])):
        def changed_keys(self, who):
            looked.append(who)
            return super().changed_keys(who)

    slot.states[4].__class__ = Watched
    slot.start()
    until(lambda: len(looked) > 2)
    with slot.lock:
        slot.replicator.stop()
        looked.clear()
    slot.replicator.close()
    parts = len(slot.parts)
    slot.put({1: 1}, unit=4)
    slot.start("two")
    time.sleep(0.1)
    assert not looked and len(slot.parts) == parts
    assert slot.states[4].changed_keys(COPIES) == {1}


def test_while_others_read_the_states_no_copy_goes_on(copied):
    looked, go_on = threading.Event(), threading.Event()

    class Watched(type(copied.states[4])):
        def changed_keys(self, who):
            looked.set()
            assert go_on.is_set()
            return super().changed_keys(who)

    with copied.lock:
        copied.replicator.pause()
        copied.states[4].__class__ = Watched
        copied.states[4].values[1] = (1, b"payload")
    assert not looked.wait(0.1)
    go_on.set()
    copied.replicator.go_on()
    until(lambda: (4, 1, 1) in copied.parts)


def test_a_replicator_may_be_closed_while_it_pauses(copied):
    with copied.lock:
        copied.replicator.pause()
    copied.replicator.close()


def test_a_replicator_that_is_closed_in_its_round_does_not_say_that_all_copies_are_close(slot):
    change_after_each_part(slot, range(2000, 10, -1), unit=4)  # fewer each time
    slot.start(lag_keys=10)
    until(lambda: len(slot.parts) > 5)
    door = on_its_way(slot)
    with slot.lock:
        slot.replicator.stop()
    door.set()
    slot.replicator.close()
    assert not slot.acknowledged


# -- copies that nobody needs ------------------------------------------------------------------------------------------


def test_copies_of_which_another_request_does_not_speak_go(copied):
    copied.start("two", units=((3, HOLDER + 1), (4, HOLDER)))
    until(lambda: copied.dropped and len(copied.acknowledged) == 2)
    assert kept(copied) == {(HOLDER + 1, 3), (HOLDER, 4)}


def test_of_a_unit_that_is_not_copied_any_more_no_changes_are_noted(copied):
    """Also one that was copied in the batch before, by another replicator. Nobody would ask for them."""
    copied.states[5] = state({})
    copied.states[5].track(COPIES)
    copied.states[4].track("others")
    copied.start("two", units=((3, HOLDER),))
    for unit in (3, 4, 5):
        copied.put({unit: 1}, unit=unit)
    until(lambda: (3, 1, 1) in copied.parts)
    assert copied.states[4].changed_keys("others") == {4} and not copied.states[5].values.changed
    for unit in (4, 5):
        with pytest.raises(KeyError):
            copied.states[unit].changed_keys(COPIES)


def test_a_holder_whose_batch_is_over_keeps_no_copy_and_takes_none(copied, served):
    copied.host.seal(HOLDER, 1, {})
    assert not kept(copied)
    with pytest.raises(ServiceUnavailable, match=f"the batch of slot {HOLDER} is over"):
        served[1].copy(copied.host.server.address, HOLDER, 3, (NEW, 0), part({1: 1}), [])
    assert not kept(copied)


def test_nothing_is_packed_for_a_holder_whose_batch_is_over_until_it_listens_again(copied, monkeypatch):
    packed, pack = [], rows.pack
    monkeypatch.setattr(replicator.rows, "pack", lambda *what: packed.append(what) or pack(*what))
    tenant = copied.host.tenants[HOLDER]
    copied.away.add(HOLDER)
    copied.host.seal(HOLDER, 1, {})
    copied.put({5: 7})
    until(lambda: len(copied.asked) > 5 or len(packed) > 5)
    assert len(packed) == 1 and copied.parts[0] == (3, 0, 600)
    copied.host.tenants[HOLDER] = tenant
    copied.away.clear()
    until(lambda: (3, 0, 600) in copied.parts[1:])


# -- copies ------------------------------------------------------------------------------------------------------------


def part(content):
    return [rows.pack(SCHEMA, [(key, (count, b"payload")) for key, count in content.items()])]


@pytest.fixture
def copies():
    return Copies(lambda slot, unit: MemoryState(VALUE))


OLD, NEW = 88, 5  # epochs: they are drawn, so that none is before another


OF_PARTS = {  # parts that come, what is asked for, and what is there of it
    "they follow each other": ([(NEW, 0, {1: 1, 2: 1, 3: 1}), (NEW, 1, {1: 2, 9: 1}, 2)], (NEW, 1), {1: 2, 3: 1, 9: 1}),
    "it begins anew": ([(NEW, 0, {1: 1}), (NEW, 0, {2: 2})], (NEW, 0), {2: 2}),
    "another beginning replaces it": ([(OLD, 0, {1: 1}), (NEW, 0, {1: 9})], (NEW, 0), {1: 9}),
    "one that an earlier beginning has replaced": ([(NEW, 0, {1: 9}), (OLD, 0, {1: 1})], (NEW, 0), None),
    "it has more than was asked for": ([(NEW, 0, {1: 1}), (NEW, 1, {1: 2})], (NEW, 0), {1: 2}),
    "it has less than was asked for": ([(NEW, 0, {1: 1})], (NEW, 1), None),
}


@pytest.mark.parametrize(("come", "asked", "there"), OF_PARTS.values(), ids=OF_PARTS)
def test_a_copy_is_what_its_parts_make_from_its_beginning_on(copies, come, asked, there):
    for epoch, number, content, *deleted in come:
        copies.add(1, 3, (epoch, number), part(content), deleted)
    copy = copies.take(1, 3, asked)
    assert (copy and counts(copy)) == there


@pytest.mark.parametrize(
    ("come", "late", "why"),
    [
        ([], (NEW, 4), "part 4 of the copy of unit 3 came after part -1"),
        ([NEW], (NEW, 2), "part 2 of the copy of unit 3 came after part 0"),
        ([NEW], (NEW, 3), "part 3 of the copy of unit 3 came after part 0"),
        ([OLD, NEW], (OLD, 1), "part 1 of the copy of unit 3 came after part 0 of another one"),
    ],
)
def test_a_part_that_does_not_follow_is_refused_and_changes_nothing(copies, come, late, why):
    """Its sender took the copy for lost and has begun anew, or belongs to a batch that is over."""
    for epoch in come:
        copies.add(1, 3, (epoch, 0), part({1: 9, 2: 9}), [])
    with pytest.raises(KeyshiftError, match=why):
        copies.add(1, 3, late, part({1: 2}), [2])
    if come:
        assert counts(copies.take(1, 3, (NEW, 0))) == {1: 9, 2: 9}


def test_a_copy_is_taken_once_and_by_the_slot_it_is_for(copies):
    copies.add(1, 3, (NEW, 0), part({1: 1}), [])
    assert copies.take(2, 3, (NEW, 0)) is None
    assert copies.take(1, 3, (NEW, 0)) is not None
    assert copies.take(1, 3, (NEW, 0)) is None


def test_copies_that_nobody_needs_are_dropped_and_no_others(copies):
    for slot, unit in ((1, 3), (1, 4), (1, 5), (2, 3)):
        copies.add(slot, unit, (NEW, 0), part({1: 1}), [])
    for dropped in ((3, NEW), (4, OLD)):  # the second is of a former owner, who says so late
        copies.drop(1, dropped)
    assert copies.take(1, 3, (NEW, 0)) is None and copies.take(1, 4, (NEW, 0)) is not None
    copies.drop(1)
    assert copies.take(1, 5, (NEW, 0)) is None and copies.take(2, 3, (NEW, 0)) is not None


def test_the_host_takes_what_is_for_its_slots_and_names_those_that_are_elsewhere(served):
    host, _ = served
    got = []
    host.tenants[1] = SimpleNamespace(
        shipments_arrived=lambda shipments: got.extend(shipments) or [True], message=got.append
    )
    assert host.receive(1, [Shipment(3)]) == [True]
    host.message(OfStep(1))
    assert got == [Shipment(3), OfStep(1)]
    with pytest.raises(KeyshiftError, match="slot 2 is not in this process"):
        host.receive(2, [Shipment(3)])
    del host.tenants[1]
