"""The end of Flight that calls: sends, fetches and asks."""

import contextlib
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.model.keys import SlotId, UnitId
from keyshift.model.messages import decode, encode
from keyshift.runtime.key_access import Stay, WrittenKeys
from keyshift.runtime.row import Row
from keyshift.state import rows
from keyshift.wire import spark_rows
from keyshift.wire.config import Certificate
from keyshift.worker.flight import messages
from keyshift.worker.flight.connection import flight_client
from keyshift.worker.flight.messages import (
    Acknowledged,
    AnswerKeys,
    CopyPart,
    FlightRequest,
    GiveRest,
    GiveRows,
    GiveSealed,
    Greeting,
    KeysAsked,
    KeysOf,
    Label,
    Message,
    Pulled,
    RestOf,
    Shipment,
    TakeCopies,
    TakeUnits,
)
from keyshift.worker.flight.stream import AWAY, BROKEN, Stream


class KeysFound(NamedTuple):
    """The rows found for each request, their bytes, and the bytes that were written."""

    found: list[list[rows.KeyValue]]
    nbytes: int
    written_bytes: int


def _options(token: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", f"Bearer {token}".encode())])


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
        self._streams: set[Stream] = set()
        self._questions: dict[str, Stream] = {}  # a call of its own for each request would cost four times as much
        self._numbers = itertools.count(1)  # of requests for keys
        # By address and slot: what has come of units that are pulled.
        self._begun: dict[tuple[str, int], messages.Begun] = {}
        self.moved_at = 0.0  # when the other side of any stream was heard last; by the monotonic clock
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="keyshift-silence", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(self._deadline_s / 4):
            for stream in self._all_streams():
                stream.end_if_silent(self._deadline_s)

    def _all_streams(self) -> list[Stream]:
        with self._lock:
            return list(self._streams)

    def _to(self, address: str) -> flight.FlightClient:
        with self._lock:
            if self._closed.is_set():
                raise ServiceUnavailable(f"{address} is not called any more")
            if address not in self._clients:
                scheme, proof = "grpc", {}
                if self._certificate is not None:
                    scheme = "grpc+tls"
                    proof = {"tls_root_certs": self._certificate.chain, "override_hostname": self._certificate.NAME}
                self._clients[address] = flight_client(address, scheme, **proof)
            return self._clients[address]

    def _open(self, address: str, request: FlightRequest) -> Stream:
        descriptor = flight.FlightDescriptor.for_command(encode(request))
        with service_errors(AWAY, lambda error: f"{address} cannot be called: {error}"):
            ends = self._to(address).do_exchange(descriptor, _options(self._token))
        stream = Stream(request.kind, address, *ends)
        with self._lock:
            self._streams.add(stream)
        if self._closed.is_set():  # meanwhile
            stream.end()
        stream.begin(self._schema)
        return stream

    def _close(self, stream: Stream) -> None:
        stream.close()
        with self._lock:
            self._streams.discard(stream)

    @contextlib.contextmanager
    def _stream(self, address: str, request: FlightRequest) -> Iterator[Stream]:
        stream = self._open(address, request)
        try:
            yield stream
        finally:
            self._close(stream)

    def push(
        self,
        address: str,
        slot: SlotId,
        home: str,
        shipments: Iterable[Shipment],
        sent: Callable[[Shipment, int], None],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        """Send units to ``slot`` at ``address``: calls ``sent(shipment, bytes)`` before the last of each is written and
        ``acknowledged`` as they are installed there (or refused, if it was a delta over nothing).
        """

        def fragments(shipment: Shipment) -> Iterator[messages.Fragment]:
            assert shipment.state is not None
            (label, values), size = shipment.leaving(home, self._schema, self._chunk_bytes), 0
            for fragment in messages.fragments(label, values, self._schema, shipment.state.timers.export()):
                size += fragment.nbytes
                if fragment.last:
                    sent(shipment, size)  # now: the acknowledgement may be very quick
                yield fragment

        self._put(address, TakeUnits(slot), map(fragments, shipments), acknowledged)

    def copy(
        self,
        address: str,
        slot: SlotId,
        unit: UnitId,
        part: CopyPart,
        batches: list[pa.RecordBatch],
        deleted: list[int],
    ) -> None:
        """Send a part of the copy of ``unit`` to the process of ``slot``, and wait until it is there."""
        label = Label(unit, part=part, deleted=tuple(deleted))
        fragments = messages.fragments(label, batches, self._schema)
        self._put(address, TakeCopies(slot), [fragments], lambda _: None)

    def _put(
        self,
        address: str,
        request: FlightRequest,
        units: Iterable[Iterator[messages.Fragment]],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        begun: Greeting = {}  # what has come of units in streams that broke
        greeted = threading.Event()
        under_way: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each chunk, False behind the last one
        trouble: list[BaseException] = []

        def fragments() -> Iterator[messages.Fragment]:
            for unit in units:
                come = 0
                for fragment in unit:
                    if fragment.number == 0 and not fragment.last:
                        greeted.wait()
                        come = begun.get(fragment.label.journey, 0)
                    if fragment.number >= come:
                        yield fragment

        with self._stream(address, request) as stream:

            def write_all() -> bool:
                for chunk in messages.chunks(fragments(), self._chunk_bytes):
                    under_way.put(True)
                    if not stream.write(*chunk):
                        return False
                return True

            def listen() -> None:
                try:
                    answers = stream.answers()
                    begun.update(decode(Greeting, next(answers, b"{}")))
                    greeted.set()
                    while under_way.get() and (answer := next(answers, None)) is not None:
                        self.moved_at = time.monotonic()
                        acknowledged(decode(Acknowledged, answer))
                except BaseException as error:
                    trouble.append(error)
                    stream.end()
                finally:
                    greeted.set()

            listener = threading.Thread(target=listen, name="keyshift-acks", daemon=True)
            listener.start()
            try:
                went = write_all()
            except BaseException:
                stream.end()
                raise
            finally:
                under_way.put(False)
                listener.join()  # nothing is acknowledged once this has returned
            if trouble:
                raise trouble[0]
            # Not before: Flight ends the process if a call fails for its reader while the writer says that it is done.
            stream.done_writing()
            stream.read()  # why it has ended, if it broke
        if not went:
            raise ServiceUnavailable(f"{address} takes no more")

    def pull(
        self, address: str, slot: SlotId, units: list[UnitId], arrived: Callable[[list[Shipment]], object]
    ) -> None:
        """Fetch units that ``slot`` left at ``address``. They are left there no more when all have come."""
        begun = self._begun.setdefault((address, slot), {})
        wanted = tuple(Pulled(unit, len(begun[unit][1]) if unit in begun else 0) for unit in units)
        for some in messages.units(self._get(address, GiveSealed(slot, wanted)), begun):
            if some:
                arrived([Shipment.arrived(*unit) for unit in some])

    def left_rows(self, address: str, slot: SlotId) -> list[Row]:
        """Fetch the rows of routers that ``slot`` left at ``address``."""
        found: list[Row] = []
        for chunk in self._get(address, GiveRows(slot)):
            batch, _ = frames.decode(chunk.app_metadata, spark_rows.VALUES)
            found += spark_rows.received(batch)
        return found

    def keys(
        self, address: str, stays: Sequence[KeysOf], moved: Sequence[KeysOf] = (), written: Sequence[WrittenKeys] = ()
    ) -> KeysFound:
        """Request single keys: those of ``stays`` that exist at ``address``. They stay there until a later call names
        them as ``moved``. The values in ``written`` are stored there before the answer is made. If the call fails, a
        later one has to write these keys again, with the same values or newer ones.
        """
        given, sizes = rows.join(self._schema, [fragment for *_, fragment in written])
        deleted: list[KeysOf] = [(*stay, keys) for stay, keys, _ in written]
        asked = KeysAsked(next(self._numbers), list(stays), list(moved), deleted, sizes)
        with self._lock:
            stream = self._questions.pop(address, None)
        stream = stream or self._open(address, AnswerKeys())
        try:
            stream.write(given, encode(asked))
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
        counts = decode(list[int], chunk.app_metadata.to_pybytes())
        return KeysFound(rows.split(chunk.data, counts), chunk.data.nbytes, given.nbytes)

    def rest(
        self,
        address: str,
        stays: Iterable[tuple[Stay, int | None]],
        arrived: Callable[[Stay, pa.RecordBatch, bool], None],
    ) -> None:
        """Request all keys of these units that are still there, ascending, each unit from behind the given key on.
        Calls ``arrived(stay, rows, whether these are the last)`` as they come.
        """
        for chunk in self._get(address, GiveRest(tuple(RestOf(*stay, after) for stay, after in stays))):
            for fragment in messages.unpack(chunk):
                arrived((fragment.label.unit, fragment.label.version), fragment.batch, fragment.last)

    def _get(self, address: str, request: FlightRequest) -> Iterator[Any]:
        with self._stream(address, request) as stream:
            stream.done_writing()
            while (chunk := stream.read()) is not None:
                self.moved_at, stream.moved_at = time.monotonic(), None  # what is done with it now may take its time
                yield chunk

    def tell(self, address: str, message: Message) -> None:
        """Say something short; it has arrived when this returns."""
        action = flight.Action(message.kind, encode(message))
        with service_errors(BROKEN, lambda error: f"a message could not be sent to {address}: {error}"):
            list(self._to(address).do_action(action, _options(self._token, self._deadline_s)))

    def cut(self, server: str) -> None:
        """A deliberate fault: the network ends all connections of this process with other slots, whether they were
        begun here or by them at our own ``server``.
        """
        with self._lock:
            ports = {int(address.rpartition(":")[2]) for address in (*self._clients, server)}
        for each in psutil.Process().net_connections("tcp"):
            if each.raddr and ports & {each.laddr.port, each.raddr.port}:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)  # of the connection, whoever else has a number for it

    def close(self) -> None:
        """Close all connections, and end what is under way. One in which a message is being told closes behind that."""
        self._closed.set()
        for stream in self._all_streams():
            stream.end()
        with self._lock:
            idle = list(self._questions.values())
            self._questions.clear()
        for stream in idle:
            self._close(stream)
        with self._lock:  # whoever uses it last closes it: Flight crashes if it is closed while a call begins
            self._clients.clear()
