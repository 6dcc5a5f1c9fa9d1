"""The physical floor of a migration: how fast a bare Flight copy between two processes is, on this machine."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from keyshift.errors import ServiceUnavailable

COPY_BYTES, BATCH_BYTES, TRIES = 128 << 20, 4 << 20, 3
FRESH_S = 24 * 3600.0


class _Sink(flight.FlightServerBase):  # type: ignore[misc]
    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        for _ in reader:  # type: ignore[attr-defined]
            pass


def measure_bytes_per_s(copy_bytes: int = COPY_BYTES, batch_bytes: int = BATCH_BYTES, tries: int = TRIES) -> float:
    """The best of some copies of ``copy_bytes`` over loopback, nothing done to the bytes. Takes about two seconds.

    Raises ServiceUnavailable if the other process does not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise ServiceUnavailable("the process that measures the bandwidth did not start")
        value = np.zeros(batch_bytes, np.uint8).tobytes()
        batch = pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], ["value"])
        best = 0.0
        with flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
            for _ in range(tries):
                begin = time.perf_counter()
                writer, _reader = client.do_put(flight.FlightDescriptor.for_path("copy"), batch.schema)
                for _ in range(copy_bytes // batch_bytes):
                    writer.write_batch(batch)
                writer.close()
                best = max(best, copy_bytes / (time.perf_counter() - begin))
        return best
    finally:
        process.kill()
        process.communicate()


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


if __name__ == "__main__":
    server = _Sink("grpc://127.0.0.1:0")
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the parent ends
