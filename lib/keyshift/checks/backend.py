"""What every state backend promises: a store whose states are like dictionaries that can be exported and installed."""

import random
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyshift.model.errors import require
from keyshift.model.frames import empty
from keyshift.state import Backend, Settings, Store, UnitState, Value, rows
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads import untold

SCHEMA = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])
_LISTS = pa.schema([pa.field("starts", pa.list_(pa.int64())), pa.field("counts", pa.list_(pa.int64()))])
_NAME, _OTHER_NAME = "check/0/stage/0", "check/0/stage/1"
_WHO, _OTHER = "check", "other"  # track changes

Content = dict[int, Value]


def check_backend(backend: Backend, settings: Settings | None = None, examples: int = 30, seed: int = 1) -> None:
    """Open stores of ``backend``, by default with its default settings, and try their states. Raises ContractBroken."""
    settings = backend.settings() if settings is None else settings
    summary = backend.summary
    require(bool(summary.strip()) and "\n" not in summary, f"summary {summary!r}: must be one line")
    unfit = list(untold(settings.model_dump()))
    require(not unfit, "; ".join(unfit))
    try:
        with backend.served(settings, _NAME, Path(tempfile.gettempdir())) as served:
            _check(backend, served, examples, random.Random(seed))
    finally:
        backend.clean(settings, _NAME.partition("/")[0])


def _check(backend: Backend, served: Settings, examples: int, rng: random.Random) -> None:
    with closing(backend.open(_NAME, SCHEMA, served)) as store:
        for _ in range(examples):
            Watched(store).walk(rng, steps=40)
        for check in (_empty, _sizes, _apart, _delta, _trackers, _timers, _cut_again):
            check(store)
        shared, server = store.unit(0).shared, backend.server
        require(shared == bool(server), f"server = {server!r}: states are {'' if shared else 'not '}shared through one")
        with closing(backend.open(_OTHER_NAME, SCHEMA, served)) as other:
            _moves(store, other)
    with closing(backend.open(_NAME, _LISTS, served)) as lists:
        _several_lists(lists)
    with closing(backend.open(_NAME, pa.schema([]), served)) as bare:
        _no_fields(bare)


