"""What all stores with a table have in common, on a table that is a dictionary: nothing is lost between here and there,
and a frame is one exchange.
"""

import gc
import itertools
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keyshift.checks import check_backend
from keyshift.checks.backend import SCHEMA, Watched, exported
from keyshift.model.errors import ServiceUnavailable
from keyshift.state import Backend
from keyshift.state.cached import CachedStore
from keyshift.state.memory import MemoryState
from keyshift.state.table import Table

KINDS = {"without a cache": (0, True), "written through": (3000, True), "written back": (3000, False)}


class DictTable(Table):
    """Its regions are numbers, with a dictionary for each. ``exchanges`` counts them; ``broken`` refuses all."""

    def __init__(self):
        super().__init__()
        self.regions, self._numbers, self.exchanges, self.broken = {}, itertools.count(), [], False

    def region(self, unit):
        region = next(self._numbers)
        self.regions[region] = {}
        return region

    def copied_region(self, region):
        other = self.region(0)
        self.regions[other] = dict(self.regions[region])
        return other

    def exchange(self, written, wanted):
        if self.broken:
            raise ServiceUnavailable("the table is away")
        self.exchanges.append((written, wanted))
        for region, changes in written:
            for key, value in changes.items():
                if value is None:
                    self.regions[region].pop(key, None)
                else:
                    self.regions[region][key] = value
        return [[self.regions[region].get(key) for key in keys] for region, keys in wanted]

    def scan(self, region):
        return iter(list(self.regions[region].items()))

    def drop(self, regions):
        for region in regions:
            del self.regions[region]

    def close(self):
        self.regions.clear()


