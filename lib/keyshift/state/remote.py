"""State in a store that all slots reach: what moves is the ownership, not the state.

When a unit moves, only the name of its hash travels, and whoever takes it over renames it first: what a former owner
still writes reaches nobody.

``remote`` keeps no values here. ``hybrid`` keeps those in use: a key is fetched when it is first used, also after its
unit has come from another slot. The strategies ``lazy`` and ``hybrid`` are the other kind of hybrid: there the former
owner is what keys are fetched from, and each slot has a store of its own, of whatever backend.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field

from keyshift.model.errors import ProtocolViolation, ServiceUnavailable
from keyshift.model.messages import decode, encode
from keyshift.state.cached import CachedState, CachedStore, Cells
from keyshift.state.redis_server import RemoteSettings
from keyshift.state.redis_table import Hash, RedisTable
from keyshift.state.tracking import Value


class HybridSettings(RemoteSettings):
    """Where the server is, and what is kept here."""

    state_cache_mib: int = Field(default=128, ge=1, le=1 << 20, description="MiB of values that a slot keeps in Python")
    write: Literal["through", "back"] = Field(
        default="through", description="changes go to the server with the next frame, or when they leave the slot"
    )


@dataclass(frozen=True, slots=True)
class Reference:
    """What names a state that was handed over: its ``region``, its number of ``keys``, the run_id of its ``server``."""

    region: Hash
    keys: int
    server: str


class HandedOver(Cells):
    """The values of a state that another slot owns by now. Raises ProtocolViolation if they are used."""

    def __setitem__(self, key: int, value: Value | None) -> None:
        raise ProtocolViolation(f"key {key} is set in a state that has been handed over")

    def __missing__(self, key: int) -> Value | None:
        raise ProtocolViolation(f"key {key} is read in a state that has been handed over")


class RemoteState(CachedState):
    """See ``UnitState``."""

    shared = True

    def __init__(self, cells: Cells, redis: RedisTable) -> None:
        super().__init__(cells)
        self._redis = redis

    def take(self, keys: Iterable[int]) -> list[tuple[int, Value]]:
        """See ``UnitState``. Raises ServiceUnavailable if the server has lost keys."""
        keys = list(keys)
        found = super().take(keys)
        if len(found) < len(keys):  # deleted, or lost
            self._redis.require([self.values.region.name])
        return found

    def hand_over(self) -> str:
        """Write all; from now on nothing may be set. Gives what ``adopt`` takes, whenever it is called."""
        cells = self.values
        with self._redis.lock:
            self._store.write(cells)
            self._redis.send()
            if not isinstance(cells, HandedOver):
                keys = len(self)
                cells.__class__ = HandedOver
                cells.clear()
                cells.old.clear()
                cells.count = keys
                self._redis.disown(cells.region)
            return encode(Reference(cells.region, cells.count, self._redis.server)).decode()


class RemoteStore(CachedStore):
    """See ``Store``; ``settings`` name an address. Raises ServiceUnavailable if it cannot be reached."""

    def __init__(self, slot: str, schema: pa.Schema, settings: RemoteSettings) -> None:
        self._redis = RedisTable(slot, settings)
        if isinstance(settings, HybridSettings):
            super().__init__(self._redis, schema, settings.state_cache_mib << 20, settings.write == "through")
        else:
            super().__init__(self._redis, schema, keep_bytes=0, through=True)

    def state_of(self, cells: Cells) -> RemoteState:  # noqa: D102
        return RemoteState(cells, self._redis)

    def adopt(self, unit: int, reference: str) -> CachedState:
        """See ``Store``. Raises ProtocolViolation if not all keys are there that its former owner had."""
        given: Reference = decode(Reference, reference)
        if given.server != self._redis.server:
            raise ServiceUnavailable(f"the store of state has begun anew since unit {unit} was written")
        region, found = self._redis.taken_over(given.region, given.keys)
        if found != given.keys:
            raise ProtocolViolation(f"unit {unit} was handed over with {given.keys} keys, {found} are in {region.name}")
        state = self.state(region)
        state.values.count = given.keys
        return state
