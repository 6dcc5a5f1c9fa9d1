"""What is written to a savepoint comes back: values, timers and how far each unit had come; damage is noticed.

The store is a dictionary here; tests/integration has the real one.
"""

import itertools
import random
import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import urllib3
from minio.error import MinioException
from small_bucket import KEYED, VALUE, read, state, store_of, write

from keyshift.model.errors import BadInput, Damaged, NotThere, ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.ordering import ChannelPlace, Position
from keyshift.runtime.snapshots import SnapshotPart
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire import savepoint
from keyshift.wire.nodes import RouterSaved, SlotSaved
from keyshift.wire.savepoint import SavedStage, SavepointManifest
from keyshift.workloads.chain import Chain
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.windowcount import WindowCount


def restored(store, *places):
    return installed(*read(store, *places))


def installed(batches, timers):
    made = MemoryState(VALUE)
    made.install(batches)
    made.timers.install(timers)
    return made


def everything(made):
    timers = made.timers
    values = {key: made.values[key] for key in list(made.keys())}
    return values, timers.watermark, timers.clock, timers.due(EVENT, 10**9), timers.due(PROCESSING, 10**9)


def counted(written):
    """A store that reads what was written into another one, and its reads."""
    get = Mock(wraps=written.client.get_object)
    return store_of(client=SimpleNamespace(get_object=get)), get


def units_of(portions):
    return [[each.unit for each in some] for some in portions]


def test_many_units_are_read_at_once_and_not_more_than_a_portion(monkeypatch):
    written = store_of()
    places = {place.unit: [place] for place in write(written, "one", 2, [(unit, state(unit)) for unit in range(9)])}
    store, get = counted(written)
    shuffled = dict(random.Random(1).sample([*places.items()], 9))
    [some] = store.read(shuffled)
    assert [each.unit for each in some] == [*range(9)] and get.call_count == 1
    for each in some:
        assert everything(installed(each.values, each.timers)) == everything(state(each.unit))
    monkeypatch.setattr(savepoint, "PORTION_BYTES", places[0][0].length * 3)
    portions = units_of(store.read(places))
    assert [*itertools.chain(*portions)] == [*range(9)] and max(map(len, portions)) <= 4
    assert get.call_count == 1 + len(portions)
    monkeypatch.setattr(savepoint, "PORTION_UNITS", 2)
    assert set(map(len, units_of(store.read(places)))) == {2, 1}


def test_parts_in_several_segments_are_read_with_one_request_for_each():
    written = store_of()
    store, get = counted(written)
    places = zip(*(write(written, name, 2, [(unit, state(unit)) for unit in range(9)]) for name in "abc"), strict=True)
    [some] = store.read(dict(enumerate(places)))
    for each in some:
        assert everything(installed(each.values, each.timers)) == everything(state(each.unit))
    assert get.call_count == 3


def test_what_lies_between_the_units_that_are_wanted_is_read_only_if_it_is_little(monkeypatch):
    written = store_of()
    places = write(written, "one", 2, [(unit, state(unit)) for unit in range(9)])
    store, get = counted(written)
    wanted = {unit: [places[unit]] for unit in (0, 1, 8)}
    assert units_of(store.read(wanted)) == [[0, 1, 8]] and get.call_count == 1
    monkeypatch.setattr(savepoint, "GAP_BYTES", places[0].length)
    assert units_of(store.read(wanted)) == [[0, 1, 8]] and get.call_count == 3
    lengths = [call.kwargs["length"] for call in get.call_args_list[1:]]
    assert sum(lengths) == sum(places[unit].length for unit in (0, 1, 8))


def test_a_unit_without_keys_keeps_its_timers_and_how_far_it_has_come_and_without_units_nothing_is_written():
    store = store_of()
    assert write(store, "one", 0, []) == [] and not store.client.objects
    (empty, bare) = write(store, "one", 0, [(3, state(3, keys=0)), (4, state(4, keys=0, timers=0))])
    assert read(store, empty)[0] == []
    assert everything(restored(store, empty)) == everything(state(3, keys=0))
    assert everything(restored(store, bare)) == ({}, 4, 8, [], [])


