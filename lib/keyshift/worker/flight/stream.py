"""One call of Flight in both directions, which lasts until it is ended or falls silent."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from keyshift.model.errors import service_errors

AWAY = (flight.FlightError, OSError)  # what is raised if the other side is not there any more
BROKEN = (*AWAY, pa.ArrowException)  # and if what it says breaks off


class Stream:
    """One call in both directions. Writing never raises an error: reading tells why the call has ended."""

    def __init__(self, kind: str, address: str, writer: Any, reader: Any) -> None:
        self._name = f"stream of {kind} with {address}"
        self._writer, self._reader = writer, reader
        self._over = False
        self.moved_at: float | None = time.monotonic()  # when something moved last; None: nobody waits for anything

    def begin(self, schema: pa.Schema) -> None:
        """Say what columns follow."""
        self._try(self._writer.begin, schema)

    def write(self, batch: pa.RecordBatch, metadata: Any) -> bool:
        """Write a chunk. Gives whether it is on its way."""
        return self._try(self._writer.write_with_metadata, batch, metadata)

    def done_writing(self) -> None:
        """Say that no more follows."""
        self._try(self._writer.done_writing)

    def _try(self, act: Callable[..., None], *what: Any) -> bool:
        if not self._over:
            try:
                act(*what)
            except AWAY:
                self._over = True
        self.moved_at = time.monotonic()
        return not self._over

    def read(self) -> Any:
        """The next chunk, None at the end. Raises ServiceUnavailable."""
        self.moved_at = time.monotonic()
        with service_errors(BROKEN, lambda error: f"{self._name}: {error}"):
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return None
        self.moved_at = time.monotonic()
        return chunk

    def answers(self) -> Iterator[bytes]:
        """Give what the other side says, without state, until the end."""
        while (chunk := self.read()) is not None:
            yield chunk.app_metadata.to_pybytes()

    def end(self) -> None:
        """End the call; it may have ended already. Readers get an error."""
        self._reader.cancel()

    def close(self) -> None:
        """Close the call. To be called when nobody reads any more, or Arrow closes it and complains."""
        self.end()
        with contextlib.suppress(*BROKEN):
            self._writer.close()

    def end_if_silent(self, for_s: float) -> None:
        """End it if somebody waits, and nothing has moved ``for_s`` seconds."""
        if (moved_at := self.moved_at) is not None and time.monotonic() - moved_at > for_s:
            self._name += f", silent for {for_s:g} s"
            self.moved_at = None
            self.end()
