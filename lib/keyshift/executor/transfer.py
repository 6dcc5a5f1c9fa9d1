"""State from slot to slot over Arrow Flight: pushed during a migration, pulled after a batch boundary.

A stream carries the state of one or more units, one after the other: chunks whose metadata name the unit and say which
chunk is its last. The receiver acknowledges each unit when it is installed.
"""

import hmac
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from keyshift.errors import ServiceUnavailable
from keyshift.state import UnitState


class Holder(Protocol):
    """Who the server asks: the process that holds slots."""

    state_schema: pa.Schema  # with the key

    def receive(self, slot: int, unit: int, batches: list[pa.RecordBatch], info: dict[str, Any]) -> None:
        """The whole state of ``unit`` has come for ``slot``."""

    def sealed(self, slot: int, unit: int) -> UnitState:
        """State that ``slot`` left here at the end of a batch. Raises KeyError if it is not here."""

    def taken(self, slot: int, unit: int) -> None:
        """The sealed state of ``unit`` has been handed over and may be dropped."""


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


class StateServer(flight.FlightServerBase):
    """Serves and accepts the state of the slots that live in this process."""

    def __init__(self, holder: Holder, host: str, token: str, chunk_bytes: int) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"token": _TokenFactory(token)})
        self.address = f"{host}:{self.port}"
        self._holder = holder
        self._chunk_bytes = chunk_bytes

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Accept units for one slot; each is acknowledged by its number when it is installed."""
        request = json.loads(descriptor.command)
        if not reader.schema.equals(self._holder.state_schema):
            raise flight.FlightServerError(f"state has columns {reader.schema.names}, not those of this job")
        chunks: list[pa.RecordBatch] = []
        for chunk in reader:
            info = json.loads(chunk.app_metadata.to_pybytes())
            chunks.append(chunk.data)
            if info["last"]:
                self._holder.receive(request["slot"], info["unit"], chunks, info)
                chunks = []
                writer.write(str(info["unit"]).encode())

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Give units that a slot left here; a unit is dropped once the reader has come past it."""
        request = json.loads(ticket.ticket)
        slot = request["slot"]

        def stream() -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
            for unit in request["units"]:
                try:
                    state = self._holder.sealed(slot, unit)
                except KeyError:
                    raise flight.FlightServerError(f"unit {unit} of slot {slot} is not here") from None
                for batch, info in chunks_of(unit, state, self._holder.state_schema, self._chunk_bytes):
                    yield batch, pa.py_buffer(json.dumps(info).encode())
                self._holder.taken(slot, unit)

        return flight.GeneratorStream(self._holder.state_schema, stream())


def chunks_of(
    unit: int, state: UnitState, schema: pa.Schema, chunk_bytes: int
) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """The state of one unit as chunks with their metadata; at least one chunk, the last one marked."""
    held: pa.RecordBatch | None = None
    for batch in state.export(chunk_bytes):
        if held is not None:
            yield held, {"unit": unit, "last": False}
        held = batch
    if held is None:
        held = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    yield held, {"unit": unit, "last": True}


class StateClients:
    """Connections to the other slots, kept open. One user thread at a time per address."""

    def __init__(self, token: str, deadline_s: float) -> None:
        self._token, self._deadline_s = token, deadline_s
        self._clients: dict[str, flight.FlightClient] = {}

    def _to(self, address: str) -> flight.FlightClient:
        if address not in self._clients:
            self._clients[address] = flight.FlightClient(f"grpc://{address}")
        return self._clients[address]

    def push(
        self,
        address: str,
        slot: int,
        schema: pa.Schema,
        units: Iterable[tuple[int, UnitState]],
        chunk_bytes: int,
        sent: Callable[[int, int], None],
        acknowledged: Callable[[int], None],
    ) -> None:
        """Send units to ``slot`` at ``address``: calls ``sent(unit, bytes)`` with each one's last chunk and
        ``acknowledged(unit)`` as each is installed there. Raises ServiceUnavailable if the other side fails.
        """
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"slot": slot}).encode())
        try:
            writer, reader = self._to(address).do_put(descriptor, schema, _options(self._token, self._deadline_s))
            trouble: list[BaseException] = []

            def read_acks() -> None:
                try:
                    while (buffer := reader.read()) is not None:
                        acknowledged(int(buffer.to_pybytes()))
                except BaseException as error:
                    trouble.append(error)

            acks = threading.Thread(target=read_acks, name="keyshift-acks", daemon=True)
            acks.start()
            with writer:
                for unit, state in units:
                    size = 0
                    for batch, info in chunks_of(unit, state, schema, chunk_bytes):
                        size += batch.nbytes
                        if info["last"]:
                            sent(unit, size)  # before it is written: the acknowledgement may be very quick
                        writer.write_with_metadata(batch, pa.py_buffer(json.dumps(info).encode()))
                writer.done_writing()
                acks.join(self._deadline_s)
            if trouble:
                raise trouble[0]
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"state for slot {slot} could not be sent to {address}: {error}") from error

    def pull(
        self, address: str, slot: int, units: list[int], arrived: Callable[[int, list[pa.RecordBatch]], None]
    ) -> None:
        """Fetch units that ``slot`` left at ``address``. Raises ServiceUnavailable if they are not there any more."""
        ticket = flight.Ticket(json.dumps({"slot": slot, "units": units}).encode())
        try:
            chunks: list[pa.RecordBatch] = []
            for chunk in self._to(address).do_get(ticket, _options(self._token, self._deadline_s)):
                info = json.loads(chunk.app_metadata.to_pybytes())
                chunks.append(chunk.data)
                if info["last"]:
                    arrived(info["unit"], chunks)
                    chunks = []
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ServiceUnavailable(f"state of slot {slot} could not be fetched from {address}: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
