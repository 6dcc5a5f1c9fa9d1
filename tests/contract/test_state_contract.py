"""Every registered state backend behaves like a plain dictionary that can be exported and installed."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from keyshift.state import backends, rows
from keyshift.state.timers import EVENT, PROCESSING

SCHEMA = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])
INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.integers(0, 12) | INT64
VALUES = st.tuples(INT64, st.binary(max_size=40))


def exported(state, chunk_bytes: int) -> dict:
    batches = list(state.export(chunk_bytes))
    assert all(batch.num_rows for batch in batches)
    assert all(batch.schema.names == ["key", "count", "payload"] for batch in batches)
    rows = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    content = {key: tuple(value) for key, *value in rows}
    assert len(content) == len(rows), "a key was exported twice"
    return content


def machine(make):
    class Backend(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.state, self.model = make(SCHEMA), {}
            self.changed = None  # keys, once they are tracked

        def touched(self, key):
            if self.changed is not None:
                self.changed.add(key)

        @rule(key=KEYS, value=VALUES)
        def put(self, key, value):
            self.state.values[key] = value
            self.model[key] = value
            self.touched(key)

        @rule(key=KEYS)
        def get(self, key):
            assert self.state.values[key] == self.model.get(key)

        @rule(key=KEYS)
        def delete(self, key):
            self.state.delete(key)
            self.model.pop(key, None)
            self.touched(key)

        @precondition(lambda self: self.changed is None)
        @rule()
        def track(self):
            self.state.track()
            self.changed = set()

        @precondition(lambda self: self.changed is not None)
        @rule()
        def changes(self):
            assert self.state.changes() == self.changed
            self.changed = set()

        @rule(chunk_bytes=st.integers(1, 500))
        def hand_over(self, chunk_bytes):
            """The unit moves: what arrives is all that is left."""
            there = make(SCHEMA)
            there.install(self.state.export(chunk_bytes))
            self.state, self.changed = there, None

        @rule(content=st.dictionaries(KEYS, VALUES, max_size=5), chunk_bytes=st.integers(1, 500))
        def install_more(self, content, chunk_bytes):
            other = make(SCHEMA)
            for key, value in content.items():
                other.values[key] = value
            self.state.install(other.export(chunk_bytes))
            self.model |= content

        @invariant()
        def it_holds_what_the_dictionary_holds(self):
            assert len(self.state) == len(self.model)
            assert sorted(self.state.keys()) == sorted(self.model)
            assert exported(self.state, 100) == self.model

    return Backend


def maker(name):
    backend = backends.get(name)
    return lambda schema: backend.open("job/0/stage/0", schema, backend.settings()).unit(0)


@pytest.fixture(params=backends.names())
def make(request):
    return maker(request.param)


def test_it_behaves_like_a_dictionary_whatever_is_done_to_it(make):
    run_state_machine_as_test(machine(make), settings=settings(max_examples=50, stateful_step_count=30))


@pytest.mark.parametrize("name", backends.names())
@given(st.dictionaries(KEYS, VALUES, max_size=30), st.integers(1, 2000))
def test_an_export_holds_every_key_once_whatever_the_size_of_its_parts(name, content, chunk_bytes):
    state = maker(name)(SCHEMA)
    for key, value in content.items():
        state.values[key] = value
    assert exported(state, chunk_bytes) == content


def test_the_parts_of_an_export_are_about_as_large_as_asked(make):
    state = make(SCHEMA)
    for key in range(1000):
        state.values[key] = (key, bytes(100))
    sizes = [batch.nbytes for batch in state.export(10_000)]
    assert max(sizes) <= 12_000
    assert 10 <= len(sizes) <= 20


def test_a_value_larger_than_a_part_is_exported_in_a_part_of_its_own_size(make):
    state = make(SCHEMA)
    for key in range(3):
        state.values[key] = (key, bytes(10_000))
    assert exported(state, 100) == {key: (key, bytes(10_000)) for key in range(3)}


def test_an_empty_unit_exports_no_batch_and_installs_nothing(make):
    state = make(SCHEMA)
    assert list(state.export(1000)) == []
    state.install([])
    assert len(state) == 0


def test_what_was_handed_over_does_not_change_with_what_happens_later_at_the_source(make):
    source, destination = make(SCHEMA), make(SCHEMA)
    source.values[1] = (1, b"old")
    destination.install(source.export(1000))
    source.values[1] = (2, b"new")
    source.values[2] = (1, b"new")
    assert exported(destination, 1000) == {1: (1, b"old")}


def test_values_of_several_columns_of_lists_come_back_as_they_were_put(make):
    lists = pa.schema([pa.field("starts", pa.list_(pa.int64())), pa.field("counts", pa.list_(pa.int64()))])
    source, destination = make(lists), make(lists)
    content = {1: ([], []), 2: ([5, -7], [1, 2]), 3: ([0], [9])}
    for key, value in content.items():
        source.values[key] = value
    destination.install(source.export(10))
    assert {key: destination.values[key] for key in content} == content


def filled(make, content):
    state = make(SCHEMA)
    for key, value in content.items():
        state.values[key] = value
    return state


def test_keys_that_arrived_are_known_before_anybody_touches_them(make):
    state = make(SCHEMA)
    state.values[1] = (1, b"old")
    state.install(filled(make, {1: (2, b"new"), 5: (3, b"")}).export(1000))
    assert sorted(state.keys()) == [1, 5]
    state.values[5]
    state.delete(1)
    assert state.keys() == [5]


def test_changes_are_the_keys_put_or_deleted_since_they_are_tracked_and_told_once(make):
    state = filled(make, {1: (1, b"before"), 2: (1, b"before"), 3: (1, b"before")})
    state.track()
    assert state.changes() == set()
    state.values[1] = (2, b"new")
    state.values[1] = (3, b"newer")
    state.values[9] = (1, b"more")
    state.delete(2)
    state.values[3]
    assert state.changes() == {1, 2, 9}
    assert state.changes() == set()
    state.values[3] = (2, b"new")
    assert state.changes() == {3}


def test_what_arrives_is_no_change_and_what_is_done_to_it_is(make):
    state = make(SCHEMA)
    state.track()
    state.install(filled(make, {1: (1, b"a"), 2: (1, b"b")}).export(1000))
    assert state.changes() == set()
    state.values[1] = (2, b"a")
    state.delete(2)
    assert state.changes() == {1, 2}


def test_changes_are_those_of_the_unit_here_and_do_not_travel(make):
    source, destination = filled(make, {1: (1, b"a")}), make(SCHEMA)
    source.track()
    source.values[1] = (2, b"b")
    destination.install(source.export(1000))
    destination.track()
    assert destination.changes() == set()


def test_a_delta_brings_an_older_copy_up_to_date(make):
    """What replication does: the whole once, then changed rows and deleted keys."""
    source = filled(make, {key: (key, b"old") for key in range(100)})
    copy = make(SCHEMA)
    copy.install(source.export(500))
    source.track()
    source.values[5] = (5, b"new")
    source.values[200] = (200, b"new")
    source.delete(7)
    schema = pa.schema([pa.field("key", pa.int64()), *SCHEMA])
    changed = source.changes()
    found = rows.take(source, changed)
    assert sorted(key for key, _ in found) == [5, 200]
    copy.install([rows.pack(schema, found)])
    for key in changed - {key for key, _ in found}:
        copy.delete(key)
    assert exported(copy, 1000) == exported(source, 1000)


@given(st.dictionaries(KEYS, VALUES, max_size=20))
def test_rows_come_out_as_they_were_packed(content):
    schema = pa.schema([pa.field("key", pa.int64()), *SCHEMA])
    batch = rows.pack(schema, content.items())
    assert batch.schema == schema and batch.num_rows == len(content)
    assert dict(rows.unpack(batch)) == content


def test_a_new_unit_has_no_timers(make):
    assert len(make(SCHEMA).timers) == 0


def test_timers_move_apart_from_the_values_and_without_them(make):
    source, destination = make(SCHEMA), make(SCHEMA)
    source.values[1] = (1, b"value")
    source.timers.set(EVENT, 10, 1)
    source.timers.set(PROCESSING, 20, 2)
    source.timers.reach(5, 6)
    destination.install(source.export(1000))
    assert len(destination.timers) == 0
    destination.timers.install(source.timers.export())
    assert destination.timers.due(EVENT, 10) == [(10, 1)]
    assert destination.timers.due(PROCESSING, 20) == [(20, 2)]
    assert (destination.timers.watermark, destination.timers.clock) == (5, 6)
    assert exported(destination, 1000) == {1: (1, b"value")}


def test_units_do_not_share_their_timers(make):
    one, other = make(SCHEMA), make(SCHEMA)
    one.timers.set(EVENT, 10, 1)
    assert len(other.timers) == 0


def test_each_backend_says_in_one_line_what_it_is():
    for _, backend in backends.items():
        assert backend.summary.strip()
        assert "\n" not in backend.summary
