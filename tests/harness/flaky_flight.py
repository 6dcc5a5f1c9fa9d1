"""Arrow Flight whose calls fail by chance: before they have done anything, on the way, or after they have done all.

Stands in for ``pyarrow.flight.FlightClient``. A stream that has failed once is broken: it gives nothing more.
"""

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

REAL = flight.FlightClient
BROKEN = (flight.FlightError, pa.ArrowException, OSError)
DRAINED_S = 2.0
PARTS = 3  # a stream that breaks does so at one of its first parts, or behind the last


class Failures:
    """How often calls fail (``share`` of them before they have worked, and as many after), and how slow they are."""

    def __init__(self, seed: int, share: float, slow_s: float) -> None:
        self._rng = random.Random(f"flight {seed}")
        self._share, self._slow_s = share, slow_s
        self._lock = threading.Lock()
        self.clients: list[FlakyClient] = []
        self.counted: Counter[str] = Counter()

    def __call__(self, location: Any, **options: Any) -> "FlakyClient":
        """As the constructor of ``FlightClient``."""
        return FlakyClient(self, REAL(location, **options))

    def come(self) -> bool:
        """Whether the next thing fails."""
        with self._lock:
            return self._rng.random() < self._share

    def after(self) -> int | None:
        """After how many parts a stream breaks; None if it does not."""
        return self._rng.randrange(PARTS + 1) if self.come() else None

    def pause(self) -> None:
        """A call takes its time."""
        time.sleep(self._rng.random() ** 3 * self._slow_s)

    def strike(self, what: str) -> None:
        """Fail, perhaps."""
        if self.come():
            raise self.failure(what)

    def failure(self, what: str) -> Exception:
        """What a call that fails raises."""
        self.counted[what] += 1
        return flight.FlightUnavailableError(f"injected: {what}")


class FlakyClient:
    """One client."""

    def __init__(self, failures: Failures, client: Any) -> None:
        self._failures, self._client = failures, client
        self._telling, self._lock = 0, threading.Lock()
        failures.clients.append(self)

    def do_action(self, action: Any, *options: Any) -> list[Any]:
        self._begin(f"{action.type} not said")
        with self._lock:
            self._telling += 1
        try:
            answers = list(self._client.do_action(action, *options))
        finally:
            with self._lock:
                self._telling -= 1
        self._failures.strike(f"{action.type} said, no answer")
        return answers

    def do_get(self, *arguments: Any) -> "_Reader":
        self._begin("get not begun")
        reader = self._client.do_get(*arguments)
        return _Reader(reader, _Call(self._failures, reader.cancel), "get")

    def do_put(self, *arguments: Any) -> tuple["_Writer", "_Reader"]:
        self._begin("put not begun")
        writer, reader = self._client.do_put(*arguments)
        call = _Call(self._failures)
        call.drained.clear()
        return _Writer(writer, call, "put"), _Reader(reader, call, "acknowledgements")

    def do_exchange(self, descriptor: Any, *arguments: Any) -> tuple["_Writer", "_Reader"]:
        often = b"keys" in descriptor.command  # it fails often enough
        if not often:
            self._begin("exchange not begun")
        writer, reader = self._client.do_exchange(descriptor, *arguments)
        call = _Call(self._failures, reader.cancel)
        return _Writer(writer, call, "exchange, to", often), _Reader(reader, call, "exchange, fro", often)

    def close(self) -> None:
        """Unless a thread that was killed still tells something: Flight crashes then."""
        with self._lock:
            if not self._telling:
                self._client.close()

    def _begin(self, what: str) -> None:
        self._failures.pause()
        self._failures.strike(what)


class _Call:
    """Both directions of a call. When one is broken, so is the other, and the server sees that nobody is there."""

    def __init__(self, failures: Failures, cancel: Any = lambda: None) -> None:
        self.failures, self._cancel = failures, cancel
        self.broken = False
        self.drained = threading.Event()  # Flight waits for ever, or until the deadline, if answers are not read
        self.drained.set()

    def end(self) -> None:
        self.broken = True
        self._cancel()


class _Half:
    """One direction: breaks once, after some parts; or (``often``: it carries many requests) perhaps at any of them."""

    def __init__(self, stream: Any, call: _Call, what: str, often: bool = False) -> None:
        self._stream, self._call, self._what, self._often = stream, call, what, often
        self._left = None if often else call.failures.after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _part(self, last: bool = False) -> None:
        """One part, or the end, has come so far."""
        breaks = self._often and self._call.failures.come()
        if self._left is not None:
            self._left -= 1
            breaks = last or self._left < 0
        if breaks and not self._call.broken:
            self._call.end()
        if self._call.broken:
            raise self._call.failures.failure(f"{self._what} broke")


class _Writer(_Half):
    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: Any) -> None:
        self._part()
        self._stream.write_with_metadata(batch, metadata)

    def close(self) -> None:
        if not self._call.broken:
            self._stream.close()
            return
        with contextlib.suppress(*BROKEN):
            if hasattr(self._stream, "done_writing"):
                self._stream.done_writing()
            self._call.drained.wait(DRAINED_S)
            self._stream.close()


class _Reader(_Half):
    """What has come is lost if the stream breaks behind it."""

    def __iter__(self) -> "_Reader":
        return self

    def __next__(self) -> Any:
        return self.read_chunk()

    def read_chunk(self) -> Any:
        try:
            chunk = self._stream.read_chunk()
        except StopIteration:
            self._part(last=True)
            raise
        if not self._often:
            self._call.failures.pause()
        self._part()
        return chunk

    def read(self) -> Any:
        buffer = self._stream.read()
        try:
            self._part(last=buffer is None)
        except flight.FlightError:
            while buffer is not None:
                buffer = self._stream.read()
            raise
        finally:
            if buffer is None:
                self._call.drained.set()
        return buffer
