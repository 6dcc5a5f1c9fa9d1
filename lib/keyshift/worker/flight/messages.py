"""Units on their way: what travels, how it is cut into chunks and put together again. Nothing here sends anything."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args

import pyarrow as pa
from pydantic import Field, PlainSerializer

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import NO_VERSION, RouterId, SlotId, UnitId, Version
from keyshift.model.messages import codec, decode, encode
from keyshift.runtime.key_access import Stay
from keyshift.state import UnitState, rows
from keyshift.state.timers import TIMER_SCHEMA

# Unit, version, keys. Many are in each request for keys: with a class each it takes half as long again to pack them.
KeysOf = tuple[UnitId, Version, list[int]]
Greeting = dict[str, int]  # journeys of units that are not complete, and how many fragments have come
Routers = Annotated[frozenset[RouterId], PlainSerializer(sorted, return_type=list[int])]
SHARED_BYTES = 1 << 18  # so much state of several units at the most is sent and installed together
SHARED_UNITS = 512  # and so many of them: the slot works on no record while it takes them in
_LENGTH_BYTES = 4


class Wanted(NamedTuple):
    """See ``protocol.slot.Request``."""

    unit: UnitId
    version: Version
    router: RouterId
    hop: int


class Opened(NamedTuple):
    """See ``protocol.slot.Open``."""

    unit: UnitId
    version: Version


@dataclass(frozen=True, slots=True)
class OfStep:
    """Messages of a step for ``slot``."""

    slot: SlotId
    wanted: tuple[Wanted, ...] = ()
    opened: tuple[Opened, ...] = ()
    kind: Literal["of step"] = "of step"


@dataclass(frozen=True, slots=True)
class Taken:
    """What ``slot`` had left there at the end of a batch has come."""

    slot: SlotId
    units: tuple[UnitId, ...]
    kind: Literal["taken"] = "taken"


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """``slot`` needs no copy of ``unit`` of this ``epoch``: another owner may have made one of another meanwhile."""

    slot: SlotId
    unit: UnitId
    epoch: int
    kind: Literal["copy dropped"] = "copy dropped"


@dataclass(frozen=True, slots=True)
class KeysDropped:
    """Nobody will ask for keys of these units any more: rows of unit, and the version with which it left."""

    stays: tuple[Stay, ...] = ()
    kind: Literal["keys dropped"] = "keys dropped"


Message = OfStep | Taken | CopyDropped | KeysDropped


@dataclass(frozen=True, slots=True)
class TakeUnits:
    """A stream: units for ``slot``."""

    slot: SlotId
    kind: Literal["units"] = "units"


@dataclass(frozen=True, slots=True)
class TakeCopies:
    """A stream: parts of copies for ``slot``."""

    slot: SlotId
    kind: Literal["copies"] = "copies"


class Pulled(NamedTuple):
    """A unit of which so many fragments have come."""

    unit: UnitId
    come: int


@dataclass(frozen=True, slots=True)
class GiveSealed:
    """A stream: units that ``slot`` left there at the end of a batch, but for the fragments that have come."""

    slot: SlotId
    units: tuple[Pulled, ...]
    kind: Literal["sealed"] = "sealed"


@dataclass(frozen=True, slots=True)
class GiveRows:
    """A stream: rows of routers that ``slot`` had not worked on when it left there, at the end of a batch."""

    slot: SlotId
    kind: Literal["rows"] = "rows"


class RestOf(NamedTuple):
    """The keys behind ``after`` of a unit that left with ``version``; None: all."""

    unit: UnitId
    version: Version
    after: int | None


@dataclass(frozen=True, slots=True)
class GiveRest:
    """A stream: all keys of units whose ownership has left."""

    stays: tuple[RestOf, ...]
    kind: Literal["rest"] = "rest"


@dataclass(frozen=True, slots=True)
class AnswerKeys:
    """A stream of ``KeysAsked``, with the rows that are written, each answered by the rows found and their sizes."""

    kind: Literal["keys"] = "keys"


FlightRequest = TakeUnits | TakeCopies | GiveSealed | GiveRows | GiveRest | AnswerKeys
SomeMessage: Any = Annotated[Message, Field(discriminator="kind")]
SomeRequest: Any = Annotated[FlightRequest, Field(discriminator="kind")]


class Answer(NamedTuple):
    """The answer to a unit that was sent: whether it was ``taken``, or refused."""

    unit: UnitId
    taken: bool


Acknowledged = list[Answer]


@dataclass(frozen=True, slots=True)
class KeysAsked:
    """See ``StateClients.keys``. ``written``: rows of unit, version and keys that are deleted there; ``sizes``: how
    many of the rows that come with this belong to each.
    """

    number: int
    stays: list[KeysOf]
    moved: list[KeysOf]
    written: list[KeysOf]
    sizes: list[int]


class CopyPart(NamedTuple):
    """A part of a copy; every beginning has an ``epoch`` for itself."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Label:
    """What travels with the state of a unit, and says what it is.

    ``version``, ``hop``: of its move, see ``protocol.slot``. ``routers``: whose records a lent unit may meet (None: it
    comes for good). ``partial``: its keys stay at ``home``. ``delta_of``: only what has changed, and was ``deleted``,
    since its copy was brought up to this. ``reference``: of a state that slots share, in place of its values.
    ``routed``: see ``runtime.slot.Moved``. ``part``: of a copy, which part this is.
    """

    unit: UnitId
    version: Version = NO_VERSION
    hop: int = 0
    routers: Routers | None = None
    partial: bool = False
    delta_of: CopyPart | None = None
    deleted: tuple[int, ...] = ()
    home: str = ""
    reference: str = ""
    routed: Version = NO_VERSION
    part: CopyPart | None = None

    @property
    def journey(self) -> str:
        """A name for this transfer of this unit, and for no other."""
        return encode(self).decode()


