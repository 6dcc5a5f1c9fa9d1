"""Where the keyed state of a slot lives: one interface, several backends.

A backend opens a *store* for each slot. The store makes the state of *one unit* at a time; a slot holds one object per
unit it owns, so that handing a unit over is handing an object over. The value of a key is a tuple, one element per
field of the operator's ``state_schema``. Timers are in memory whatever the backend, and are exported and installed by
themselves, behind the values. ``keyshift.checks.check_backend`` tries a backend.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from keyshift.registry import Registry
from keyshift.state import redis_server, rocksdb
from keyshift.state.memory import MemoryStore
from keyshift.state.redis_server import RemoteSettings
from keyshift.state.remote import HybridSettings, RemoteStore
from keyshift.state.rocksdb import RocksSettings
from keyshift.state.settings import Settings
from keyshift.state.timers import Timers
from keyshift.state.tracking import Value


class Values(Protocol):
    """The values of one unit by key, in brackets: an operator does this for every event."""

    def __getitem__(self, key: int, /) -> Value | None:
        """The value of ``key``, or None. Not to be changed in place: make another one and set it."""

    def __setitem__(self, key: int, value: Value, /) -> None:
        """Set the value of ``key``."""


class UnitState(Protocol):
    """The state of one unit. Not thread-safe: one owner at a time."""

    timers: Timers  # none at first

    @property
    def values(self) -> Values:
        """What to read from and write to; the same object as long as the state lives."""

    def take(self, keys: Iterable[int], /) -> list[tuple[int, Value]]:
        """Those of ``keys`` that are here, in their order, with their values, all at once."""

    def delete(self, key: int) -> None:
        """Forget ``key``; nothing happens if it is not there."""

    def __len__(self) -> int:
        """Number of keys."""

    def keys(self) -> list[int]:
        """The keys, in no order."""

    def track(self, who: str) -> None:
        """Remember for ``who`` from now on which keys are set or deleted. Costs a little, so nobody does by default."""

    def untrack(self, who: str) -> None:
        """Forget ``who``, who will not ask any more; nothing happens without ``track`` before. What is remembered for
        somebody who never asks grows with the keys.
        """

    def changed_keys(self, who: str) -> set[int]:
        """The keys set or deleted since ``who`` called ``track``, or this, last; not what ``install`` brought."""

    @property
    def shared(self) -> bool:
        """Whether other slots reach the values, too: then a unit leaves with ``hand_over``, and nothing is exported."""

    def hand_over(self) -> str | None:
        """Let the unit leave: nothing will be set here any more. May be called again.

        If the state is shared, the reference for ``Store.adopt`` of the next owner: all that was set is there, and
        whatever is set here all the same reaches nobody. If it is not shared, None, and each export from now on gives
        the same batches, whatever the store does meanwhile: a stream that breaks goes on where it broke.
        """

    def copy(self) -> "UnitState":
        """The values as they are now, for another thread to export while this state goes on; without the timers.

        Takes less time than an export by far.
        """

    def export(self, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """The whole state as batches with columns ``key`` and the schema's fields, each about ``chunk_bytes`` or less
        (a single larger value makes a larger batch). No batch at all for a unit without keys. Without the timers.

        To go through them raises Damaged or ServiceUnavailable if values are elsewhere and cannot be read.
        """

    def install(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add what ``export`` gave."""


class Store(Protocol):
    """The states of one slot in one process, from ``Backend.open`` to ``close``.

    ``unit`` may be called by any thread at any time, all else by one at a time.
    """

    def unit(self, unit: int, /) -> UnitState:
        """A state of ``unit``, without keys. There may be others of it: a copy, or one whose keys are still to be
        fetched. One that nobody refers to any more is not needed.
        """

    def adopt(self, unit: int, reference: str, /) -> UnitState:
        """The state of ``unit`` that was handed over elsewhere; without its timers. May be called more than once."""

    def load(self, wanted: Iterable[tuple[UnitState, Collection[int]]], /) -> None:
        """Load these keys of these states, which the operator is about to use; some of them may not be there.

        Called once for each frame, right before its events are processed, and once more if timers fire, before they do.
        So a store whose values are elsewhere gets all of them at once, may send what was set before in the same call,
        and need not keep what an earlier call has loaded. One that has its values here does not look at ``wanted``,
        which costs nothing then: it is made while it is looked at.
        """

    def checkpoint(self) -> None:
        """Get ready: what was set up to now is about to be exported by another thread, or read again after a restart.

        Raises ServiceUnavailable if values are elsewhere and not all are there any more: what was made of them since
        would be wrong, so the job goes on from before.
        """

    def close(self) -> None:
        """Close the store: nobody uses it or its states any more. A process that is killed does not get here."""


class Backend(NamedTuple):
    """A kind of store.

    ``require(settings, here)``: raises BadInput or ServiceUnavailable if a run cannot use it, before anything is
    started; ``here`` if slots are on this machine. ``served(settings, job, folder)``: around a job, gives the settings
    to open stores with; what the backend needs is there inside, and ends afterwards. ``folder`` is one of the run, None
    if slots are elsewhere. ``clean(settings, job)``: removes what a job has left on servers that others run.

    ``open(slot, schema, settings)``: the store of a slot, for values of ``schema``. ``slot`` is its name with those of
    its job, attempt and stage (``job/0/counter/3``); if it moves, two processes have a store of that name for a while.

    ``files``: values are in files, so that state may be larger than memory. ``server``: they are in one of this kind,
    which all slots reach (``UnitState.shared``): a unit moves without them.
    """

    open: Callable[[str, pa.Schema, Any], Store]
    summary: str
    settings: type[Settings] = Settings
    require: Callable[[Any, bool], None] = lambda settings, here: None
    served: Callable[[Any, str, Path | None], AbstractContextManager[Any]] = lambda settings, *_: nullcontext(settings)
    clean: Callable[[Any, str], None] = lambda settings, job: None
    files: bool = False
    server: str = ""


backends: Registry[Backend] = Registry("state backend")
backends.register("memory", Backend(MemoryStore, "a dictionary in the Python worker"))
backends.register(
    "rocksdb",
    Backend(
        rocksdb.open_store,
        "RocksDB on the slot's disk behind a cache in the Python worker: state may be larger than memory",
        RocksSettings,
        rocksdb.require,
        rocksdb.served,
        files=True,
    ),
)
_remote = Backend(
    RemoteStore,
    "a Redis server that all slots reach: one call per frame, and a migration moves ownership only",
    RemoteSettings,
    redis_server.require,
    redis_server.served,
    redis_server.clean,
    server="Redis",
)
_HYBRID = "remote, with what is in use kept in the Python worker: read from the server once, written through or back"
backends.register("remote", _remote)
backends.register("hybrid", _remote._replace(summary=_HYBRID, settings=HybridSettings))


def settings_of(name: str, given: Mapping[str, Any], redis: str) -> Any:
    """Settings of the backend ``name`` where ``redis`` is the address of a Redis server; empty if there is none."""
    return backends.get(name).settings(**given).in_place(redis)


def clean_stores(name: str, given: Mapping[str, Any], redis: str, job: str) -> None:
    """Remove what the stores of a job have left elsewhere; see ``settings_of``. Raises ServiceUnavailable."""
    backends.get(name).clean(settings_of(name, given, redis), job)