def dict_store(keep_bytes=3000, through=False, schema=SCHEMA):
    return CachedStore(DictTable(), schema, keep_bytes, through)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_it_keeps_the_promises_of_a_backend(kind):
    check_backend(Backend(lambda slot, schema, settings: dict_store(*kind, schema), "a dictionary"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_two_states_of_one_store_are_like_two_dictionaries_whatever_grows_old_when(kind):
    keys = st.integers(0, 20)

    class Frames(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.store = dict_store(*kind)
            self.both = [Watched(self.store), Watched(self.store)]
            self.seen = weakref.WeakSet()

        @rule(frame=st.lists(st.tuples(st.booleans(), keys), max_size=8), value=st.binary(max_size=300))
        def frame(self, frame, value):
            wanted = {0: set(), 1: set()}
            for which, key in frame:
                wanted[which].add(key)
            self.seen.update(watched.state.values for watched in self.both)  # of states that have left, too
            before, unseen = len(self.store.table.exchanges), sum(bool(cells.blind) for cells in self.seen)
            self.store.load((self.both[which].state, some) for which, some in wanted.items())
            for which, key in frame:
                self.both[which].get(key)
                self.both[which].put(key, (key, value))
            # One more for a change of generations, and for each state with keys that were set before they were loaded.
            assert len(self.store.table.exchanges) - before <= 2 + unseen

        @rule(which=st.booleans(), key=keys)
        def delete(self, which, key):
            self.both[which].delete(key)

        @rule(which=st.booleans())
        def hand_over(self, which):
            self.both[which].hand_over(100)

        @rule(which=st.booleans(), content=st.dictionaries(keys, st.tuples(keys, st.binary(max_size=9)), max_size=4))
        def install(self, which, content):
            self.both[which].install(content, 100)

        @invariant()
        def each_has_what_it_was_given(self):
            for watched in self.both:
                assert exported(watched.state, 100) == watched.content

        def teardown(self):
            for watched in self.both:
                watched.compare()

    run_state_machine_as_test(Frames, settings=settings(max_examples=60, stateful_step_count=30))


def test_a_frame_is_one_exchange_that_also_writes_what_the_frame_before_has_set():
    store = dict_store(0, True)
    states = [store.unit(0), store.unit(1)]
    for frame in range(5):
        store.load((state, {1, 2, 3}) for state in states)
        for state in states:
            for key in (1, 2, 3):
                assert state.values[key] == ((frame - 1, b"") if frame else None)
                state.values[key] = frame, b""
    assert len(store.table.exchanges) == 5
    written, wanted = store.table.exchanges[-1]
    assert [len(changes) for _, changes in written] == [3, 3] and [len(keys) for _, keys in wanted] == [3, 3]


def test_what_is_in_use_stays_and_memory_does_not_grow_with_the_state():
    store = dict_store(100_000, False)
    state = store.unit(0)
    for begin in range(0, 5000, 10):
        store.load([(state, {0, *range(begin, begin + 10)})])
        for key in (0, *range(begin, begin + 10)):
            state.values[key] = begin, bytes(100)
    asked = [keys for _, wanted in store.table.exchanges for _, keys in wanted]
    assert sum(keys.count(0) for keys in asked) == 1
    assert len(state.values) + len(state.values.old) < 700
    assert len(state) == 5000


def test_a_state_that_nobody_refers_to_any_more_is_dropped():
    store = dict_store()
    state = store.unit(0)
    state.values[1] = 1, b""
    copy = state.copy()
    assert len(store.table.regions) == 2
    del copy
    gc.collect()
    store.load([(state, {2})])
    assert len(store.table.regions) == 1 and exported(state, 100) == {1: (1, b"")}


@pytest.mark.parametrize("state", [dict_store().unit(0), MemoryState(SCHEMA)], ids=["cached", "memory"])
def test_what_nobody_tracks_any_more_takes_no_memory_however_much_changes(state):
    values, kind = state.values, type(state.values)
    for who in ("one", "other"):
        state.track(who)
    for who in ("one", "other"):
        values[1] = 1, b""
        state.untrack(who)
    for key in range(100):
        values[key] = key, b""
        state.delete(key)
    assert not values.changed
    with pytest.raises(KeyError):
        state.changed_keys("one")
    assert state.values is values and type(values) is kind, "as fast as before"


def test_what_could_not_be_written_is_written_later():
    store = dict_store(0, True)
    state = store.unit(0)
    store.load([(state, {1})])
    state.values[1] = 7, b"kept"
    store.table.broken = True
    with pytest.raises(ServiceUnavailable):
        store.load([(state, {1})])
    store.table.broken = False
    store.load([(state, {1})])
    assert state.values[1] == (7, b"kept")
    assert store.packing.unpack(store.table.regions[0][1]) == (7, b"kept")


def test_take_reads_all_that_is_not_here_at_once_and_keeps_none_of_it():
    store = dict_store()
    state, source = store.unit(0), store.unit(1)
    for key in range(100):
        source.values[key] = key, b""
    state.install(source.export(1000))
    state.values[3] = 33, b"newer"
    store.table.exchanges.clear()
    assert state.take(range(2, 200)) == [(k, (33, b"newer") if k == 3 else (k, b"")) for k in range(2, 100)]
    assert len(store.table.exchanges) == 1 and len(state.values) == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_handed_over_is_cut_in_the_same_parts_again_whatever_the_store_writes_meanwhile(kind):
    """So a stream that broke can go on where it broke."""
    store = dict_store(*kind)
    leaving, staying = store.unit(0), store.unit(1)
    for begin in range(0, 60, 5):  # some are written, old or young when it leaves
        store.load([(leaving, range(begin, begin + 5))])
        for key in range(begin, begin + 5):
            leaving.values[key] = key, bytes(50)
    assert leaving.hand_over() is None
    sent = [batch["key"].to_pylist() for batch in leaving.export(300)]
    assert len(sent) > 5 and sorted(itertools.chain(*sent)) == list(range(60))
    for begin in range(0, 200, 5):
        store.load([(staying, range(begin, begin + 5))])
        for key in range(begin, begin + 5):
            staying.values[key] = key, bytes(50)
        assert leaving.hand_over() is None
        assert [batch["key"].to_pylist() for batch in leaving.export(300)] == sent
    assert sorted(exported(staying, 300)) == list(range(200))
