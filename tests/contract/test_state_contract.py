"""Every registered state backend behaves like a plain dictionary that can be exported and installed."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyshift.checks import check_backend
from keyshift.checks.backend import SCHEMA, Watched, exported
from keyshift.model.errors import ContractBroken
from keyshift.state import Backend, backends, rows
from keyshift.state.memory import MemoryState, MemoryStore

INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.integers(0, 12) | INT64
VALUES = st.tuples(INT64, st.binary(max_size=40))
SIZES = st.integers(1, 500)
CALLS = st.one_of(  # of methods of ``Watched``, by their names
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("load"), st.lists(KEYS, max_size=5)),
    st.tuples(st.just("take"), st.lists(KEYS, max_size=5, unique=True)),
    st.tuples(st.just("changed_keys")),
    st.tuples(st.just("untrack")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("hand_over"), SIZES),
    st.tuples(st.just("install"), st.dictionaries(KEYS, VALUES, max_size=5), SIZES),
)


@pytest.fixture(scope="module", autouse=True)
def served(tmp_path_factory):
    """What the backends need, once for all tests: settings by name."""
    with contextlib.ExitStack() as stack:
        for name, backend in backends.items():
            served = backend.served(backend.settings(), "job", tmp_path_factory.mktemp(name))
            SETTINGS[name] = stack.enter_context(served)
        yield


SETTINGS = {}


def opened(name):
    return backends.get(name).open("job/0/stage/0", SCHEMA, SETTINGS[name])


@pytest.mark.parametrize("name", backends.names())
def test_it_passes_the_check_that_anybody_can_call(name):
    check_backend(backends.get(name))


@pytest.mark.parametrize("value", [(1,), (1, b"", 2)])
@pytest.mark.parametrize("name", backends.names())
def test_a_value_with_more_or_fewer_fields_than_its_schema_is_refused_when_it_leaves_at_the_latest(name, value):
    with contextlib.closing(opened(name)) as store:
        state = store.unit(9)
        state.values[1] = value
        with pytest.raises(ValueError):
            list(state.export(1000))
        del state.values[1]


@pytest.mark.parametrize("name", backends.names())
@settings(max_examples=settings.default.max_examples // 5)
@given(calls=st.integers(1, 60).flatmap(lambda many: st.lists(CALLS, min_size=many, max_size=many)))
def test_it_behaves_like_a_dictionary_whatever_is_done_to_it(name, calls):
    with contextlib.closing(opened(name)) as store:
        watched = Watched(store)
        for method, *values in calls:
            getattr(watched, method)(*values)
            watched.compare()


@pytest.mark.parametrize("name", backends.names())
@given(st.dictionaries(KEYS, VALUES, max_size=30), st.integers(1, 2000))
def test_an_export_holds_every_key_once_whatever_the_size_of_its_parts(name, content, chunk_bytes):
    store = opened(name)
    state = store.unit(0)
    for key, value in content.items():
        state.values[key] = value
    assert exported(state, chunk_bytes) == content
    store.close()


@given(st.dictionaries(KEYS, VALUES, max_size=20))
def test_rows_come_out_as_they_were_packed(content):
    schema = pa.schema([pa.field("key", pa.int64()), *SCHEMA])
    batch = rows.pack(schema, content.items())
    assert batch.schema == schema and batch.num_rows == len(content)
    assert dict(rows.unpack(batch)) == content


class Broken(MemoryState):
    """Does not keep one promise."""


class Forgets(Broken):
    def export(self, chunk_bytes):
        return list(super().export(chunk_bytes))[1:]


class KeepsWhatIsDeleted(Broken):
    def delete(self, key):
        pass


class TellsNothing(Broken):
    def changed_keys(self, who):
        super().changed_keys(who)
        return set()


class TellsTheFirst(Broken):
    """Whoever asks first is told what others have not been told yet."""

    def changed_keys(self, who):
        found = super().changed_keys(who)
        for untold in self._untold.values():
            untold -= found
        return found


class EndsAll(Broken):
    """Whoever tracks no more ends it for all others, too."""

    def untrack(self, who):
        super().untrack(who)
        self.values.changed.clear()


class CopiesNothing(Broken):
    def copy(self):
        return self


class InOnePart(Broken):
    def export(self, chunk_bytes):
        return super().export(1 << 30)


class InAnyOrder(Broken):
    """The parts of an export come otherwise every other time."""

    exports = 0

    def export(self, chunk_bytes):
        InAnyOrder.exports += 1
        return list(super().export(chunk_bytes))[:: (-1) ** InAnyOrder.exports]


class OneForAll:
    """A store whose states share their timers."""

    def __init__(self, slot, schema, settings):
        self._store, self._timers = MemoryStore(slot, schema, settings), MemoryState(schema).timers

    def __getattr__(self, name):
        return getattr(self._store, name)

    def unit(self, unit):
        state = self._store.unit(unit)
        state.timers = self._timers
        return state


def store_of(kind):
    class Store(MemoryStore):
        def unit(self, unit):
            return kind(self._schema)

    return Store


BROKEN = {
    "export": (Backend(store_of(Forgets), "a backend"), "the export has other values"),
    "delete": (Backend(store_of(KeepsWhatIsDeleted), "a backend"), "len is"),
    "changes": (Backend(store_of(TellsNothing), "a backend"), "keys .* are told as changed"),
    "trackers": (Backend(store_of(TellsTheFirst), "a backend"), "two who track changes"),
    "untracked": (Backend(store_of(EndsAll), "a backend"), "when another one tracks changes no more"),
    "copy": (Backend(store_of(CopiesNothing), "a backend"), "a copy changes when its original does"),
    "parts": (Backend(store_of(InOnePart), "a backend"), "parts of 10000 bytes were wanted"),
    "again": (Backend(store_of(InAnyOrder), "a backend"), "not exported in the same parts again"),
    "timers": (Backend(OneForAll, "a backend"), "timers travel with the values"),
    "summary": (Backend(MemoryStore, "two\nlines"), "summary .*: must be one line"),
    "server": (Backend(MemoryStore, "a backend", server="Depot"), "server = 'Depot': states are not shared"),
}


@pytest.mark.parametrize(("backend", "words"), BROKEN.values(), ids=BROKEN)
def test_the_check_says_in_plain_words_what_a_backend_does_not_keep(backend, words):
    with pytest.raises(ContractBroken, match=words):
        check_backend(backend)


def test_a_check_that_fails_leaves_nothing_in_a_server():
    cleaned = []
    backend = Backend(store_of(Forgets), "a backend", clean=lambda settings, job: cleaned.append(job))
    with pytest.raises(ContractBroken):
        check_backend(backend)
    assert cleaned == ["check"]
