"""A bare copy between as many processes as slots: each sends its share to the next of a ring, all at the same time.

What a migration that moves a part of every slot's state to the next one is compared with: Flight and nothing else.
"""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from keyshift.errors import BadInput, ServiceUnavailable

BATCH_BYTES = 4 << 20  # per message; as ``chunk_bytes`` of a run by default
ANSWER_S = 60.0


class _Sink(flight.FlightServerBase):  # type: ignore[misc]
    kept: list[Any] | None = None

    def do_put(self, context: object, descriptor: object, reader: Any, writer: object) -> None:
        self.kept = [chunk.data for chunk in reader]  # what arrives stays, as state does


class Ring:
    """The processes; ``copy_s`` may be called again and again."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self._processes = processes
        self._said: queue.Queue[tuple[int, str]] = queue.Queue()
        for number, process in enumerate(processes):
            threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        self._addresses = self._answers()

    def copy_s(self, total_bytes: int) -> float:
        """Seconds from the word to go until the last process has sent its share of ``total_bytes`` and it is there.

        Raises ServiceUnavailable if a process dies or takes longer than a minute.
        """
        share = max(total_bytes // len(self._processes), 1)
        following = [*self._addresses[1:], self._addresses[0]]
        for process, address in zip(self._processes, following, strict=True):
            self._tell(process, json.dumps([address, share]))
        self._answers()  # everybody has its bytes ready and is connected
        begin = time.perf_counter()
        for process in self._processes:
            self._tell(process, "go")
        self._answers()
        return time.perf_counter() - begin

    def _listen(self, number: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put((number, line.strip()))
        self._said.put((number, ""))

    def _tell(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # told apart by its silence
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _answers(self) -> list[str]:
        """One line of each process, in their order."""
        answers: dict[int, str] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(answers) < len(self._processes):
            try:
                number, line = self._said.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise ServiceUnavailable(
                    f"the bare copy took longer than {ANSWER_S:g} s: the machine is too busy"
                ) from None
            if not line:
                raise ServiceUnavailable(f"process {number} of the bare copy has died")
            answers[number] = line
        return [answers[number] for number in sorted(answers)]


@contextlib.contextmanager
def open_ring(processes: int) -> Iterator[Ring]:
    """A ring of so many processes, gone at the end. Raises BadInput for less than 2, ServiceUnavailable."""
    if processes < 2:
        raise BadInput(f"processes = {processes}: a ring needs at least 2")
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(processes):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "keyshift.bench.ring_copy"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        yield Ring(started)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def _member() -> None:
    """One process: says its address; then, at [address, bytes], gets ready; at the next line copies; says when done."""
    sink = _Sink("grpc://127.0.0.1:0")

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    say(f"127.0.0.1:{sink.port}")
    client, connected_to, sent = None, "", b""
    for line in sys.stdin:
        address, share = json.loads(line)
        if address != connected_to:
            client, connected_to = flight.FlightClient(f"grpc://{address}"), address
            client.wait_for_available(timeout=int(ANSWER_S))
        if len(sent) != share:
            sent = np.random.default_rng(1).bytes(share)
        batches = [
            pa.RecordBatch.from_arrays([pa.array([sent[begin : begin + BATCH_BYTES]], pa.binary())], ["value"])
            for begin in range(0, share, BATCH_BYTES)
        ]
        sink.kept = None
        say("ready")
        sys.stdin.readline()
        assert client is not None
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("copy"), batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.close()
        say("done")


if __name__ == "__main__":
    _member()
