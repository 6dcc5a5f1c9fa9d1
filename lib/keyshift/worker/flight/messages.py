"""Units on their way: what travels, how it is cut into chunks and put together again. Nothing here sends anything."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field, TypeAdapter

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.runtime.key_access import Stay
from keyshift.state import UnitState, rows
from keyshift.state.timers import TIMER_SCHEMA

KeysOf = tuple[int, int, list[int]]  # unit, version, keys
Acknowledged = list[tuple[int, bool]]  # units, and whether they were taken
CopyPart = tuple[int, int]  # of a copy: its epoch, which every beginning has for itself, and a number
SHARED_BYTES = 1 << 18  # so much state of several units at the most is sent and installed together
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class OfStep:
    """Messages of a step for ``slot``: rows of unit, version, router and hop that are ``wanted``, and rows of unit and
    version that are ``opened``; see ``protocol.slot.Request`` and ``Open``.
    """

    slot: int
    wanted: tuple[tuple[int, int, int, int], ...] = ()
    opened: tuple[tuple[int, int], ...] = ()
    kind: Literal["of step"] = "of step"


@dataclass(frozen=True, slots=True)
class Taken:
    """What ``slot`` had left there at the end of a batch has come."""

    slot: int
    units: tuple[int, ...]
    kind: Literal["taken"] = "taken"


@dataclass(frozen=True, slots=True)
class CopiesDropped:
    """``slot`` needs no copies of these units."""

    slot: int
    units: tuple[int, ...]
    kind: Literal["copies dropped"] = "copies dropped"


@dataclass(frozen=True, slots=True)
class KeysDropped:
    """Nobody will ask for keys of these units any more: rows of unit, and the version with which it left."""

    stays: tuple[Stay, ...] = ()
    kind: Literal["keys dropped"] = "keys dropped"


Message = OfStep | Taken | CopiesDropped | KeysDropped
MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Shipment:
    """One unit on its way, or what changed in it since its copy was brought up to ``delta_of``.

    ``routers``: whose records a lent unit may meet (None: it comes for good). ``partial``: its keys stay at ``home``.
    ``reference``: of a state that slots share, in place of its values. ``routed``: see ``runtime.slot.Moved``.
    """

    unit: int
    version: int = 0
    hop: int = 0
    routers: frozenset[int] | None = None
    partial: bool = False
    delta_of: CopyPart | None = None
    deleted: tuple[int, ...] = ()
    home: str = ""
    reference: str = ""
    routed: int = 0
    # Where it comes from, and where it goes to.
    state: UnitState | None = None
    changed: frozenset[int] = frozenset()  # keys
    batches: list[pa.RecordBatch] = field(default_factory=list)
    timers: pa.RecordBatch | None = None

    def about(self, home: str) -> dict[str, Any]:
        """Its description, which travels with its state."""
        routers = None if self.routers is None else sorted(self.routers)
        return {
            "unit": self.unit,
            "version": self.version,
            "hop": self.hop,
            "routers": routers,
            "partial": self.partial,
            "delta_of": self.delta_of,
            "home": home,
            "reference": (self.state and self.state.hand_over()) or "",
            "routed": self.routed,
        }

    def values(self, schema: pa.Schema, chunk_bytes: int) -> tuple[Iterable[pa.RecordBatch], list[int]]:
        """The batches that have to travel, and the keys that were deleted."""
        assert self.state is not None
        if self.partial or self.state.shared:
            return (), []
        if self.delta_of is None:
            return self.state.export(chunk_bytes), []
        found = self.state.take(self.changed)
        return [rows.pack(schema, found)], sorted(self.changed - {key for key, _ in found})

    @classmethod
    def arrived(cls, about: dict[str, Any], batches: list[pa.RecordBatch], timers: pa.RecordBatch | None) -> "Shipment":
        """A unit that has arrived: the inverse of ``about`` and ``values``."""
        about["routers"] = None if about["routers"] is None else frozenset(about["routers"])
        about["deleted"] = tuple(about["deleted"])
        about["delta_of"] = about["delta_of"] and tuple(about["delta_of"])
        return cls(batches=batches, timers=timers, **about)


class Fragment(NamedTuple):
    """A batch of the state of one unit, with the unit's description; the last one has the timers, if they travel."""

    batch: pa.RecordBatch
    nbytes: int
    about: dict[str, Any]
    number: int
    last: bool
    timers: pa.RecordBatch | None = None