def test_a_large_slot_writes_several_segments_with_each_unit_in_one_and_tells_what_is_made_and_sent(monkeypatch):
    monkeypatch.setattr(savepoint, "SEGMENT_BYTES", 3000)
    store, told = store_of(), []
    places = write(store, "one", 2, [(unit, state(unit)) for unit in range(1, 12)], progress=told.append)
    assert len(store.client.objects) > 2
    assert len(told) > 11 + 2, "after each unit, and with each segment"
    assert sum(told) == 2 * sum(place.length for place in places)
    assert {f"savepoints/job/{place.segment}" for place in places} == store.client.objects.keys()
    assert all(everything(restored(store, place)) == everything(state(place.unit)) for place in places)


def test_what_a_slot_writes_again_does_not_spoil_what_it_acknowledged_before():
    """Its batch was over before all had written, and in the next one the barriers come again."""
    store = store_of()
    first = write(store, "one", 2, [(1, state(1)), (5, state(5))])
    second = write(store, "one", 2, [(1, state(1, keys=7)), (5, state(5))])
    for places, keys in ((first, 3), (second, 7)):
        assert everything(restored(store, places[0])) == everything(state(1, keys=keys))
        assert everything(restored(store, places[1])) == everything(state(5))


def manifest(places, units):
    """As the job makes it of what the slots have acknowledged; ``units``: how many there are."""
    said = {f"slot-{slot}": SlotSaved(tuple(of)) for slot, of in places.items()}
    made = SavepointManifest()
    made.add("counter", said | {"router-0": RouterSaved(7)}, Assignment(1, (0,) * units))
    return made


def test_a_savepoint_exists_when_its_manifest_is_written_and_says_where_each_unit_is():
    store = store_of()
    places = {slot: write(store, "one", slot, [(unit, state(unit)) for unit in (slot, slot + 2)]) for slot in (0, 1)}
    with pytest.raises(ServiceUnavailable, match=r"job/one/manifest\.json cannot be read: .* does not exist"):
        store.locations("one", "counter")
    store.commit("one", manifest(places, 4))
    found = store.locations("one", "counter")
    assert sorted(found) == [0, 1, 2, 3]
    assert everything(restored(store, *found[3])) == everything(state(3))


@pytest.mark.parametrize(("of_slot_1", "wrong"), [([1], "[3]"), ([1, 3, 2], "[2]"), ([1, 3, 9], "[9]"), ([], "[1, 3]")])
def test_a_savepoint_without_each_unit_exactly_once_does_not_come_to_exist(of_slot_1, wrong):
    store = store_of()
    places = {
        slot: write(store, "one", slot, [(unit, state(unit)) for unit in units])
        for slot, units in ((0, [0, 2]), (1, of_slot_1))
    }
    words = re.escape(f"savepoint one: units {wrong} of counter are missing, or in it more")
    with pytest.raises(ProtocolViolation, match=words):
        store.commit("one", manifest(places, 4))
    with pytest.raises(ServiceUnavailable, match="does not exist"):
        store.manifest("one")


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_a_unit_that_is_not_as_it_was_written_is_named(where):
    store = store_of()
    places = write(store, "one", 2, [(unit, state(unit)) for unit in (1, 5)])
    ((name, data),) = store.client.objects.items()
    spoiled = bytearray(data)
    spoiled[places[1].offset + int(places[1].length * where)] ^= 1
    store.client.objects[name] = bytes(spoiled)
    with pytest.raises(ServiceUnavailable, match=r"segment one/2-\w+-0: unit 5 does not have its checksum"):
        read(store, places[1])
    assert everything(restored(store, places[0])) == everything(state(1))


def committed(**made_by):
    """A store with a savepoint of two units of a stage ``counter``."""
    store = store_of()
    places = write(store, "one", "counter-0", [(unit, state(unit)) for unit in (0, 1)])
    manifest = SavepointManifest(**made_by)
    manifest.add("counter", {"slot-0": SlotSaved(tuple(places))}, Assignment(3, (0, 0)))
    store.commit("one", manifest)
    return store


def test_a_manifest_is_read_though_it_has_the_parameters_of_its_job_as_it_had_once():
    store = committed(workload="keycount")
    written, objects = store.manifest("one"), store.client.objects
    [name] = [name for name in objects if name.endswith("manifest.json")]
    objects[name] = objects[name].replace(b'"workload"', b'"parameters":{"keys":3},"workload"')
    assert b"parameters" in objects[name] and store.manifest("one") == written


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda raw: raw[:-20], Damaged, "savepoint one: its manifest.json is damaged, it is no JSON"),
        (lambda raw: b"[3]", Damaged, "its manifest.json is damaged"),
        (lambda raw: b"{}", BadInput, "savepoint one: format = None, and this keyshift reads 2; use the one that made"),
        (lambda raw: raw.replace(b'"format":2', b'"format":1'), BadInput, "savepoint one: format = 1, and this"),
        (lambda raw: raw.replace(b'"places"', b'"place"'), Damaged, r"is damaged: stages\.counter\.places"),
    ],
)
def test_a_manifest_that_this_keyshift_has_not_written_is_refused_in_one_line(spoil, kind, words):
    store = committed()
    [name] = [name for name in store.client.objects if name.endswith("manifest.json")]
    store.client.objects[name] = spoil(store.client.objects[name])
    with pytest.raises(kind, match=words):
        store.locations("one", "counter")
    with pytest.raises(kind, match=words):
        store.require_of("one", KeyCount(key_groups=2))


