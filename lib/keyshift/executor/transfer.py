"""What slots send to each other beside the data path, over Arrow Flight: units, single keys, and short messages.

A stream of units carries the state of one after the other, in chunks whose metadata say what each row belongs to: a
large unit has several chunks, small ones share one. Timers travel with the last rows of their unit. The receiver
acknowledges the units of a chunk when they are installed.

A stream lasts as long as something moves, however much there is: it is ended by silence. What has come of a unit when
it breaks stays where it came, and the next stream goes on behind it.
"""

import contextlib
import hmac
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from keyshift import frames
from keyshift.errors import ServiceUnavailable
from keyshift.executor.config import Certificate
from keyshift.runtime.key_access import Stay, Written
from keyshift.state import UnitState, rows
from keyshift.state.timers import TIMER_SCHEMA

KeysOf = tuple[int, int, list[int]]  # unit, version, keys
Acknowledged = list[tuple[int, bool]]  # units, and whether they were taken
CopyPart = tuple[int, int]  # of a copy: its epoch, which every beginning has for itself, and a number
_LENGTH_BYTES = 4
_SHARED_BYTES = 1 << 18  # so much state of several units at the most is sent and installed together


@dataclass(frozen=True, slots=True)
class Parcel:
    """One unit on its way, or what changed in it since its copy was brought up to ``delta_of``.

    ``routers``: whose records a lent unit may meet (None: it comes for good). ``partial``: its keys stay at ``home``.
    """

    unit: int
    version: int = 0
    hop: int = 0
    routers: frozenset[int] | None = None
    partial: bool = False
    delta_of: CopyPart | None = None
    deleted: tuple[int, ...] = ()
    home: str = ""
    # Where it comes from, and where it goes to.
    state: UnitState | None = None
    changed: frozenset[int] = frozenset()  # keys
    batches: list[pa.RecordBatch] = field(default_factory=list)
    timers: pa.RecordBatch | None = None

    def about(self, home: str) -> dict[str, Any]:
        """What is said of it, beside its state."""
        routers = None if self.routers is None else sorted(self.routers)
        return {
            "unit": self.unit,
            "version": self.version,
            "hop": self.hop,
            "routers": routers,
            "partial": self.partial,
            "delta_of": self.delta_of,
            "home": home,
        }

    def values(self, schema: pa.Schema, chunk_bytes: int) -> tuple[Iterable[pa.RecordBatch], list[int]]:
        """What has to travel, and which keys are there no more."""
        assert self.state is not None
        if self.partial:
            return (), []
        if self.delta_of is None:
            return self.state.export(chunk_bytes), []
        found = rows.take(self.state, self.changed)
        return [rows.pack(schema, found)], sorted(self.changed - {key for key, _ in found})


class Answer(NamedTuple):
    """What came for each of those that were asked for, the bytes of all of it, and those of what was written."""

    found: list[list[rows.Row]]
    nbytes: int
    written_bytes: int


class Holder(Protocol):
    """Who the server asks: the process that holds slots. Every method is called from Flight's threads."""

    state_schema: pa.Schema  # with the key

    def receive(self, slot: int, parcels: list[Parcel]) -> list[bool]:
        """The whole of these units has come for ``slot``. False for a delta over a copy that is not here."""

    def sealed(self, slot: int, unit: int) -> UnitState:
        """State that ``slot`` left here at the end of a batch. Raises KeyError if it is not here."""

    def keys(self, stay: Stay, keys: list[int]) -> list[rows.Row]:
        """Those of ``keys`` that are here, of a unit whose ownership has left."""

    def rest(self, stay: Stay, after: int | None) -> Iterator[pa.RecordBatch]:
        """All keys that are still here, of a unit whose ownership has left, ascending: those behind ``after``."""

    def forget(self, stay: Stay, keys: list[int]) -> None:
        """These keys have come to live elsewhere."""

    def write(self, stay: Stay, number: int, written: list[rows.Row], deleted: list[int]) -> None:
        """Keys that were used elsewhere come back with new values, or are nowhere any more. Does nothing if a greater
        number has come: this one was given up, and repeated with what is newer.
        """

    def copy(self, slot: int, unit: int, part: CopyPart, rows: list[pa.RecordBatch], deleted: list[int]) -> None:
        """A part of a copy of ``unit`` that is kept for ``slot``; number 0 begins it anew."""

    def message(self, kind: str, body: dict[str, Any]) -> None:
        """A short message; see ``StateClients.tell``."""


