"""State transfer between two processes, as in a migration, against a bare Flight copy of the same batches."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight

from keyshift.bench.figures import Row
from keyshift.errors import ServiceUnavailable
from keyshift.executor.spark import WORKER_ENVIRONMENT
from keyshift.executor.transfer import Acknowledged, Holder, Parcel, StateClients, StateServer
from keyshift.lab.spec import DEFAULTS, JobPart
from keyshift.state import UnitState, backends
from keyshift.workloads.keycount import KeyCount

UNITS, STATE_BYTES = 32, 128 << 20
AIM = 1.5
CHUNK_BYTES, BACKEND = JobPart().chunk_bytes, backends.get(DEFAULTS["backend"])
DEADLINE_S = 60.0
SWITCH_INTERVAL_S = 0.001  # as in ``executor.daemon``

Units = list[tuple[int, UnitState]]


def _workload() -> KeyCount:
    return KeyCount(key_groups=UNITS, keys=STATE_BYTES // KeyCount().state_bytes, skew=0)


class _Destination:
    """The holder at the other end, as far as it is asked; see ``executor.transfer.Holder``."""

    def __init__(self) -> None:
        operator = _workload().operator()
        self.state_schema = pa.schema([pa.field("key", pa.int64()), *operator.state_schema])
        self._value_schema = operator.state_schema
        self.states: dict[int, UnitState] = {}

    def receive(self, slot: int, parcels: list[Parcel]) -> list[bool]:
        for parcel in parcels:
            state = BACKEND.make(self._value_schema)
            state.install(parcel.batches)
            self.states[parcel.unit] = state
        return [True] * len(parcels)


class _Sink(flight.FlightServerBase):  # type: ignore[misc]
    kept: list[Any] | None = None

    def do_put(self, context: object, descriptor: object, reader: Any, writer: object) -> None:
        self.kept = [chunk.data for chunk in reader]  # a copy: what is dropped at once lands in warm memory again


def _serve() -> None:
    """The other process: says where it listens; then, at each line it gets, how many keys have come, and drops them."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    holder = _Destination()
    token = sys.stdin.readline().strip()
    server, sink = StateServer(cast(Holder, holder), "127.0.0.1", token, CHUNK_BYTES), _Sink("grpc://127.0.0.1:0")
    sys.stdout.write(json.dumps([server.address, f"127.0.0.1:{sink.port}"]) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        keys = sum(map(len, holder.states.values()))
        holder.states.clear()
        sink.kept = None
        sys.stdout.write(f"{keys}\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _other_process(token: str) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    command = [sys.executable, "-m", "keyshift.bench.transfer"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | WORKER_ENVIRONMENT,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # told apart below, by its silence
            process.stdin.write(token + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise ServiceUnavailable("the process that takes the state did not start")
        address, sink = json.loads(line)
        yield process, address, sink
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


def _touched(schema: pa.Schema) -> Units:
    """Units whose every key was set by the operator: nothing of them lies ready in columns."""
    operator = _workload().operator()
    states: Units = []
    for unit in range(UNITS):
        state = BACKEND.make(operator.state_schema)
        operator.initial(unit, state)
        for key in list(state.keys()):
            value = state.values[key]
            assert value is not None
            state.values[key] = value
        states.append((unit, state))
    return states


def _arrived(states: Units) -> Units:
    """The same, as they are at a destination before anybody touched them."""
    operator, again = _workload().operator(), []
    for unit, state in states:
        copy = BACKEND.make(operator.state_schema)
        copy.install(state.export(CHUNK_BYTES))
        again.append((unit, copy))
    return again


def measure(repetitions: int) -> list[Row]:
    """Part b: ms until the last unit is acknowledged, and until a bare copy of the same batches is there."""
    chunk_bytes, token = CHUNK_BYTES, secrets.token_urlsafe(16)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    holder = _Destination()
    touched = _touched(holder.state_schema)
    kinds = {"keys set one by one": touched, "units that just arrived": _arrived(touched)}
    batches = [batch for _, state in touched for batch in state.export(chunk_bytes)]
    keys = _workload().keys
    ours: dict[str, list[float]] = {kind: [] for kind in kinds}
    bare: dict[str, list[float]] = {kind: [] for kind in kinds}
    with _other_process(token) as (process, address, sink):
        clients = StateClients(token, DEADLINE_S, holder.state_schema, chunk_bytes)
        with flight.FlightClient(f"grpc://{sink}") as client:

            def copy() -> float:
                begin = time.perf_counter()
                writer, _ = client.do_put(flight.FlightDescriptor.for_path("copy"), holder.state_schema)
                for batch in batches:
                    writer.write_batch(batch)
                writer.close()
                took_ms = (time.perf_counter() - begin) * 1000
                arrived()  # lets go of the copy
                return took_ms

            def arrived() -> int:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("how many\n")
                process.stdin.flush()
                return int(process.stdout.readline() or 0)

            def push(units: Units) -> float:
                acknowledged: Acknowledged = []
                parcels = [Parcel(unit, state=state) for unit, state in units]
                begin = time.perf_counter()
                clients.push(address, 0, "", parcels, lambda *_: None, acknowledged.extend)
                took_ms = (time.perf_counter() - begin) * 1000
                come = arrived()
                if come != keys or len(acknowledged) != UNITS:
                    raise ServiceUnavailable(f"{come} of {keys} keys arrived, {len(acknowledged)} of {UNITS} units")
                return took_ms

            for repetition in range(-1, repetitions):  # the first, with cold connections, does not count
                for kind, units in kinds.items():
                    times = copy(), push(units)
                    if repetition >= 0:
                        bare[kind].append(times[0])
                        ours[kind].append(times[1])
        clients.close()
    what = f"{STATE_BYTES >> 20} MiB in {UNITS} units"
    return [Row("b", f"transfer of {what}, {kind}", "ms", ours[kind], bare[kind], AIM) for kind in kinds]


if __name__ == "__main__":
    _serve()