Chunk = tuple[pa.RecordBatch, pa.Buffer]  # state, metadata


def fragments(
    about: dict[str, Any], batches: Iterable[pa.RecordBatch], schema: pa.Schema, timers: pa.RecordBatch | None = None
) -> Iterator[Fragment]:
    """The fragments of one unit, one without rows if there is no batch. The same state always gives the same ones."""
    rest = iter(batches)
    batch, number = next(rest, frames.empty(schema)), 0
    for following in rest:
        yield Fragment(batch, batch.nbytes, about, number, last=False)
        batch, number = following, number + 1
    yield Fragment(batch, batch.nbytes, about, number, last=True, timers=timers)


def journey(about: dict[str, Any]) -> str:
    """A name for this transfer of this unit, and for no other."""
    return json.dumps(about, sort_keys=True)


def chunks(fragments: Iterable[Fragment], chunk_bytes: int) -> Iterator[Chunk]:
    """The fragments in their order; small ones that follow each other share a chunk."""
    most_bytes = min(SHARED_BYTES, chunk_bytes)
    together: list[Fragment] = []
    size = 0
    for fragment in fragments:
        if together and size + fragment.nbytes > most_bytes:
            yield pack(together)
            together, size = [], 0
        together.append(fragment)
        size += fragment.nbytes
        if size >= most_bytes:  # goes before the next fragment is made
            yield pack(together)
            together, size = [], 0
    if together:
        yield pack(together)


def pack(together: list[Fragment]) -> Chunk:
    """The fragments as one message: their rows, and a description of each."""
    timers = [each.timers for each in together if each.timers is not None]
    heads = [(each.about, each.batch.num_rows, len(each.timers or ()), each.number, each.last) for each in together]
    head = json.dumps(heads).encode()
    tail = frames.encode(pa.concat_batches(timers)) if timers else b""
    batch = together[0].batch if len(together) == 1 else pa.concat_batches([each.batch for each in together])
    return batch, pa.py_buffer(len(head).to_bytes(_LENGTH_BYTES, "big") + head + tail)


def unpack(chunk: Any) -> Iterator[Fragment]:
    """The inverse of ``pack``."""
    raw = chunk.app_metadata.to_pybytes()
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    all_timers = frames.decode(raw[end:], TIMER_SCHEMA)[0] if len(raw) > end else None
    row = timer = 0
    for about, rows_, timers_, number, last in json.loads(raw[_LENGTH_BYTES:end]):
        batch = chunk.data.slice(row, rows_)
        timers = all_timers.slice(timer, timers_) if all_timers is not None and timers_ else None
        yield Fragment(batch, batch.nbytes, about, number, last, timers)
        row, timer = row + rows_, timer + timers_


Unit = tuple[dict[str, Any], list[pa.RecordBatch], pa.RecordBatch | None]  # description, state, timers
Begun = dict[int, tuple[str, list[pa.RecordBatch]]]  # unit that is not complete -> its name, and what has come of it


def units(chunks: Iterable[Any], begun: Begun) -> Iterator[list[Unit]]:
    """The units that are complete with each chunk, as they come: the inverse of ``chunks``.

    ``begun`` is what earlier streams left, and what this one leaves to the next. Raises ServiceUnavailable if fragments
    are missing.
    """
    for chunk in chunks:
        complete: list[Unit] = []
        for fragment in unpack(chunk):
            about, number = fragment.about, fragment.number
            before: list[pa.RecordBatch] = []
            if number:
                name, come = begun.get(about["unit"], ("", []))
                before = come[:number] if name == journey(about) else []
            if len(before) < number:
                raise ServiceUnavailable(f"fragment {number} of a unit came behind {len(before)} others: {about}")
            if fragment.last:
                complete.append((about, [*before, fragment.batch], fragment.timers))
            else:
                begun[about["unit"]] = journey(about), [*before, fragment.batch]
        yield complete
        for about, *_ in complete:  # not before they are installed
            begun.pop(about["unit"], None)