class _TokenFactory(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = (headers.get("authorization") or [""])[0]
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise flight.FlightUnauthenticatedError("the job's token is missing or wrong")


def _options(token: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", f"Bearer {token}".encode())])


class _Part(NamedTuple):
    """A batch of the state of one unit, what is said of the unit, and with the last one its timers if they travel."""

    batch: pa.RecordBatch
    nbytes: int
    about: dict[str, Any]
    number: int
    last: bool
    timers: pa.RecordBatch | None = None


Chunk = tuple[pa.RecordBatch, pa.Buffer]  # state, metadata


def _parts(
    about: dict[str, Any], batches: Iterable[pa.RecordBatch], schema: pa.Schema, timers: pa.RecordBatch | None = None
) -> Iterator[_Part]:
    """One unit; a part without rows if there is no batch. Of the same state always the same parts."""
    number = 0
    held: pa.RecordBatch | None = None
    for batch in batches:
        if held is not None:
            yield _Part(held, held.nbytes, about, number, last=False)
            number += 1
        held = batch
    if held is None:
        held = frames.empty(schema)
    yield _Part(held, held.nbytes, about, number, last=True, timers=timers)


def _name(about: dict[str, Any]) -> str:
    """What tells a unit on its way from all others, and from itself at another time."""
    return json.dumps(about, sort_keys=True)


def _chunks(parts: Iterable[_Part], most_bytes: int) -> Iterator[Chunk]:
    """The parts in their order; those that follow each other share a chunk up to ``most_bytes``."""
    together: list[_Part] = []
    size = 0
    for part in parts:
        if together and size + part.nbytes > most_bytes:
            yield _pack(together)
            together, size = [], 0
        together.append(part)
        size += part.nbytes
        if size >= most_bytes:  # goes before the next part is made
            yield _pack(together)
            together, size = [], 0
    if together:
        yield _pack(together)


def _pack(parts: list[_Part]) -> Chunk:
    timers = [part.timers for part in parts if part.timers is not None]
    heads = [(part.about, part.batch.num_rows, len(part.timers or ()), part.number, part.last) for part in parts]
    head = json.dumps(heads).encode()
    tail = frames.encode(pa.concat_batches(timers)) if timers else b""
    batch = parts[0].batch if len(parts) == 1 else pa.concat_batches([part.batch for part in parts])
    return batch, pa.py_buffer(len(head).to_bytes(_LENGTH_BYTES, "big") + head + tail)


def _unpack(chunk: Any) -> Iterator[_Part]:
    """The inverse of ``_pack``."""
    raw = chunk.app_metadata.to_pybytes()
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    all_timers = frames.decode(raw[end:], TIMER_SCHEMA)[0] if len(raw) > end else None
    row = timer = 0
    for about, rows_, timers_, number, last in json.loads(raw[_LENGTH_BYTES:end]):
        batch = chunk.data.slice(row, rows_)
        timers = all_timers.slice(timer, timers_) if all_timers is not None and timers_ else None
        yield _Part(batch, batch.nbytes, about, number, last, timers)
        row, timer = row + rows_, timer + timers_


Unit = tuple[dict[str, Any], list[pa.RecordBatch], pa.RecordBatch | None]  # what is said of it, state, timers
Begun = dict[int, tuple[str, list[pa.RecordBatch]]]  # unit that is not complete -> its name, and what has come of it


def _units(chunks: Iterable[Any], begun: Begun) -> Iterator[list[Unit]]:
    """The units that are complete with each chunk, as they come: the inverse of ``_chunks``.

    ``begun`` is what earlier streams left, and what this one leaves to the next. Raises ServiceUnavailable if parts are
    missing.
    """
    for chunk in chunks:
        complete: list[Unit] = []
        for part in _unpack(chunk):
            before: list[pa.RecordBatch] = []
            if part.number:
                name, parts = begun.get(part.about["unit"], ("", []))
                before = parts[: part.number] if name == _name(part.about) else []
            if len(before) < part.number:
                raise ServiceUnavailable(f"part {part.number} of a unit came behind {len(before)} others: {part.about}")
            if part.last:
                complete.append((part.about, [*before, part.batch], part.timers))
            else:
                begun[part.about["unit"]] = _name(part.about), [*before, part.batch]
        yield complete
        for about, *_ in complete:  # not before they are installed
            begun.pop(about["unit"], None)


class StateServer(flight.FlightServerBase):
    """Serves and accepts the state of the slots that live in this process."""

    def __init__(
        self, holder: Holder, host: str, token: str, chunk_bytes: int, certificate: Certificate | None = None
    ) -> None:
        scheme, proof = "grpc", []
        if certificate is not None:
            scheme, proof = "grpc+tls", [(certificate.chain, certificate.key)]
        middleware = {"token": _TokenFactory(token)}
        super().__init__(f"{scheme}://{host}:0", tls_certificates=proof, middleware=middleware)
        self.address = f"{host}:{self.port}"
        self._holder = holder
        self._chunk_bytes = chunk_bytes
        self._begun: dict[int, Begun] = {}  # by slot
        self.moved_at = 0.0  # when state came last; by the monotonic clock

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Whatever goes to and fro: its kind is said at the beginning."""
        request = json.loads(descriptor.command)
        if not reader.schema.equals(self._holder.state_schema):
            raise flight.FlightServerError(f"state has columns {reader.schema.names}, not those of this job")
        match request["kind"]:
            case "units" | "copies":
                self._take(request, reader, writer)
            case "sealed":
                self._give(self._sealed(request), writer)
            case "rest":
                self._give(self._rest(request), writer)
            case "keys":
                self._answer(reader, writer)

    def _take(self, request: dict[str, Any], reader: Any, writer: Any) -> None:
        """Units for one slot, or parts of copies for it; each is acknowledged when it is there. First it is said how
        many parts have come of units that are not complete (of copies none: they may have changed since).
        """
        slot = request["slot"]
        begun = self._begun.setdefault(slot, {}) if request["kind"] == "units" else {}
        writer.write_metadata(json.dumps({name: len(parts) for name, parts in list(begun.values())}).encode())
        for units in _units(self._moving(reader), begun):  # each chunk is answered: it tells that somebody is there
            taken = [True] * len(units)
            match request["kind"]:
                case "units" if units:
                    taken = self._holder.receive(slot, [_parcel(*unit) for unit in units])
                case "copies":
                    for about, batches, _ in units:
                        self._holder.copy(slot, about["unit"], about["part"], batches, about["deleted"])
            answers = [[about["unit"], each] for (about, *_), each in zip(units, taken, strict=True)]
            writer.write_metadata(json.dumps(answers).encode())

    def _moving(self, chunks: Iterable[Any]) -> Iterator[Any]:
        for chunk in chunks:
            self.moved_at = time.monotonic()
            yield chunk

    def _give(self, parts: Iterable[_Part], writer: Any) -> None:
        writer.begin(self._holder.state_schema)
        for batch, metadata in _chunks(parts, min(_SHARED_BYTES, self._chunk_bytes)):
            writer.write_with_metadata(batch, metadata)

    def _answer(self, reader: Any, writer: Any) -> None:
        """Keys of units whose ownership has left: see ``StateClients.keys``. A batch to and fro for each request."""
        schema, holder = self._holder.state_schema, self._holder
        writer.begin(schema)
        for chunk in reader:
            request = json.loads(chunk.app_metadata.to_pybytes())
            for unit, version, keys in request["moved"]:
                holder.forget((unit, version), keys)
            written = rows.split(chunk.data, request["sizes"])
            for (unit, version, deleted), part in zip(request["written"], written, strict=True):
                holder.write((unit, version), request["number"], part, deleted)
            answer, sizes = rows.join(schema, [holder.keys((unit, v), keys) for unit, v, keys in request["stays"]])
            writer.write_with_metadata(answer, json.dumps(sizes).encode())

    def _sealed(self, request: dict[str, Any]) -> Iterator[_Part]:
        """Units that a slot left here at the end of a batch, without the parts that have come."""
        slot, units = request["slot"], request["units"]
        for unit, come in units:
            try:
                state = self._holder.sealed(slot, unit)
            except KeyError:
                raise flight.FlightServerError(f"unit {unit} of slot {slot} is not here") from None
            values = state.export(self._chunk_bytes)
            parts = _parts({"unit": unit}, values, self._holder.state_schema, state.timers.export())
            yield from (part for part in parts if part.number >= come)

    def _rest(self, request: dict[str, Any]) -> Iterator[_Part]:
        """All keys that are still here of units whose ownership has left."""
        for unit, version, after in request["stays"]:
            values = self._holder.rest((unit, version), after)
            yield from _parts({"unit": unit, "version": version}, values, self._holder.state_schema)

    def do_action(self, context: Any, action: Any) -> Iterator[flight.Result]:
        """A short message."""
        self._holder.message(action.type, json.loads(action.body.to_pybytes()))
        return iter(())


def _parcel(about: dict[str, Any], batches: list[pa.RecordBatch], timers: pa.RecordBatch | None) -> Parcel:
    about["routers"] = None if about["routers"] is None else frozenset(about["routers"])
    about["deleted"] = tuple(about["deleted"])
    about["delta_of"] = about["delta_of"] and tuple(about["delta_of"])
    return Parcel(batches=batches, timers=timers, **about)


class _Stream:
    """One call in both directions. Nothing that is written raises: who reads hears why it has ended."""

    def __init__(self, kind: str, address: str, writer: Any, reader: Any) -> None:
        self._name = f"stream of {kind} with {address}"
        self._writer, self._reader = writer, reader
        self._over = False
        self.moved_at: float | None = time.monotonic()  # when something moved last; None: nobody waits for anything

    def begin(self, schema: pa.Schema) -> None:
        self._try(self._writer.begin, schema)

    def write(self, batch: pa.RecordBatch, metadata: Any) -> bool:
        """Whether it is on its way."""
        return self._try(self._writer.write_with_metadata, batch, metadata)

    def done_writing(self) -> None:
        self._try(self._writer.done_writing)

    def _try(self, act: Callable[..., None], *what: Any) -> bool:
        if not self._over:
            try:
                act(*what)
            except (flight.FlightError, OSError):
                self._over = True
        self.moved_at = time.monotonic()
        return not self._over

    def read(self) -> Any:
        """The next chunk, None at the end. Raises ServiceUnavailable."""
        self.moved_at = time.monotonic()
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"{self._name}: {error}") from error
        self.moved_at = time.monotonic()
        return chunk

    def answers(self) -> Iterator[Any]:
        """What the other side says, without state, until the end."""
        while (chunk := self.read()) is not None:
            yield json.loads(chunk.app_metadata.to_pybytes())

    def end(self) -> None:
        """Whether it has ended or not; whoever reads hears of it."""
        self._reader.cancel()

    def close(self) -> None:
        """To be called when nobody reads any more; or Arrow does it, and complains."""
        self.end()
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            self._writer.close()

    def end_if_silent(self, for_s: float) -> None:
        if (moved_at := self.moved_at) is not None and time.monotonic() - moved_at > for_s:
            self._name += f", silent for {for_s:g} s"
            self.moved_at = None
            self.end()


class StateClients:
    """Connections to the other slots, kept open. One user thread at a time per address and kind of call.

    Every method raises ServiceUnavailable if the other side is not there or refuses, or if nothing moves for
    ``deadline_s``; it may be called again then, and goes on where it broke.
    """

    def __init__(
        self,
        token: str,
        deadline_s: float,
        schema: pa.Schema,
        chunk_bytes: int,
        certificate: Certificate | None = None,
    ) -> None:
        self._token, self._deadline_s, self._certificate = token, deadline_s, certificate
        self._schema, self._chunk_bytes = schema, chunk_bytes
        self._clients: dict[str, flight.FlightClient] = {}
        self._streams: set[_Stream] = set()
        self._questions: dict[str, _Stream] = {}  # a call of its own for each request would cost four times as much
        self._numbers = itertools.count(1)  # of requests for keys
        self._begun: dict[tuple[str, int], Begun] = {}  # address, slot -> what has come of units that are pulled
        self.moved_at = 0.0  # when the other side of any stream was heard last; by the monotonic clock
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="keyshift-silence", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(self._deadline_s / 4):
            for stream in self._all_streams():
                stream.end_if_silent(self._deadline_s)

    def _all_streams(self) -> list[_Stream]:
        with self._lock:
            return list(self._streams)

    def _to(self, address: str) -> flight.FlightClient:
        with self._lock:
            if self._closed.is_set():
                raise ServiceUnavailable(f"{address} is not called any more")
            if address not in self._clients:
                self._clients[address] = self._connected(address)
            return self._clients[address]

    def _connected(self, address: str) -> flight.FlightClient:
        certificate = self._certificate
        if certificate is None:
            return flight.FlightClient(f"grpc://{address}")
        return flight.FlightClient(
            f"grpc+tls://{address}", tls_root_certs=certificate.chain, override_hostname=certificate.NAME
        )

    def _open(self, address: str, request: dict[str, Any]) -> _Stream:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        try:
            ends = self._to(address).do_exchange(descriptor, _options(self._token))
        except (flight.FlightError, OSError) as error:
            raise ServiceUnavailable(f"{address} cannot be called: {error}") from error
        stream = _Stream(request["kind"], address, *ends)
        with self._lock:
            self._streams.add(stream)
        if self._closed.is_set():  # meanwhile
            stream.end()
        stream.begin(self._schema)
        return stream

    def _close(self, stream: _Stream) -> None:
        stream.close()
        with self._lock:
            self._streams.discard(stream)

    @contextlib.contextmanager
    def _stream(self, address: str, request: dict[str, Any]) -> Iterator[_Stream]:
        stream = self._open(address, request)
        try:
            yield stream
        finally:
            self._close(stream)

    def push(
        self,
        address: str,
        slot: int,
        home: str,
        parcels: Iterable[Parcel],
        sent: Callable[[Parcel, int], None],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        """Send units to ``slot`` at ``address``: calls ``sent(parcel, bytes)`` before the last of each is written and
        ``acknowledged`` as they are installed there (or refused, if it was a delta over nothing).
        """

        def parts(parcel: Parcel) -> Iterator[_Part]:
            assert parcel.state is not None
            values, deleted = parcel.values(self._schema, self._chunk_bytes)
            about, size = parcel.about(home) | {"deleted": deleted}, 0
            for part in _parts(about, values, self._schema, parcel.state.timers.export()):
                size += part.nbytes
                if part.last:
                    sent(parcel, size)  # now: the acknowledgement may be very quick
                yield part

        self._put(address, {"kind": "units", "slot": slot}, map(parts, parcels), acknowledged)

    def copy(
        self, address: str, slot: int, unit: int, part: CopyPart, batches: list[pa.RecordBatch], deleted: list[int]
    ) -> None:
        """Send a part of the copy of ``unit`` to the process of ``slot``, and wait until it is there."""
        about = {"unit": unit, "part": part, "deleted": deleted}
        parts = _parts(about, batches, self._schema)
        self._put(address, {"kind": "copies", "slot": slot}, [parts], lambda _: None)

    def _put(
        self,
        address: str,
        request: dict[str, Any],
        units: Iterable[Iterator[_Part]],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        begun: dict[str, int] = {}  # what has come of units in streams that broke: number of parts
        greeted = threading.Event()
        trouble: list[BaseException] = []

        def parts() -> Iterator[_Part]:
            for unit in units:
                come = 0
                for part in unit:
                    if part.number == 0 and not part.last:
                        greeted.wait()
                        come = begun.get(_name(part.about), 0)
                    if part.number >= come:
                        yield part

        with self._stream(address, request) as stream:

            def listen() -> None:
                try:
                    answers = stream.answers()
                    begun.update(next(answers, {}))
                    greeted.set()
                    for answer in answers:
                        self.moved_at = time.monotonic()
                        acknowledged(answer)
                except BaseException as error:
                    trouble.append(error)
                    stream.end()
                finally:
                    greeted.set()

            listener = threading.Thread(target=listen, name="keyshift-acks", daemon=True)
            listener.start()
            try:
                went = all(stream.write(*chunk) for chunk in _chunks(parts(), min(_SHARED_BYTES, self._chunk_bytes)))
                stream.done_writing()
            except BaseException:
                stream.end()
                raise
            finally:
                listener.join()  # nothing is acknowledged once this has returned
        if trouble:
            raise trouble[0]
        if not went:
            raise ServiceUnavailable(f"{address} takes no more")

    def pull(self, address: str, slot: int, units: list[int], arrived: Callable[[list[Parcel]], object]) -> None:
        """Fetch units that ``slot`` left at ``address``. They are left there no more when all have come."""
        begun = self._begun.setdefault((address, slot), {})
        wanted = [(unit, len(begun[unit][1]) if unit in begun else 0) for unit in units]
        for some in _units(self._get(address, {"kind": "sealed", "slot": slot, "units": wanted}), begun):
            if some:
                arrived([Parcel(about["unit"], batches=batches, timers=timers) for about, batches, timers in some])

    def keys(
        self, address: str, stays: Sequence[KeysOf], moved: Sequence[KeysOf] = (), written: Sequence[Written] = ()
    ) -> Answer:
        """Ask for single keys: those of ``stays`` that are there come. They are there until it is said, by a later
        call, that they have ``moved``; values that were ``written`` here are there before the answer is made. If it
        fails, later calls have to write these keys again, with the same values or newer ones.
        """
        given, sizes = rows.join(self._schema, [part for *_, part in written])
        about = [(*stay, deleted) for stay, deleted, _ in written]
        request = {"number": next(self._numbers), "stays": stays, "moved": moved, "written": about, "sizes": sizes}
        with self._lock:
            stream = self._questions.pop(address, None)
        stream = stream or self._open(address, {"kind": "keys"})
        try:
            stream.write(given, json.dumps(request).encode())
            chunk = stream.read()
            if chunk is None:
                raise ServiceUnavailable(f"{address} answers no more")
        except BaseException:
            self._close(stream)
            raise
        stream.moved_at = None
        with self._lock:
            self._questions[address] = stream
        self.moved_at = time.monotonic()
        counts = json.loads(chunk.app_metadata.to_pybytes())
        return Answer(rows.split(chunk.data, counts), chunk.data.nbytes, given.nbytes)

    def rest(
        self,
        address: str,
        stays: Iterable[tuple[Stay, int | None]],
        arrived: Callable[[Stay, pa.RecordBatch, bool], None],
    ) -> None:
        """Ask for all keys of these units that are still there, ascending: of each those behind the key that is said,
        if one is. Calls ``arrived(stay, rows, whether these are the last)`` as they come.
        """
        request = {"kind": "rest", "stays": [(*stay, after) for stay, after in stays]}
        for chunk in self._get(address, request):
            for part in _unpack(chunk):
                arrived((part.about["unit"], part.about["version"]), part.batch, part.last)

    def _get(self, address: str, request: dict[str, Any]) -> Iterator[Any]:
        with self._stream(address, request) as stream:
            stream.done_writing()
            while (chunk := stream.read()) is not None:
                self.moved_at, stream.moved_at = time.monotonic(), None  # what is done with it now may take its time
                yield chunk

    def tell(self, address: str, kind: str, body: dict[str, Any]) -> None:
        """A short message: ``units`` (slot; wanted: rows of unit, version, router, hop; opened: rows of unit, version),
        ``taken`` (slot, units: what it had left there has come), ``copies`` (slot, units: of which it needs none) or
        ``drop`` (stays: rows of unit, version; nobody will ask for their keys any more).
        """
        action = flight.Action(kind, json.dumps(body).encode())
        try:
            list(self._to(address).do_action(action, _options(self._token, self._deadline_s)))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"a message could not be sent to {address}: {error}") from error

    def close(self) -> None:
        """Close all connections, and end what is under way."""
        self._closed.set()
        for stream in self._all_streams():
            stream.end()
        with self._lock:
            idle = list(self._questions.values())
            self._questions.clear()
        for stream in idle:
            self._close(stream)
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
