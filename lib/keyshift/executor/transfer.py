"""What slots send to each other beside the data path, over Arrow Flight: units, single keys, and short messages.

A stream of units carries the state of one after the other, in chunks whose metadata say what each row belongs to: a
large unit has several chunks, small ones share one. Timers travel with the last rows of their unit. The receiver
acknowledges the units of a chunk when they are installed.
"""

import contextlib
import hmac
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
from keyshift.state import UnitState, rows
from keyshift.state.timers import TIMER_SCHEMA

Stay = tuple[int, int]  # a unit, and the version with which its ownership left the place where its keys still are
KeysOf = tuple[int, int, list[int]]  # unit, version, keys
Acknowledged = list[tuple[int, bool]]  # units, and whether they were taken
Written = tuple[Stay, list[int], list[rows.Row]]  # keys that are deleted, and those that have new values
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

    def rest(self, stay: Stay, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """All keys that are still here, of a unit whose ownership has left."""

    def forget(self, stay: Stay, keys: list[int]) -> None:
        """These keys have come to live elsewhere."""

    def write(self, stay: Stay, written: list[rows.Row], deleted: list[int]) -> None:
        """Keys that were used elsewhere come back with new values, or are nowhere any more."""

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
    """A batch of the state of one unit. With the last one: what is said of the unit, and its timers if they travel."""

    batch: pa.RecordBatch
    nbytes: int
    about: dict[str, Any] | None = None
    timers: pa.RecordBatch | None = None


Chunk = tuple[pa.RecordBatch, pa.Buffer]  # state, metadata


def _parts(
    about: dict[str, Any], batches: Iterable[pa.RecordBatch], schema: pa.Schema, timers: pa.RecordBatch | None = None
) -> Iterator[_Part]:
    """One unit; a part without rows if there is no batch."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if held is not None:
            yield _Part(held, held.nbytes)
        held = batch
    if held is None:
        held = frames.empty(schema)
    yield _Part(held, held.nbytes, about, timers)


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
    about = [
        {"rows": part.batch.num_rows, "timers": len(part.timers or ()), "last": part.about is not None}
        | (part.about or {})
        for part in parts
    ]
    head = json.dumps(about).encode()
    tail = frames.encode(pa.concat_batches(timers)) if timers else b""
    batch = parts[0].batch if len(parts) == 1 else pa.concat_batches([part.batch for part in parts])
    return batch, pa.py_buffer(len(head).to_bytes(_LENGTH_BYTES, "big") + head + tail)


Unit = tuple[dict[str, Any], list[pa.RecordBatch], pa.RecordBatch | None]  # what is said of it, state, timers


def _units(chunks: Iterable[Any]) -> Iterator[list[Unit]]:
    """The units that are complete with a chunk, of chunks as they come: the inverse of ``_chunks``."""
    batches: list[pa.RecordBatch] = []
    for chunk in chunks:
        raw = chunk.app_metadata.to_pybytes()
        end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
        all_timers = frames.decode(raw[end:], TIMER_SCHEMA)[0] if len(raw) > end else None
        complete: list[Unit] = []
        row = timer = 0
        for about in json.loads(raw[_LENGTH_BYTES:end]):
            rows_, timers_ = about.pop("rows"), about.pop("timers")
            batches.append(chunk.data.slice(row, rows_))
            if about.pop("last"):
                timers = all_timers.slice(timer, timers_) if all_timers is not None and timers_ else None
                complete.append((about, batches, timers))
                batches = []
            row, timer = row + rows_, timer + timers_
        if complete:
            yield complete


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

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Units for one slot, or parts of copies for it; each is acknowledged when it is there."""
        request = json.loads(descriptor.command)
        self._check(reader.schema)
        slot = request["slot"]
        for units in _units(reader):
            taken = [True] * len(units)
            match request["kind"]:
                case "units":
                    taken = self._holder.receive(slot, [_parcel(*unit) for unit in units])
                case "copies":
                    for about, batches, _ in units:
                        self._holder.copy(slot, about["unit"], about["part"], batches, about["deleted"])
            answers = [[about["unit"], each] for (about, *_), each in zip(units, taken, strict=True)]
            writer.write(json.dumps(answers).encode())

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Units that a slot left here at the end of a batch, or all keys of units whose ownership has left."""
        request = json.loads(ticket.ticket)
        source = {"sealed": self._sealed, "rest": self._rest}[request["kind"]]
        chunks = _chunks(source(request), min(_SHARED_BYTES, self._chunk_bytes))
        return flight.GeneratorStream(self._holder.state_schema, chunks)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Keys of units whose ownership has left: see ``StateClients.keys``. A batch to and fro for each request."""
        schema, holder = self._holder.state_schema, self._holder
        self._check(reader.schema)
        writer.begin(schema)
        with contextlib.suppress(StopIteration):  # which is how the other side says that it asks no more
            while True:
                chunk = reader.read_chunk()
                request = json.loads(chunk.app_metadata.to_pybytes())
                for unit, version, keys in request["moved"]:
                    holder.forget((unit, version), keys)
                written = rows.split(chunk.data, request["sizes"])
                for (unit, version, deleted), part in zip(request["written"], written, strict=True):
                    holder.write((unit, version), part, deleted)
                answer, sizes = rows.join(schema, [holder.keys((unit, v), keys) for unit, v, keys in request["stays"]])
                writer.write_with_metadata(answer, json.dumps(sizes).encode())

    def _check(self, schema: pa.Schema) -> None:
        if not schema.equals(self._holder.state_schema):
            raise flight.FlightServerError(f"state has columns {schema.names}, not those of this job")

    def _sealed(self, request: dict[str, Any]) -> Iterator[_Part]:
        slot, units = request["slot"], request["units"]
        for unit in units:
            try:
                state = self._holder.sealed(slot, unit)
            except KeyError:
                raise flight.FlightServerError(f"unit {unit} of slot {slot} is not here") from None
            values = state.export(self._chunk_bytes)
            yield from _parts({"unit": unit}, values, self._holder.state_schema, state.timers.export())

    def _rest(self, request: dict[str, Any]) -> Iterator[_Part]:
        for unit, version in request["stays"]:
            values = self._holder.rest((unit, version), self._chunk_bytes)
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


class _Questions:
    """A stream of requests for keys, and of their answers: a call of its own for each would cost four times as much."""

    def __init__(self, client: flight.FlightClient, token: str, deadline_s: float, schema: pa.Schema) -> None:
        self._deadline_s, self._opened = deadline_s, time.monotonic()
        self._writer, self._reader = client.do_exchange(
            flight.FlightDescriptor.for_command(b"keys"), _options(token, 2 * deadline_s)
        )
        self._writer.begin(schema)

    @property
    def old(self) -> bool:
        """Whether less than a deadline is left of its life: what is asked now might not be answered."""
        return time.monotonic() - self._opened > self._deadline_s

    def ask(self, request: dict[str, Any], batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        self._writer.write_with_metadata(batch, json.dumps(request).encode())
        answer = self._reader.read_chunk()
        return answer.data, json.loads(answer.app_metadata.to_pybytes())

    def close(self) -> None:
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            self._writer.close()


class StateClients:
    """Connections to the other slots, kept open. One user thread at a time per address and kind of call.

    Every method raises ServiceUnavailable if the other side is not there or refuses.
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
        self._questions: dict[str, _Questions] = {}
        self._closed = False
        self._lock = threading.Lock()

    def _to(self, address: str) -> flight.FlightClient:
        with self._lock:
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

        def parts() -> Iterator[_Part]:
            for parcel in parcels:
                assert parcel.state is not None
                values, deleted = parcel.values(self._schema, self._chunk_bytes)
                about, size = parcel.about(home) | {"deleted": deleted}, 0
                for part in _parts(about, values, self._schema, parcel.state.timers.export()):
                    size += part.nbytes
                    if part.about is not None:
                        sent(parcel, size)  # now: the acknowledgement may be very quick
                    yield part

        self._put(address, {"kind": "units", "slot": slot}, parts(), acknowledged)

    def copy(
        self, address: str, slot: int, unit: int, part: CopyPart, batches: list[pa.RecordBatch], deleted: list[int]
    ) -> None:
        """Send a part of the copy of ``unit`` to the process of ``slot``, and wait until it is there."""
        about = {"unit": unit, "part": part, "deleted": deleted}
        parts = _parts(about, batches, self._schema)
        self._put(address, {"kind": "copies", "slot": slot}, parts, lambda _: None)

    def _put(
        self,
        address: str,
        request: dict[str, Any],
        parts: Iterable[_Part],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        hearing, over = threading.Lock(), False
        try:
            writer, reader = self._to(address).do_put(descriptor, self._schema, _options(self._token, self._deadline_s))
            trouble: list[BaseException] = []

            def read_acks() -> None:
                try:
                    while (buffer := reader.read()) is not None:
                        with hearing:
                            if over:  # a unit may have come back and gone again since then
                                return
                            acknowledged(json.loads(buffer.to_pybytes()))
                except BaseException as error:
                    trouble.append(error)

            acks = threading.Thread(target=read_acks, name="keyshift-acks", daemon=True)
            acks.start()
            with writer:
                for batch, info in _chunks(parts, min(_SHARED_BYTES, self._chunk_bytes)):
                    writer.write_with_metadata(batch, info)
                writer.done_writing()
                acks.join(self._deadline_s)
            if trouble:
                raise trouble[0]
            if acks.is_alive():
                raise ServiceUnavailable(f"{address} did not acknowledge state within {self._deadline_s:g} s")
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"state could not be sent to {address}: {error}") from error
        finally:
            with hearing:
                over = True

    def pull(self, address: str, slot: int, units: list[int], arrived: Callable[[list[Parcel]], object]) -> None:
        """Fetch units that ``slot`` left at ``address``. They are there until it is told that they were ``taken``."""
        for some in self._get(address, {"kind": "sealed", "slot": slot, "units": units}):
            arrived([Parcel(about["unit"], batches=batches, timers=timers) for about, batches, timers in some])

    def keys(
        self, address: str, stays: Sequence[KeysOf], moved: Sequence[KeysOf] = (), written: Sequence[Written] = ()
    ) -> Answer:
        """Ask for single keys: those of ``stays`` that are there come. They are there until it is said, by a later
        call, that they have ``moved``; values that were ``written`` here are there before the answer is made.
        """
        with self._lock:
            questions = self._questions.pop(address, None)
        try:
            if questions is not None and questions.old:
                questions.close()
                questions = None
            if questions is None:
                questions = _Questions(self._to(address), self._token, self._deadline_s, self._schema)
            given, sizes = rows.join(self._schema, [part for *_, part in written])
            about = [(*stay, deleted) for stay, deleted, _ in written]
            answer, counts = questions.ask({"stays": stays, "moved": moved, "written": about, "sizes": sizes}, given)
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
            raise ServiceUnavailable(f"keys could not be fetched from {address}: {error}") from error
        with self._lock:
            if self._closed:
                questions.close()  # the other side would wait for it
            else:
                self._questions[address] = questions
        return Answer(rows.split(answer, counts), answer.nbytes, given.nbytes)

    def rest(self, address: str, stays: list[Stay], arrived: Callable[[Stay, list[pa.RecordBatch]], None]) -> None:
        """Ask for all keys of these units that are still there."""
        for some in self._get(address, {"kind": "rest", "stays": stays}):
            for about, batches, _ in some:
                arrived((about["unit"], about["version"]), batches)

    def _get(self, address: str, request: dict[str, Any]) -> Iterator[list[Unit]]:
        ticket = flight.Ticket(json.dumps(request).encode())
        try:
            yield from _units(self._to(address).do_get(ticket, _options(self._token, self._deadline_s)))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"state could not be fetched from {address}: {error}") from error

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
        """Close all connections."""
        with self._lock:
            self._closed = True
            for questions in self._questions.values():
                questions.close()
            self._questions.clear()
            for client in self._clients.values():
                client.close()
            self._clients.clear()