_LABEL = [each.name for each in fields(Label)]


@dataclass(frozen=True, slots=True)
class Shipment(Label):
    """One unit on its way. ``state`` and ``changed`` (keys): where it comes from; ``batches`` and ``timers``: where it
    goes to.
    """

    state: UnitState | None = None
    changed: frozenset[int] = frozenset()
    batches: list[pa.RecordBatch] = field(default_factory=list)
    timers: pa.RecordBatch | None = None

    def leaving(self, home: str, schema: pa.Schema, chunk_bytes: int) -> tuple[Label, Iterable[pa.RecordBatch]]:
        """Return what has to travel: the label, and the batches of values. The same ones whenever it is called."""
        assert self.state is not None
        # First, as the batches are the same from then on. Not if the keys stay: they are used where they are.
        reference = "" if self.partial else self.state.hand_over()
        batches: Iterable[pa.RecordBatch] = ()
        deleted: list[int] = []
        if self.partial or self.state.shared:
            pass
        elif self.delta_of is None:
            batches = self.state.export(chunk_bytes)
        else:
            found = self.state.take(self.changed)
            batches, deleted = [rows.pack(schema, found)], sorted(self.changed - {key for key, _ in found})
        kept = {name: getattr(self, name) for name in _LABEL}
        about = {"home": home, "reference": reference or "", "deleted": tuple(deleted)}
        return Label(**kept | about), batches

    @classmethod
    def arrived(cls, label: Label, batches: list[pa.RecordBatch], timers: pa.RecordBatch | None) -> "Shipment":
        """A unit that has arrived: the inverse of ``leaving``."""
        kept = {name: getattr(label, name) for name in _LABEL}
        return cls(batches=batches, timers=timers, **kept)


def make_codecs() -> None:
    """Make the codecs of all messages here now; see ``wire.nodes.make_codecs``."""
    answers = KeysAsked, Label, list[Head], Greeting, Acknowledged, list[int], dict, list
    for kind in (SomeMessage, *get_args(Message), SomeRequest, *get_args(FlightRequest), *answers):
        codec(kind)