class Watched:
    """A state of ``store``, with values of ``SCHEMA``, beside a dictionary: each method does the same to both.

    Each raises ContractBroken if they differ.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.state = store.unit(0)
        self.content: Content = {}
        self.changed: set[int] | None = None  # once they are tracked
        self.copied: tuple[UnitState, Content] | None = None  # a copy, and what was in it

    def walk(self, rng: random.Random, steps: int) -> None:
        """Call some of the methods in any order."""
        keys = [*range(13), -(2**63), 2**63 - 1]

        def content() -> Content:
            return {key: (rng.randrange(-5, 5), rng.randbytes(rng.randrange(40))) for key in rng.sample(keys, 5)}

        for _ in range(steps):
            match rng.randrange(12):
                case 0 | 1 | 2:
                    key, value = content().popitem()
                    self.put(key, value)
                case 3:
                    self.get(rng.choice(keys))
                case 4:
                    self.delete(rng.choice(keys))
                case 5:
                    self.load(rng.sample(keys, 3))
                case 6:
                    self.changed_keys()
                case 7:
                    self.hand_over(rng.randint(1, 500))
                case 8:
                    self.install(content(), rng.randint(1, 500))
                case 9:
                    self.copy()
                case 10:
                    self.take(rng.sample(keys, 5))
                case 11:
                    self.untrack()
            self.compare()

    def put(self, key: int, value: Value) -> None:
        """Set a value."""
        self.state.values[key] = value
        self.content[key] = value
        self._touched(key)

    def get(self, key: int) -> None:
        """Read a value."""
        found, expected = self.state.values[key], self.content.get(key)
        require(found == expected, f"key {key} has {found!r}, where {expected!r} was set")

    def delete(self, key: int) -> None:
        """Forget a key, which may not be there."""
        self.state.delete(key)
        self.content.pop(key, None)
        self._touched(key)

    def load(self, keys: list[int]) -> None:
        """Load the keys of a frame, as before it comes."""
        self._store.load((state, some) for state, some in [(self.state, keys)])
        for key in keys:
            self.get(key)

    def take(self, keys: list[int]) -> None:
        """Read many keys, once each, as is done outside of frames, such as by snapshots."""
        found, expected = self.state.take(keys), [(key, self.content[key]) for key in keys if key in self.content]
        require(found == expected, f"take() gives {found}, where {expected} was set")

    def untrack(self) -> None:
        """Stop tracking: nobody asks any more; nothing happens if nobody did."""
        self.state.untrack(_WHO)
        self.changed = None

    def changed_keys(self) -> None:
        """Compare what has changed since the last call; the first one begins to track that."""
        if self.changed is None:
            self.state.track(_WHO)
        else:
            found = self.state.changed_keys(_WHO)
            require(found == self.changed, f"keys {sorted(found)} are told as changed, {sorted(self.changed)} were")
        self.changed = set()

    def hand_over(self, chunk_bytes: int) -> None:
        """Move the unit: what arrives is all that is left."""
        there = self._store.unit(0)
        there.install(self.state.export(chunk_bytes))
        self.state, self.changed = there, None

    def install(self, content: Content, chunk_bytes: int) -> None:
        """Install more, for keys that are there, too."""
        self.state.install(_filled(self._store.unit(0), content).export(chunk_bytes))
        self.content |= content

    def copy(self) -> None:
        """Copy the state, as for a snapshot, which is written from the copy while the original goes on."""
        self.copied = self.state.copy(), dict(self.content)

    def compare(self) -> None:
        """Compare all there is."""
        require(len(self.state) == len(self.content), f"len is {len(self.state)}, with {len(self.content)} keys")
        require(sorted(self.state.keys()) == sorted(self.content), "keys() does not give the keys that are there")
        self._store.checkpoint()
        require(exported(self.state, 100) == self.content, "the export has other values than were set")
        if self.copied is not None:
            copy, before = self.copied
            require(exported(copy, 500) == before, "a copy changes when its original does")

    def _touched(self, key: int) -> None:
        if self.changed is not None:
            self.changed.add(key)


def exported(state: UnitState, chunk_bytes: int) -> Content:
    """Return what ``state``, with values of ``SCHEMA``, exports. Raises ContractBroken for a part of another form."""
    content: Content = {}
    for batch in state.export(chunk_bytes):
        require(batch.num_rows > 0, "the export has an empty part")
        expected = ["key", *SCHEMA.names]
        require(batch.schema.names == expected, f"the export has columns {batch.schema.names}, expected {expected}")
        for key, value in rows.unpack(batch):
            require(key not in content, f"key {key} is exported twice")
            content[key] = value
    return content


def _columns(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field("key", pa.int64()), *schema])


def _filled(state: UnitState, content: Content) -> UnitState:
    for key, value in content.items():
        state.values[key] = value
    return state


def _empty(store: Store) -> None:
    state = store.unit(0)
    require(not list(state.export(1000)), "a state without keys exports a part")
    state.install([])
    state.install([empty(_columns(SCHEMA))])
    require(len(state) == 0 and not len(state.timers), "a new state has keys or timers")


def _sizes(store: Store) -> None:
    state = _filled(store.unit(0), {key: (key, bytes(100)) for key in range(1000)})
    sizes = [batch.nbytes for batch in state.export(10_000)]
    good = max(sizes) <= 12_000 and 10 <= len(sizes) <= 20
    require(good, f"parts of 10000 bytes were wanted, {sorted(sizes)[-3:]} came")
    large: Content = {key: (key, bytes(10_000)) for key in range(3)}
    found = exported(_filled(store.unit(0), large), 100)
    require(found == large, "values that are larger than a part do not come whole")


def _apart(store: Store) -> None:
    """Require that what was handed over has nothing to do with what happens later at the source."""
    source, destination = _filled(store.unit(0), {1: (1, b"old")}), store.unit(0)
    source.track(_WHO)
    source.values[1] = (2, b"old")
    destination.install(source.export(1000))
    destination.track(_WHO)
    _filled(source, {1: (3, b"new"), 2: (1, b"new")})
    require(exported(destination, 1000) == {1: (2, b"old")}, "a state changes when the one it was exported from does")
    require(destination.changed_keys(_WHO) == set(), "changes of the source are told at the destination")


def _delta(store: Store) -> None:
    """Do what replication does: the whole once, then changed rows and deleted keys."""
    source = _filled(store.unit(0), {key: (key, b"old") for key in range(100)})
    replica = store.unit(0)
    replica.install(source.export(500))
    source.track(_WHO)
    _filled(source, {5: (5, b"new"), 200: (200, b"new")})
    source.delete(7)
    changed = source.changed_keys(_WHO)
    found = source.take(changed)
    require(sorted(key for key, _ in found) == [5, 200], "changed_keys() does not tell what was set and deleted")
    replica.install([rows.pack(_columns(SCHEMA), found)])
    for key in changed - {key for key, _ in found}:
        replica.delete(key)
    require(exported(replica, 1000) == exported(source, 1000), "a copy with all changes is not like its original")


def _moves(source: Store, destination: Store) -> None:
    """Move a unit between slots and back, by reference or by value: what was set last arrives, and snapshots stay."""
    state, expected = source.unit(3), {key: (key, b"begin") for key in range(50)}
    state.install(_filled(source.unit(3), expected).export(500))
    for step, (here, there) in enumerate([(source, destination), (destination, source), (source, destination)]):
        here.load((one, keys) for one, keys in [(state, {1, 2, 100 + step})])
        _filled(state, {1: (step, b"moved"), 100 + step: (step, b"new")})
        state.delete(2)
        expected |= {1: (step, b"moved"), 100 + step: (step, b"new")}
        expected.pop(2, None)
        copy, before, gone = state.copy(), dict(expected), state
        reference = gone.hand_over()
        fits = (reference is not None) == gone.shared
        require(fits, "hand_over() must give a reference exactly if states are shared")
        if reference is None:
            state = there.unit(3)
            state.install(gone.export(500))
        else:
            state = there.adopt(3, reference)
            again = there.adopt(3, gone.hand_over() or "")
            require(exported(again, 500) == expected, "a state that is taken over twice is not the same")
            del again
        _filled(state, {4: (step, b"after")})
        expected[4] = step, b"after"
        here.load(())
        there.load((one, keys) for one, keys in [(state, {4})])
        require(exported(state, 500) == expected, "what arrives is not what left")
        require(exported(copy, 500) == before, "a copy changes when its original has moved")
        require(len(state) == len(expected), f"len is {len(state)} after a move, with {len(expected)} keys")


def _cut_again(store: Store) -> None:
    """Require that a broken stream goes on where it broke, whatever the store does for other units in between."""
    leaving, staying = store.unit(3), store.unit(4)
    _filled(leaving, {key * 7919 % 10_007: (key, bytes(99)) for key in range(100)})
    if leaving.shared:
        return
    leaving.hand_over()
    parts = list(leaving.export(1000))
    for key in range(5):
        store.load((one, keys) for one, keys in [(staying, {key})])
        _filled(staying, {key: (key, bytes(1000))})
        leaving.hand_over()
        require(list(leaving.export(1000)) == parts, "what is handed over is not exported in the same parts again")


def _trackers(store: Store) -> None:
    """Require that each who tracks changes is told all of them."""
    state = store.unit(0)
    state.track(_WHO)
    _filled(state, {1: (1, b"")})
    state.track(_OTHER)
    _filled(state, {2: (2, b"")})
    told = state.changed_keys(_WHO), state.changed_keys(_OTHER), state.changed_keys(_OTHER)
    require(told == ({1, 2}, {2}, set()), f"two who track changes are told {told}, not {({1, 2}, {2}, set())}")
    _filled(state, {3: (3, b"")})
    state.untrack(_OTHER)
    _filled(state, {4: (4, b"")})
    found = state.changed_keys(_WHO)
    require(found == {3, 4}, f"when another one tracks changes no more, {found} are told, not 3 and 4")
    state.untrack(_WHO)
    _filled(state, {5: (5, b"")})
    state.track(_OTHER)
    require(not state.changed_keys(_OTHER), "who tracks changes is told what changed while nobody did")


def _timers(store: Store) -> None:
    source, destination = _filled(store.unit(0), {1: (1, b"value")}), store.unit(0)
    source.timers.set(EVENT, 10, 1)
    source.timers.set(PROCESSING, 20, 2)
    source.timers.reach(5, 6)
    destination.install(source.export(1000))
    require(not len(destination.timers), "timers travel with the values, or two states share them")
    destination.timers.install(source.timers.export())
    due = destination.timers.due(EVENT, 10), destination.timers.due(PROCESSING, 20)
    require(due == ([(10, 1)], [(20, 2)]), "timers do not come back as they were")
    require((destination.timers.watermark, destination.timers.clock) == (5, 6), "the time of a state is lost")


def _several_lists(store: Store) -> None:
    content: dict[int, Any] = {1: ([], []), 2: ([5, -7], [1, 2]), 3: ([0], [9])}
    destination = store.unit(0)
    destination.install(_filled(store.unit(0), content).export(10))
    found = {key: destination.values[key] for key in content}
    require(found == content, "values of several columns of lists do not come back as they were set")


def _no_fields(store: Store) -> None:
    """Try a stage that has no state, or has to know of a key only that it was there."""
    content: Content = {1: (), -5: ()}
    destination = store.unit(0)
    destination.install([empty(_columns(pa.schema([])))])
    require(len(destination) == 0, "a state without fields has keys when nothing has come")
    destination.install(_filled(store.unit(0), content).export(10))
    found = destination.take([1, 2, -5])
    require(found == [*content.items()], f"keys without fields come back as {found}, expected {[*content.items()]}")
