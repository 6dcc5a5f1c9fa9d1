"""The end of Flight that is called: gives and takes the state of the slots that live in this process."""

import hmac
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, assert_never

import pyarrow.flight as flight

from keyshift.model import frames
from keyshift.model.keys import SlotId
from keyshift.model.messages import decode, encode
from keyshift.state import rows
from keyshift.wire import spark_rows
from keyshift.wire.config import Certificate
from keyshift.worker.flight import messages
from keyshift.worker.flight.messages import (
    Acknowledged,
    Answer,
    AnswerKeys,
    FlightRequest,
    GiveRest,
    GiveRows,
    GiveSealed,
    Greeting,
    KeysAsked,
    Label,
    Shipment,
    SomeMessage,
    SomeRequest,
    TakeCopies,
    TakeUnits,
)

if TYPE_CHECKING:
    from keyshift.worker.slot.host import SlotHost


class _TokenFactory(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = (headers.get("authorization") or [""])[0]
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise flight.FlightUnauthenticatedError("the job's token is missing or wrong")


class StateServer(flight.FlightServerBase):
    """Serves and accepts the state of the slots that live in this process."""

    def __init__(
        self, holder: "SlotHost", host: str, token: str, chunk_bytes: int, certificate: Certificate | None = None
    ) -> None:
        scheme, proof = "grpc", []
        if certificate is not None:
            scheme, proof = "grpc+tls", [(certificate.chain, certificate.key)]
        middleware = {"token": _TokenFactory(token)}
        super().__init__(f"{scheme}://{host}:0", tls_certificates=proof, middleware=middleware)
        self.address = f"{host}:{self.port}"
        self._holder = holder
        self._chunk_bytes = chunk_bytes
        self._begun: dict[SlotId, messages.Begun] = {}  # by slot
        self.moved_at = 0.0  # when state came last; by the monotonic clock

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve any stream; the first message names its kind."""
        request: FlightRequest = decode(SomeRequest, descriptor.command)
        if not reader.schema.equals(self._holder.state_schema):
            raise flight.FlightServerError(f"state has columns {reader.schema.names}, not those of this job")
        match request:
            case TakeUnits() | TakeCopies():
                self._take(request, reader, writer)
            case GiveSealed():
                self._give(self._sealed(request), writer)
            case GiveRows(slot):
                self._give_rows(slot, writer)
            case GiveRest():
                self._give(self._rest(request), writer)
            case AnswerKeys():
                self._answer(reader, writer)
            case never:
                assert_never(never)

    def _take(self, request: TakeUnits | TakeCopies, reader: Any, writer: Any) -> None:
        """Take units for one slot, or parts of copies for it; each is acknowledged when it is there. The first answer
        says how many fragments of incomplete units are here (of copies none: they may have changed since).
        """
        slot, copies = request.slot, isinstance(request, TakeCopies)
        begun = {} if copies else self._begun.setdefault(slot, {})
        greeting: Greeting = {journey: len(fragments) for journey, fragments in list(begun.values())}
        writer.write_metadata(encode(greeting))
        # Each chunk is answered: it tells that somebody is there.
        for units in messages.units(self._moving(reader), begun):
            taken = [True] * len(units)
            if copies:
                for label, batches, _ in units:
                    assert label.part is not None
                    self._holder.copy(slot, label.unit, label.part, batches, label.deleted)
            elif units:
                taken = self._holder.receive(slot, [Shipment.arrived(*unit) for unit in units])
            answers: Acknowledged = [Answer(label.unit, each) for (label, *_), each in zip(units, taken, strict=True)]
            writer.write_metadata(encode(answers))

    def _moving(self, chunks: Iterable[Any]) -> Iterator[Any]:
        for chunk in chunks:
            self.moved_at = time.monotonic()
            yield chunk

    def _give(self, fragments: Iterable[messages.Fragment], writer: Any) -> None:
        writer.begin(self._holder.state_schema)
        for batch, metadata in messages.chunks(fragments, self._chunk_bytes):
            writer.write_with_metadata(batch, metadata)

    def _answer(self, reader: Any, writer: Any) -> None:
        """Give keys of units whose ownership has left: see ``StateClients.keys``. A batch to and fro per request."""
        schema, holder = self._holder.state_schema, self._holder
        writer.begin(schema)
        for chunk in reader:
            asked: KeysAsked = decode(KeysAsked, chunk.app_metadata.to_pybytes())
            for unit, version, keys in asked.moved:
                holder.forget((unit, version), keys)
            written = rows.split(chunk.data, asked.sizes)
            for (unit, version, deleted), fragment in zip(asked.written, written, strict=True):
                holder.write((unit, version), asked.number, fragment, deleted)
            answer, sizes = rows.join(schema, [holder.keys((unit, v), keys) for unit, v, keys in asked.stays])
            writer.write_with_metadata(answer, encode(sizes))

    def _sealed(self, request: GiveSealed) -> Iterator[messages.Fragment]:
        """Units that a slot left here at the end of a batch, without the fragments that have come."""
        for unit, come in request.units:
            try:
                state = self._holder.sealed(request.slot, unit)
            except KeyError:
                raise flight.FlightServerError(f"unit {unit} of slot {request.slot} is not here") from None
            label = Label(unit, reference=state.hand_over() or "")  # first: the values are the same from then on
            values = () if state.shared else state.export(self._chunk_bytes)
            fragments = messages.fragments(label, values, self._holder.state_schema, state.timers.export())
            yield from (fragment for fragment in fragments if fragment.number >= come)

    def _give_rows(self, slot: SlotId, writer: Any) -> None:
        """Give the rows that a slot left here at the end of a batch, some in each message."""
        try:
            left = self._holder.sealed_rows(slot)
        except KeyError:
            raise flight.FlightServerError(f"slot {slot} has left no rows here") from None
        schema = self._holder.state_schema
        writer.begin(schema)
        for batch in spark_rows.in_batches(left, self._chunk_bytes):
            writer.write_with_metadata(frames.empty(schema), frames.encode(batch))

    def _rest(self, request: GiveRest) -> Iterator[messages.Fragment]:
        """All keys that are still here of units whose ownership has left."""
        for unit, version, after in request.stays:
            values = self._holder.rest((unit, version), after)
            yield from messages.fragments(Label(unit, version), values, self._holder.state_schema)

    def do_action(self, context: Any, action: Any) -> Iterator[flight.Result]:
        """Take a short message."""
        self._holder.message(decode(SomeMessage, action.body.to_pybytes()))
        return iter(())
