"""Bare copies over Flight between processes of this machine: what a migration of as many bytes is compared with."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from keyshift.model.errors import BadInput
from keyshift.traffic.process import JsonProcess, say

BATCH_BYTES = 4 << 20  # per message; as ``chunk_bytes`` of a run by default
ANSWER_S = 60.0
COPY_BYTES, TRIES = 128 << 20, 3
FRESH_S = 24 * 3600.0


class Sink(flight.FlightServerBase):  # type: ignore[misc]
    """Takes copies. What arrives stays, as state does, until ``kept`` is emptied; without ``keeps`` it goes at once."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.kept: list[pa.RecordBatch] = []
        self._keeps = keeps

    def do_put(self, context: object, descriptor: object, reader: Any, writer: object) -> None:
        """One copy."""
        came = (chunk.data for chunk in reader)
        if self._keeps:
            self.kept = list(came)
        else:
            for _ in came:
                pass


def copy_s(client: flight.FlightClient, batches: Sequence[pa.RecordBatch]) -> float:
    """Seconds until all of ``batches`` are there."""
    begin = time.perf_counter()
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("copy"), batches[0].schema)
    for batch in batches:
        writer.write_batch(batch)
    writer.close()
    return time.perf_counter() - begin


def _batch(value: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], ["value"])


class Ring:
    """Processes that copy, each to the next one and all at the same time; ``copy_s`` may be called again and again."""

    def __init__(self, processes: Sequence[JsonProcess]) -> None:
        self._processes = processes
        self.addresses: list[str] = [answer["address"] for answer in self._answers()]

    def copy_s(self, total_bytes: int) -> float:
        """Seconds from the word to go until the last process has sent its share of ``total_bytes`` and it is there.

        Raises ServiceUnavailable if a process dies or takes longer than a minute.
        """
        share = max(total_bytes // len(self._processes), 1)
        for process, address in zip(self._processes, [*self.addresses[1:], self.addresses[0]], strict=True):
            process.tell({"to": address, "bytes": share})
        self._answers()  # everybody has its bytes ready and is connected
        begin = time.perf_counter()
        for process in self._processes:
            process.tell({"go": True})
        self._answers()
        return time.perf_counter() - begin

    def _answers(self) -> list[dict[str, Any]]:
        """What each process says next, in their order."""
        return [process.report(ANSWER_S) for process in self._processes]


@contextlib.contextmanager
def _started(count: int, keeps: bool = True) -> Iterator[Ring]:
    with contextlib.ExitStack() as stack:
        processes: list[JsonProcess] = []
        for _ in range(count):
            processes.append(JsonProcess("keyshift.lab.bare_copy", {"keeps": keeps}))
            stack.callback(processes[-1].kill)
        yield Ring(processes)


@contextlib.contextmanager
def open_ring(processes: int) -> Iterator[Ring]:
    """A ring of so many processes, gone at the end. Raises BadInput for less than 2, ServiceUnavailable."""
    if processes < 2:
        raise BadInput(f"processes = {processes}: a ring needs at least 2")
    with _started(processes) as ring:
        yield ring


def measure_bytes_per_s() -> float:
    """The best of some copies to another process, which drops what arrives. Takes about two seconds.

    Raises ServiceUnavailable if the other process does not start.
    """
    batches = [_batch(bytes(BATCH_BYTES))] * (COPY_BYTES // BATCH_BYTES)
    with _started(1, keeps=False) as ring, flight.FlightClient(f"grpc://{ring.addresses[0]}") as client:
        return COPY_BYTES / min(copy_s(client, batches) for _ in range(TRIES))


def bytes_per_s(cache: Path) -> float:
    """The bandwidth measured on this machine within the last day, kept in ``cache``, else measured now."""
    try:
        kept = json.loads(cache.read_text())
        if time.time() - kept["measured_at"] < FRESH_S:
            return float(kept["bytes_per_s"])
    except (OSError, ValueError, KeyError):  # not measured yet, or not by this version
        pass
    value = measure_bytes_per_s()
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({"bytes_per_s": value, "measured_at": time.time()}))
    return value


def _take_part() -> None:
    """One process: says where it listens, gets ready when it is told of a copy, and copies at the word to go."""
    sink = Sink(json.loads(sys.stdin.readline())["keeps"])
    say({"address": sink.address})
    clients: dict[str, flight.FlightClient] = {}
    sent = b""
    for line in sys.stdin:
        order = json.loads(line)
        if (to := order["to"]) not in clients:
            clients[to] = flight.FlightClient(f"grpc://{to}")
            clients[to].wait_for_available(timeout=int(ANSWER_S))
        if len(sent) != order["bytes"]:
            sent = np.random.default_rng(1).bytes(order["bytes"])
        batches = [_batch(sent[begin : begin + BATCH_BYTES]) for begin in range(0, len(sent), BATCH_BYTES)]
        sink.kept = []
        say({"ready": True})
        sys.stdin.readline()  # the word to go
        copy_s(clients[to], batches)
        say({"done": True})


if __name__ == "__main__":
    _take_part()
