"""A holder of state for Flight's server, what is sent to it, and lines that break."""

import contextlib
import threading

import pyarrow as pa

from keyshift.model.errors import ServiceUnavailable
from keyshift.state import rows
from keyshift.state.memory import MemoryState
from keyshift.worker.flight import messages
from keyshift.worker.flight.messages import KeysDropped, Shipment

VALUE = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])
SCHEMA = pa.schema([pa.field("key", pa.int64()), *VALUE])


def value(key: int) -> tuple[int, bytes]:
    return key * 10, bytes([key]) * 100


def values(*keys: int) -> dict[int, tuple[int, bytes]]:
    return {key: value(key) for key in keys}


def state(*keys: int) -> MemoryState:
    made = MemoryState(VALUE)
    for key in keys:
        made.values[key] = value(key)
    return made


def content(batches: list[pa.RecordBatch]) -> dict[int, tuple]:
    return dict(row for batch in batches for row in rows.unpack(batch))


class Holder:
    """Keeps what arrives, gives what it was made with."""

    state_schema = SCHEMA

    def __init__(self, sealed=None, lent=None):
        self.left, self.lent = sealed or {}, lent or {}
        self.shipments, self.copies, self.messages = [], [], []
        self.together = []  # units that came in one call
        self.numbers = []  # of what was written
        self.refuses: set[int] = set()

    def receive(self, slot, shipments):
        self.together.append([shipment.unit for shipment in shipments])
        self.shipments += [(slot, shipment) for shipment in shipments]
        return [shipment.unit not in self.refuses for shipment in shipments]

    def sealed(self, slot, unit):
        return self.left[slot, unit]

    def keys(self, stay, keys):
        return self.lent.get(stay, state()).take(keys)

    def rest(self, stay, after):
        for key in sorted(self.lent.get(stay, state()).keys()):
            if after is None or key > after:
                yield rows.pack(SCHEMA, self.lent[stay].take([key]))

    def forget(self, stay, keys):
        for key in keys:
            self.lent[stay].delete(key)

    def write(self, stay, number, written, deleted):
        self.numbers.append(number)
        for key, new in written:
            self.lent[stay].values[key] = new
        for key in deleted:
            self.lent[stay].delete(key)

    def copy(self, slot, unit, part, batches, deleted):
        self.copies.append((slot, unit, part, content(batches), list(deleted)))

    def message(self, message):
        self.messages.append(message)


def push(clients, server, *shipments):
    """What was acknowledged, and the sizes that were sent."""
    acknowledged, sizes = {}, {}

    def sent(shipment, size):
        sizes[shipment.unit] = size

    clients.push(server.address, 2, "here:1", shipments, sent, acknowledged.update)
    return acknowledged, sizes


def rest(clients, server, *stays):
    """What came: rows of unit, version, key, whether it was the last one of its unit."""
    got = []

    def arrived(stay, batch, last):
        got.extend((*stay, key, False) for key in batch["key"].to_pylist())
        if last:
            got.append((*stay, None, True))

    with contextlib.suppress(ServiceUnavailable):
        clients.rest(server.address, stays, arrived)
    return got


class Slow:
    """State that is slow to be read: ``wait`` is called before each part. It breaks before some of them, once."""

    shared = False

    def hand_over(self):
        return None

    def __init__(self, of, wait=lambda: None, breaks_at=()):
        self.of, self.wait, self.breaks_at, self.timers = of, wait, list(breaks_at), of.timers

    def export(self, chunk_bytes):
        for number, batch in enumerate(self.of.export(chunk_bytes)):
            if number in self.breaks_at:
                self.breaks_at.remove(number)
                raise ServiceUnavailable("the line breaks")
            self.wait()
            yield batch


def hold_up(holder, method):
    """No call of this method returns until the event is set."""
    door, plain = threading.Event(), getattr(holder, method)

    def waits(*arguments):
        door.wait(60)
        return plain(*arguments)

    setattr(holder, method, waits)
    return door


class Wire:
    """Counts the rows that come in over it, and breaks within some chunks, by number from the beginning."""

    def __init__(self, monkeypatch, *breaks_at):
        self.rows, self.chunks, unpack = 0, 0, messages.unpack

        def unpacked(chunk):
            self.chunks += 1
            if self.chunks in breaks_at:
                raise ServiceUnavailable("the line breaks")
            self.rows += chunk.data.num_rows
            return unpack(chunk)

        monkeypatch.setattr(messages, "unpack", unpacked)


CALLS = {
    "push": lambda c, a: c.push(a, 2, "here:1", [Shipment(3, state=state(1))], lambda *_: None, lambda *_: None),
    "pull": lambda c, a: c.pull(a, 1, [7], lambda *_: None),
    "keys": lambda c, a: c.keys(a, [(4, 9, [3])], [(4, 9, [4])]),
    "rest": lambda c, a: c.rest(a, [((4, 9), None)], lambda *_: None),
    "write": lambda c, a: c.keys(a, [], written=[((4, 9), [], [(3, (1, b"new"))])]),
    "copy": lambda c, a: c.copy(a, 2, 4, (88, 0), [], []),
    "tell": lambda c, a: c.tell(a, KeysDropped()),
}
