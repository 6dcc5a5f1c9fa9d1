"""State transfer between two processes, as in a migration, against a bare Flight copy of the same batches."""

import secrets
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import pyarrow as pa
from pydantic import Field

from bench.measurements import Measurement
from keyshift.driver.spark import WORKER_ENVIRONMENT
from keyshift.experiment.parameters import DEFAULTS
from keyshift.experiment.parts import JobPart
from keyshift.lab.machine.bare_copy import CopySink, copy_s
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import SlotId, UnitId
from keyshift.model.messages import decode
from keyshift.state import Store, UnitState, backends
from keyshift.traffic.process import JsonProcess, say
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.connection import flight_client
from keyshift.worker.flight.messages import Acknowledged, Shipment
from keyshift.worker.flight.server import StateServer
from keyshift.worker.slot.host import SlotHost
from keyshift.workloads.keycount import KeyCount

UNITS, STATE_BYTES = 32, 128 << 20
AIM = 1.5
CHUNK_BYTES, BACKEND = JobPart().chunk_bytes, backends.get(DEFAULTS["backend"])
WORKLOAD = KeyCount(key_groups=UNITS, keys=STATE_BYTES // KeyCount().state_bytes, skew=0)
OPERATOR = WORKLOAD.stages[0].operator()
DEADLINE_S = 60.0
SWITCH_INTERVAL_S = 0.001  # as in ``worker.daemon``

Units = list[tuple[int, UnitState]]


@dataclass(frozen=True, slots=True)
class Token:
    """What the other process has to be shown."""

    token: str


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the other process takes states and bare copies."""

    state: str
    sink: str
    kind: Literal["addresses"] = "addresses"


@dataclass(frozen=True, slots=True)
class HowMany:
    """Say how many keys have come, and drop them."""


@dataclass(frozen=True, slots=True)
class Came:
    """Says that so many keys have come."""

    keys: int
    kind: Literal["came"] = "came"


Answer: Any = Annotated[Addresses | Came, Field(discriminator="kind")]


def _store() -> Store:
    return BACKEND.open("bench", OPERATOR.state_schema, BACKEND.settings())


class _Destination:
    """The host of slots at the other end, as far as it is asked."""

    def __init__(self) -> None:
        self.state_schema = pa.schema([pa.field("key", pa.int64()), *OPERATOR.state_schema])
        self._store = _store()
        self.states: dict[UnitId, UnitState] = {}

    def receive(self, slot: int, shipments: list[Shipment]) -> list[bool]:
        for shipment in shipments:
            state = self._store.unit(shipment.unit)
            state.install(shipment.batches)
            self.states[shipment.unit] = state
        return [True] * len(shipments)


def _serve() -> None:
    """Be the other process: say where it listens, and, when it is asked, how many keys have come; drop them."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    holder = _Destination()
    token = decode(Token, sys.stdin.readline()).token
    server, sink = StateServer(cast(SlotHost, holder), "127.0.0.1", token, CHUNK_BYTES), CopySink()
    say(Addresses(server.address, sink.address))
    for _ in sys.stdin:
        keys = sum(map(len, holder.states.values()))
        holder.states.clear()
        sink.kept = []  # until now: what is dropped at once lands in warm memory again
        say(Came(keys))


def _touched() -> Units:
    """Units whose every key was set by the operator: nothing of them lies ready in columns."""
    store = _store()
    states: Units = []
    for unit in range(UNITS):
        state = store.unit(unit)
        OPERATOR.initial(unit, state)
        for key in list(state.keys()):
            value = state.values[key]
            assert value is not None
            state.values[key] = value
        states.append((unit, state))
    return states


def _arrived(states: Units) -> Units:
    """Units as they are at a destination before anybody touched them."""
    store, again = _store(), []
    for unit, state in states:
        copy = store.unit(unit)
        copy.install(state.export(CHUNK_BYTES))
        again.append((unit, copy))
    return again


def measure(repetitions: int) -> list[Measurement]:
    """Measure part b: ms until the last unit is acknowledged, and until a bare copy of the same batches is there."""
    token = secrets.token_urlsafe(16)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    touched = _touched()
    kinds = {"keys set one by one": touched, "units that just arrived": _arrived(touched)}
    batches = [batch for _, state in touched for batch in state.export(CHUNK_BYTES)]
    ours: dict[str, list[float]] = {kind: [] for kind in kinds}
    bare: dict[str, list[float]] = {kind: [] for kind in kinds}
    other = JsonProcess("bench.transfer", Token(token), Answer, more_env=WORKER_ENVIRONMENT)
    try:
        addresses = other.report(DEADLINE_S)
        clients = StateClients(token, DEADLINE_S, _Destination().state_schema, CHUNK_BYTES)
        with flight_client(addresses.sink) as client:

            def arrived() -> int:
                other.tell(HowMany())
                return int(other.report(DEADLINE_S).keys)

            def copy() -> float:
                took_ms = copy_s(client, batches) * 1000
                arrived()  # lets go of the copy
                return took_ms

            def push(units: Units) -> float:
                acknowledged: Acknowledged = []
                shipments = [Shipment(UnitId(unit), state=state) for unit, state in units]
                begin = time.perf_counter()
                clients.push(addresses.state, SlotId(0), "", shipments, lambda *_: None, acknowledged.extend)
                took_ms = (time.perf_counter() - begin) * 1000
                come = arrived()
                if come != WORKLOAD.keys or len(acknowledged) != UNITS:
                    raise ServiceUnavailable(
                        f"{come} of {WORKLOAD.keys} keys arrived, {len(acknowledged)} of {UNITS} units"
                    )
                return took_ms

            for repetition in range(-1, repetitions):  # the first, with cold connections, does not count
                for kind, units in kinds.items():
                    times = copy(), push(units)
                    if repetition >= 0:
                        bare[kind].append(times[0])
                        ours[kind].append(times[1])
        clients.close()
    finally:
        other.kill()
    what = f"{STATE_BYTES >> 20} MiB in {UNITS} units"
    return [Measurement("b", f"transfer of {what}, {kind}", "ms", ours[kind], bare[kind], AIM) for kind in kinds]


if __name__ == "__main__":
    _serve()