class Fragment(NamedTuple):
    """A batch of the state of one unit, with its label; the last one has the timers, if they travel.

    ``nbytes``: of the batch, known where it leaves: with many small units to find out takes a fifth of the time.
    """

    batch: pa.RecordBatch
    label: Label
    number: int
    last: bool
    timers: pa.RecordBatch | None = None
    nbytes: int = 0


class Head(NamedTuple):
    """What a chunk says of a fragment: how many rows and timers of the chunk are its own."""

    label: Label
    rows: int
    timers: int
    number: int
    last: bool


Chunk = tuple[pa.RecordBatch, pa.Buffer]  # state, metadata


def fragments(
    label: Label, batches: Iterable[pa.RecordBatch], schema: pa.Schema, timers: pa.RecordBatch | None = None
) -> Iterator[Fragment]:
    """The fragments of one unit, one without rows if there is no batch. The same batches always give the same ones."""
    rest = iter(batches)
    batch, number = next(rest, frames.empty(schema)), 0
    for following in rest:
        yield Fragment(batch, label, number, last=False, nbytes=batch.nbytes)
        batch, number = following, number + 1
    yield Fragment(batch, label, number, last=True, timers=timers, nbytes=batch.nbytes)


def chunks(fragments: Iterable[Fragment], chunk_bytes: int) -> Iterator[Chunk]:
    """The fragments in their order; small ones that follow each other share a chunk."""
    most_bytes = min(SHARED_BYTES, chunk_bytes)
    together: list[Fragment] = []
    size = 0
    for fragment in fragments:
        if together and (size + fragment.nbytes > most_bytes or len(together) == SHARED_UNITS):
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
    """The fragments as one message: their rows, and what is said of each."""
    timers = [each.timers for each in together if each.timers is not None]
    heads = [Head(each.label, each.batch.num_rows, len(each.timers or ()), each.number, each.last) for each in together]
    head = codec(list[Head]).dump_json(heads)
    tail = frames.encode(pa.concat_batches(timers)) if timers else b""
    batch = together[0].batch if len(together) == 1 else pa.concat_batches([each.batch for each in together])
    return batch, pa.py_buffer(len(head).to_bytes(_LENGTH_BYTES, "big") + head + tail)


def unpack(chunk: Any) -> Iterator[Fragment]:
    """The inverse of ``pack``."""
    raw = chunk.app_metadata.to_pybytes()
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    all_timers = frames.decode(raw[end:], TIMER_SCHEMA)[0] if len(raw) > end else None
    row = timer = 0
    for label, rows_, timers_, number, last in decode(list[Head], raw[_LENGTH_BYTES:end]):
        batch = chunk.data.slice(row, rows_)
        timers = all_timers.slice(timer, timers_) if all_timers is not None and timers_ else None
        yield Fragment(batch, label, number, last, timers)
        row, timer = row + rows_, timer + timers_


ArrivedUnit = tuple[Label, list[pa.RecordBatch], pa.RecordBatch | None]  # label, state, timers
Begun = dict[int, tuple[str, list[pa.RecordBatch]]]  # unit that is not complete -> its journey, and what has come of it


def units(chunks: Iterable[Any], begun: Begun) -> Iterator[list[ArrivedUnit]]:
    """The units that are complete with each chunk, as they come: the inverse of ``chunks``.

    ``begun`` is what earlier streams left, and what this one leaves to the next. Raises ServiceUnavailable if fragments
    are missing.
    """
    for chunk in chunks:
        complete: list[ArrivedUnit] = []
        for fragment in unpack(chunk):
            label, number = fragment.label, fragment.number
            before: list[pa.RecordBatch] = []
            if number:
                journey, come = begun.get(label.unit, ("", []))
                before = come[:number] if journey == label.journey else []
            if len(before) < number:
                raise ServiceUnavailable(f"fragment {number} of a unit came behind {len(before)} others: {label}")
            if fragment.last:
                complete.append((label, [*before, fragment.batch], fragment.timers))
            else:
                begun[label.unit] = label.journey, [*before, fragment.batch]
        yield complete
        for label, *_ in complete:  # not before they are installed
            begun.pop(label.unit, None)
