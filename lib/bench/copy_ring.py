"""Bare copies in a ring of processes: what a migration in which every slot gives and takes is compared with."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow.flight as flight
from pydantic import Field

from keyshift.lab.machine.bare_copy import ANSWER_S, BATCH_BYTES, CopySink, Listening, batch_of, copy_s
from keyshift.model.errors import BadInput
from keyshift.model.messages import decode
from keyshift.traffic.process import JsonProcess, say
from keyshift.worker.flight.connection import connect


@dataclass(frozen=True, slots=True)
class GetReady:
    """Says that so many bytes will go to this address."""

    to: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Go:
    """Send them now."""


@dataclass(frozen=True, slots=True)
class AmReady:
    """Says that the bytes are there, and the connection."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Sent:
    """Says that they have arrived."""

    kind: Literal["sent"] = "sent"


Answer: Any = Annotated[Listening | AmReady | Sent, Field(discriminator="kind")]


class Ring:
    """Processes that copy, each to the next one and all at the same time; ``copy_s`` may be called again and again."""

    def __init__(self, processes: Sequence[JsonProcess]) -> None:
        self._processes = processes
        self._addresses: list[str] = [answer.address for answer in self._answers()]

    def copy_s(self, total_bytes: int) -> float:
        """Seconds from the word to go until the last process has sent its share of ``total_bytes`` and it is there.

        Raises ServiceUnavailable if a process dies or takes longer than a minute.
        """
        share = max(total_bytes // len(self._processes), 1)
        for process, address in zip(self._processes, [*self._addresses[1:], self._addresses[0]], strict=True):
            process.tell(GetReady(address, share))
        self._answers()  # everybody has its bytes ready and is connected
        begin = time.perf_counter()
        for process in self._processes:
            process.tell(Go())
        self._answers()
        return time.perf_counter() - begin

    def _answers(self) -> list[Any]:
        """What each process says next, in their order."""
        return [process.report(ANSWER_S) for process in self._processes]


@contextlib.contextmanager
def open_ring(processes: int) -> Iterator[Ring]:
    """A ring of so many processes, gone at the end. Raises BadInput for less than 2, ServiceUnavailable."""
    if processes < 2:
        raise BadInput(f"processes = {processes}: a ring needs at least 2")
    with contextlib.ExitStack() as stack:
        started: list[JsonProcess] = []
        for _ in range(processes):
            started.append(JsonProcess("bench.copy_ring", None, Answer))
            stack.callback(started[-1].kill)
        yield Ring(started)


def _take_part() -> None:
    """Be one process: say where it listens, get ready when it is told of a copy, and copy at the word to go."""
    sink, clients, sent = CopySink(), dict[str, flight.FlightClient](), b""
    say(Listening(sink.address))
    for line in sys.stdin:
        order = decode(GetReady, line)
        if order.to not in clients:
            clients[order.to] = connect(order.to)
            clients[order.to].wait_for_available(timeout=int(ANSWER_S))
        if len(sent) != order.bytes:
            sent = np.random.default_rng(1).bytes(order.bytes)
        batches = [batch_of(sent[begin : begin + BATCH_BYTES]) for begin in range(0, len(sent), BATCH_BYTES)]
        sink.kept = []
        say(AmReady())
        sys.stdin.readline()  # the word to go
        copy_s(clients[order.to], batches)
        say(Sent())


if __name__ == "__main__":
    _take_part()