def test_a_snapshot_of_another_workload_is_refused():
    store = committed(workload="keycount")
    store.require_of("one", KeyCount(key_groups=2))
    of = "savepoint one: it is of keycount with 2 units of counter, and this job is of"
    with pytest.raises(BadInput, match=f"{of} windowcount with 2 units of windows"):
        store.require_of("one", WindowCount(key_groups=2))
    with pytest.raises(BadInput, match=f"{of} keycount with 4 units of counter"):
        store.require_of("one", KeyCount(key_groups=4))
    with pytest.raises(BadInput, match=f"{of} chain with 2 units of counter-1, 2 units of counter-2"):
        store.require_of("one", Chain(key_groups=2))
    with pytest.raises(BadInput, match="savepoint one: it has no stage windows, but counter"):
        store.locations("one", "windows")


@pytest.mark.parametrize(
    "error", [MinioException("no such bucket"), urllib3.exceptions.HTTPError("refused")], ids=["minio", "network"]
)
def test_a_store_that_does_not_answer_is_named_with_what_was_wanted(error):
    store = store_of()
    (place,) = write(store, "one", 2, [(1, state(1))])
    store.client.error = error
    with pytest.raises(ServiceUnavailable, match=r"savepoints/job/two/2-\w+-0 cannot be written: MinIO at m:1"):
        write(store, "two", 2, [(1, state(1))])
    with pytest.raises(ServiceUnavailable, match=r"savepoints/job/one/2-\w+-0 cannot be read: MinIO at m:1") as away:
        read(store, place)
    assert not isinstance(away.value, (Damaged, NotThere))
    with pytest.raises(ServiceUnavailable, match=r"savepoints/job/one/manifest\.json cannot be read"):
        store.manifest("one")


def test_deleting_removes_the_savepoints_of_this_job_only():
    store = store_of("job")
    other = store_of("job-2", store.client)
    write(store, "one", 1, [(1, state(1))])
    store.commit("one", manifest({}, 0))
    other.commit("one", manifest({}, 0))
    store.delete_all()
    assert list(store.client.objects) == ["savepoints/job-2/one/manifest.json"]


def part(unit, whole=None, changed=(), deleted=(), timers=None, number=1, follows=0):
    return SnapshotPart(unit, number, follows, (timers or state(unit)).timers, whole, list(changed), list(deleted))


def test_a_unit_is_read_from_all_its_parts_the_later_over_the_earlier():
    store = store_of()
    later = state(7, timers=1)
    (first,) = store.write("a", 0, [part(1, whole=state(1, keys=5))], KEYED, 100)
    (second,) = store.write("b", 0, [part(1, changed=[(0, (8, b"b")), (9, (8, b"b"))], deleted=[2])], KEYED, 100)
    (third,) = store.write("c", 0, [part(1, changed=[(2, (9, b"c"))], deleted=[9, 3], timers=later)], KEYED, 100)
    (fourth,) = store.write("d", 0, [part(1, timers=later)], KEYED, 100)
    values, *times = everything(restored(store, first, second, third, fourth))
    assert {key: count for key, (count, _) in values.items()} == {0: 8, 1: 1, 2: 9, 4: 1}
    assert times == list(everything(later))[1:]
    assert fourth.length < third.length < first.length


