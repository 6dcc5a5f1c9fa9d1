"""Bare copies over Flight to another process of this machine: what a migration of as many bytes is compared with."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from keyshift.lab.machine.sampler import MOST_OTHERS, CpuWatch
from keyshift.results.manifest import describe_machine
from keyshift.services import limits
from keyshift.traffic.process import JsonProcess, say
from keyshift.worker.flight.connection import flight_client

BATCH_BYTES = 4 << 20  # per message; as ``chunk_bytes`` of a run by default
ANSWER_S = 60.0
COPY_BYTES, TRIES = 128 << 20, 3
FRESH_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Says that a process takes copies at ``address``."""

    address: str


class CopySink(flight.FlightServerBase):  # type: ignore[misc]
    """Takes copies. What arrives stays, as state does, until ``kept`` is emptied; without ``keeps`` it goes at once."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.kept: list[pa.RecordBatch] = []
        self._keeps = keeps

    def do_put(self, context: object, descriptor: object, reader: Any, writer: object) -> None:
        """Take one copy."""
        for chunk in reader:
            if self._keeps:
                self.kept.append(chunk.data)


def copy_s(client: flight.FlightClient, batches: Sequence[pa.RecordBatch]) -> float:
    """Seconds until all of ``batches`` are there."""
    begin = time.perf_counter()
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("copy"), batches[0].schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
    return time.perf_counter() - begin


class BareCopy(NamedTuple):
    """A bandwidth, and the share of the processors that others had meanwhile, 0 to 1."""

    bytes_per_s: float
    others: float


def measure() -> BareCopy:
    """The best of some copies to another process, which drops them: two seconds. Raises ServiceUnavailable."""
    batches = [pa.record_batch({"value": [bytes(BATCH_BYTES)]})] * (COPY_BYTES // BATCH_BYTES)
    process = JsonProcess("keyshift.lab.machine.bare_copy", None, Listening)
    try:
        with flight_client(process.report(ANSWER_S).address) as client:
            watch = CpuWatch(lambda: {os.getpid(): "copies"})
            best_s = min(copy_s(client, batches) for _ in range(TRIES))
            part = watch.part()
        return BareCopy(COPY_BYTES / best_s, part.others_s / (part.end - part.begin) / limits.visible())
    finally:
        process.kill()


def bytes_per_s(cache: Path) -> float:
    """The bandwidth measured on this machine within the last day, kept in ``cache``, else measured now.

    What is measured while others take much is for this once only.
    """
    machine = describe_machine().model_dump(mode="json")  # a folder may be read by another one
    try:
        kept = json.loads(cache.read_text())
        if 0 <= time.time() - kept["measured_at"] < FRESH_S and kept["machine"] == machine:  # the clock may be set back
            return float(kept["bytes_per_s"])
    except (OSError, ValueError, KeyError):  # not measured yet, or not by this version
        pass
    value, others = measure()
    if others < MOST_OTHERS:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"bytes_per_s": value, "measured_at": time.time(), "machine": machine}))
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever measures, and ends a copy first
    say(Listening(CopySink(keeps=False).address))
    sys.stdin.read()  # until whoever measures is gone
