"""Every registered state backend behaves like a plain dictionary that can be exported and installed."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keyshift.state import backends
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

        @rule(key=KEYS, value=VALUES)
        def put(self, key, value):
            self.state.put(key, value)
            self.model[key] = value

        @rule(key=KEYS)
        def get(self, key):
            assert self.state.get(key) == self.model.get(key)

        @rule(key=KEYS)
        def delete(self, key):
            self.state.delete(key)
            self.model.pop(key, None)

        @rule(chunk_bytes=st.integers(1, 500))
        def hand_over(self, chunk_bytes):
            """The unit moves: what arrives is all that is left."""
            there = make(SCHEMA)
            there.install(self.state.export(chunk_bytes))
            self.state = there

        @rule(content=st.dictionaries(KEYS, VALUES, max_size=5), chunk_bytes=st.integers(1, 500))
        def install_more(self, content, chunk_bytes):
            other = make(SCHEMA)
            for key, value in content.items():
                other.put(key, value)
            self.state.install(other.export(chunk_bytes))
            self.model |= content

        @invariant()
        def it_holds_what_the_dictionary_holds(self):
            assert len(self.state) == len(self.model)
            assert exported(self.state, 100) == self.model

    return Backend


@pytest.fixture(params=backends.names())
def make(request):
    return backends.get(request.param)[0]


def test_it_behaves_like_a_dictionary_whatever_is_done_to_it(make):
    run_state_machine_as_test(machine(make), settings=settings(max_examples=50, stateful_step_count=30))


@pytest.mark.parametrize("name", backends.names())
@given(st.dictionaries(KEYS, VALUES, max_size=30), st.integers(1, 2000))
def test_an_export_holds_every_key_once_whatever_the_size_of_its_parts(name, content, chunk_bytes):
    state = backends.get(name)[0](SCHEMA)
    for key, value in content.items():
        state.put(key, value)
    assert exported(state, chunk_bytes) == content


def test_the_parts_of_an_export_are_about_as_large_as_asked(make):
    state = make(SCHEMA)
    for key in range(1000):
        state.put(key, (key, bytes(100)))
    sizes = [batch.nbytes for batch in state.export(10_000)]
    assert max(sizes) <= 12_000
    assert 10 <= len(sizes) <= 20


def test_a_value_larger_than_a_part_is_exported_in_a_part_of_its_own_size(make):
    state = make(SCHEMA)
    for key in range(3):
        state.put(key, (key, bytes(10_000)))
    assert exported(state, 100) == {key: (key, bytes(10_000)) for key in range(3)}


def test_an_empty_unit_exports_no_batch_and_installs_nothing(make):
    state = make(SCHEMA)
    assert list(state.export(1000)) == []
    state.install([])
    assert len(state) == 0


def test_what_was_handed_over_does_not_change_with_what_happens_later_at_the_source(make):
    source, destination = make(SCHEMA), make(SCHEMA)
    source.put(1, (1, b"old"))
    destination.install(source.export(1000))
    source.put(1, (2, b"new"))
    source.put(2, (1, b"new"))
    assert exported(destination, 1000) == {1: (1, b"old")}


def test_values_of_several_columns_of_lists_come_back_as_they_were_put(make):
    lists = pa.schema([pa.field("starts", pa.list_(pa.int64())), pa.field("counts", pa.list_(pa.int64()))])
    source, destination = make(lists), make(lists)
    content = {1: ([], []), 2: ([5, -7], [1, 2]), 3: ([0], [9])}
    for key, value in content.items():
        source.put(key, value)
    destination.install(source.export(10))
    assert {key: destination.get(key) for key in content} == content


def test_a_new_unit_has_no_timers(make):
    assert len(make(SCHEMA).timers) == 0


def test_timers_move_apart_from_the_values_and_without_them(make):
    source, destination = make(SCHEMA), make(SCHEMA)
    source.put(1, (1, b"value"))
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
    for _, (_, text) in backends.items():
        assert text.strip()
        assert "\n" not in text