def test_only_the_kept_snapshots_what_they_refer_to_and_newer_ones_stay():
    store = store_of()
    written = {}
    for name, parts in (
        ("snapshot-0", [part(0, whole=state(1)), part(1, whole=state(1))]),
        ("snapshot-1", [part(0, whole=state(2)), part(1, changed=[(0, (2, b""))], number=2, follows=1)]),
        ("snapshot-2", [part(0, changed=[(0, (3, b""))], number=3, follows=1)]),
        ("snapshot-3", [part(0, whole=state(4))]),
        ("other", [part(0, whole=state(5))]),
    ):
        written[name] = store.write(name, 0, parts, KEYED, 100)
    first, second, third = (written[f"snapshot-{number}"] for number in range(3))
    store.commit("snapshot-0", manifest({0: first}, 2))
    store.commit("snapshot-1", manifest({0: [second[0], first[1], second[1]]}, 2))
    store.commit("snapshot-2", manifest({0: [second[0], third[0], first[1], second[1]]}, 2))
    store.keep_only(["snapshot-1", "snapshot-2"], "snapshot-")
    left = {name.removeprefix("savepoints/job/") for name in store.client.objects}
    segments = {place.segment for places in written.values() for place in places}
    assert left == segments | {"snapshot-1/manifest.json", "snapshot-2/manifest.json"}, "a part of the first is needed"
    assert everything(restored(store, *store.locations("snapshot-2", "counter")[1]))[0][0] == (2, b"")
    store.commit("snapshot-4", manifest({0: [*written["snapshot-3"], part_of(written["snapshot-3"][0], 1)]}, 2))
    store.keep_only(["snapshot-4"], "snapshot-")
    left = {name.removeprefix("savepoints/job/") for name in store.client.objects}
    assert left == {written["snapshot-3"][0].segment, written["other"][0].segment, "snapshot-4/manifest.json"}


@pytest.mark.parametrize(
    ("chain", "wrong"),
    [
        ([(2, 1)], "part 2 of unit 0 of counter follows part 1, not nothing"),
        ([(1, 0), (3, 2)], "part 3 of unit 0 of counter follows part 2, not part 1"),
        ([(1, 0), (2, 1), (2, 1)], "part 2 of unit 0 of counter follows part 1, not part 2"),
        ([(1, 0), (2, 0)], "part 2 of unit 0 of counter follows nothing, not part 1"),
    ],
)
def test_a_snapshot_in_which_a_part_does_not_follow_the_one_before_does_not_come_to_exist(chain, wrong):
    store = store_of()
    parts = [part(0, whole=state(0), number=number, follows=follows) for number, follows in chain]
    places = [store.write("a", 0, [each], KEYED, 100)[0] for each in parts]
    with pytest.raises(ProtocolViolation, match=f"savepoint a: {wrong}"):
        store.commit("a", manifest({0: places}, 1))
    with pytest.raises(NotThere):
        store.manifest("a")
    store.commit("b", manifest({0: store.write("b", 0, [part(0, whole=state(0))], KEYED, 100)}, 1))


def test_a_snapshot_that_refers_to_what_the_store_has_lost_does_not_come_to_exist():
    """The store has begun anew, or lets old objects expire."""
    store = store_of()
    [whole] = store.write("a", 0, [part(0, whole=state(0))], KEYED, 100)
    [change] = store.write("b", 0, [part(0, changed=[(0, (3, b""))], number=2, follows=1)], KEYED, 100)
    del store.client.objects[f"savepoints/job/{whole.segment}"]
    with pytest.raises(NotThere, match="savepoint b: 1 of its segments are in the store no more, such as a/"):
        store.commit("b", manifest({0: [whole, change]}, 1))
    assert store.committed("") == []


def test_a_savepoint_is_whole_if_its_manifest_and_every_unit_can_be_read():
    store = committed()
    store.require_whole("one")
    objects = store.client.objects
    kept = dict(objects)
    assert len(kept) > 1
    for name in kept:
        objects[name] = kept[name][:-1]
        with pytest.raises(Damaged):
            store.require_whole("one")
        del objects[name]
        with pytest.raises(NotThere):
            store.require_whole("one")
        objects[name] = kept[name]


def part_of(place, unit):
    return place._replace(unit=unit)


def test_slots_and_senders_that_were_not_there_stand_where_the_others_stood():
    places = ChannelPlace(8 << 3, 7, 2), ChannelPlace(8 << 3, 9, 2)
    saved = SavedStage(Assignment.contiguous(4, 2), {}, {n: Position(places, 8, chain=n + 1) for n in range(2)})
    assert saved.placed(2, 2) == saved.positions
    more = saved.placed(3, 3)
    assert more[0].places == (*places, places[0]) and [more[slot].chain for slot in range(3)] == [1, 2, 0]
    assert {(position.turn, position.time) for position in more.values()} == {(8, 7)}
    assert saved.placed(1, 1)[0].places == places[:1]
    assert SavedStage(Assignment.contiguous(4, 2), {}).placed(2, 2) == {}
