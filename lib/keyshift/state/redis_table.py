"""Values on a server that all slots reach, over the protocol of Redis: a hash for each state.

A frame is one round trip: all that was set before and all that is wanted is sent at once, then all answers are read.
The commands are put together here, as redis-py takes about as long for each as the server does.

A server that has begun anew, or another one in its place, has less than was written, and would give no sign of it: a
key that is not there looks like a new one. So each connection asks which server it is, and snapshots compare how many
keys there are with how many were written. What has gone is ServiceUnavailable: the next attempt begins in other hashes,
from a snapshot.
"""

import struct
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, NamedTuple

from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.state.redis_server import RemoteSettings, connected, unsafe
from keyshift.state.table import Changes, Table, slices

_CALL_BYTES = 4 << 20  # written before answers are read, about: the server keeps these meanwhile
_FIELD = struct.Struct(">q")
_INFO = b"*1\r\n$4\r\nINFO\r\n"


class Hash(NamedTuple):
    """Where a state is. ``origin``: of the name, the same under each owner; ``owners``: how many there were before."""

    name: str
    origin: str
    owners: int = 0


class RedisTable(Table):
    """See ``Table``; ``settings`` name an address. Raises ServiceUnavailable if it cannot be reached.

    ``server``: which one it is, by its run_id.
    """

    def __init__(self, slot: str, settings: RemoteSettings) -> None:
        super().__init__()
        self.server = ""
        self._client, self._way_s = connected(settings, begin=self._begin), settings.round_trip_ms / 1000
        self._mine = f"keyshift:{slot}:{uuid.uuid4().hex[:8]}"
        self._numbers = count()
        self._unsent: list[tuple[Any, ...]] = []  # commands that go before the next call
        self._owned = Counter[str]()  # by how many states, by name: a unit may come twice
        self._written = Counter[str]()  # keys that are to be found there, by name
        with _errors():
            self._client.ping()
        self._remove_older_attempts(slot)

    def region(self, unit: int) -> Hash:  # noqa: D102
        origin = f"{unit}-{uuid.uuid4().hex[:8]}-{next(self._numbers)}"
        region = Hash(f"{self._mine}:{origin}:0", origin)
        self._owned[region.name] = 1
        return region

    def taken_over(self, region: Hash, keys: int) -> tuple[Hash, int]:
        """Rename a former owner's hash, of so many ``keys``, for its next owner. Gives it, and how many keys it has."""
        mine = Hash(f"{self._mine}:{region.origin}:{region.owners + 1}", region.origin, region.owners + 1)
        with _errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.rename(region.name, mine.name)
            pipeline.hlen(mine.name)
            _, found = pipeline.execute(raise_on_error=False)  # a hash without keys cannot be renamed
        if found == keys:  # otherwise keys are lost; or it has come twice, and its state here has other keys by now
            with self.lock:
                self._owned[mine.name] += 1
                self._written.setdefault(mine.name, keys)
        return mine, found

    def disown(self, region: Hash) -> None:
        """Forget a hash that another slot has by now. Under the lock."""
        self._owned.pop(region.name, None)
        self._written.pop(region.name, None)

    def copied_region(self, region: Hash) -> Hash:  # noqa: D102
        copy = self.region(-1)
        self._unsent.append(("COPY", region.name, copy.name))
        self._written[copy.name] = self._written[region.name]
        return copy

    def drop(self, regions: list[Hash]) -> None:  # noqa: D102
        gone = []
        for region in regions:
            if region.name in self._owned:
                self._owned[region.name] -= 1
                if not self._owned[region.name]:
                    self.disown(region)
                    gone.append(region.name)
        if gone:
            self._unsent.append(("UNLINK", *gone))

    def exchange(  # noqa: D102
        self, written: list[tuple[Hash, Changes]], wanted: list[tuple[Hash, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        self.send()
        commands: list[bytes] = []
        edits: list[tuple[str, int]] = []  # whose answer says how many keys more, or less, there are
        size = 0
        for region, changes in written:
            name = region.name.encode()
            kept = [part for key, value in changes.items() if value is not None for part in (_FIELD.pack(key), value)]
            gone = [_FIELD.pack(key) for key, value in changes.items() if value is None]
            for word, fields, sign in ((b"HSET", kept, 1), (b"HDEL", gone, -1)):
                if fields:
                    commands += _command(word, name, fields)
                    edits.append((region.name, sign))
            size += sum(map(len, kept))
            if size > _CALL_BYTES:
                self._edit(edits, commands)
                commands, edits, size = [], [], 0
        for region, keys in wanted:
            commands += _command(b"HMGET", region.name.encode(), [_FIELD.pack(key) for key in keys])
        return self._edit(edits, commands, len(wanted)) if commands else []

    def _edit(self, edits: list[tuple[str, int]], commands: list[bytes], more: int = 0) -> list[Any]:
        """The answers to what comes behind ``edits``."""
        answers = self._call(commands, len(edits) + more)
        for (name, sign), number in zip(edits, answers, strict=False):
            self._written[name] += sign * number
        return answers[len(edits) :]

    def _call(self, commands: list[bytes], count: int) -> list[Any]:
        """The answers to ``count`` commands, in one round trip."""
        if self._way_s:
            time.sleep(self._way_s)
        with _errors():
            pool = self._client.connection_pool
            connection = pool.get_connection()
            try:
                connection.send_packed_command([b"".join(commands)])
                answers = [connection.read_response() for _ in range(count)]
            except BaseException:
                connection.disconnect()  # other answers may be on their way
                raise
            finally:
                pool.release(connection)
            return answers

    def send(self) -> None:
        """Send what has to go before anything else."""
        with self.lock:
            unsent, self._unsent = self._unsent, []
            if unsent:
                with _errors():
                    pipeline = self._client.pipeline(transaction=False)
                    for command in unsent:
                        pipeline.execute_command(*command)
                    pipeline.execute()

    def scan(self, region: Hash) -> Iterator[tuple[int, bytes]]:  # noqa: D102
        keys = self.scan_keys(region)
        for some in slices(keys):
            [values] = self.exchange([], [(region, list(some))])
            yield from ((key, value) for key, value in zip(some, values, strict=True) if value is not None)
        self.require([region.name])

    def scan_keys(self, region: Hash) -> list[int]:  # noqa: D102
        self.send()
        with _errors():
            return [_FIELD.unpack(field)[0] for field in self._client.hkeys(region.name)]

    def check(self) -> None:  # noqa: D102
        self.require(list(self._written))
        self._meet(*self._call([_INFO], 1))

    def close(self) -> None:  # noqa: D102
        self._client.close()

    def _begin(self, connection: Any) -> None:
        """Begin with a new connection, which may be one to another server, or to one that has begun anew."""
        connection.on_connect()
        connection.send_packed_command([_INFO])
        try:
            self._meet(connection.read_response())
        except ServiceUnavailable:
            connection.disconnect()  # or it would count as ready
            raise

    def _meet(self, answer: bytes) -> None:
        """Learn which server it is, from what it tells about itself."""
        about = dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)
        self.server = self.server or about.get("run_id", "")
        if self.server != about.get("run_id"):
            raise ServiceUnavailable(
                "the store of state has begun anew, or another server is in its place: state is lost"
            )
        if trouble := unsafe(about):
            raise ServiceUnavailable(f"the store of state: {trouble}")

    def require(self, names: Iterable[str]) -> None:
        """Raise ServiceUnavailable unless all keys that were written are in the hashes of these names."""
        with self.lock:
            self.send()
            written = {name: self._written[name] for name in names if name in self._written}
            commands = [part for name in written for part in _command(b"HLEN", name.encode(), [])]
            for name, found in zip(written, self._call(commands, len(written)) if written else [], strict=True):
                if found != written[name]:
                    raise ServiceUnavailable(
                        f"the store of state has lost keys: {found} are in {name}, where {written[name]} were written"
                    )

    def _remove_older_attempts(self, slot: str) -> None:
        """Remove what attempts of the job left that have died. ``slot`` is job/attempt/stage/number, or a name."""
        job, _, rest = slot.partition("/")
        attempt = rest.split("/")[0]
        if attempt.isdigit() and int(attempt):
            with _errors():
                for name in self._client.scan_iter(f"keyshift:{job}/*", count=1000):
                    older = name.decode().split("/")[1]
                    if older.isdigit() and int(older) < int(attempt):
                        self._client.unlink(name)


def _command(word: bytes, name: bytes, fields: list[bytes]) -> Iterator[bytes]:
    """In the protocol of Redis (RESP): a number of pieces, each behind its length."""
    yield b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(fields) + 2, len(word), word, len(name), name)
    for field in fields:
        yield b"$%d\r\n" % len(field)
        yield field
        yield b"\r\n"


def _errors() -> AbstractContextManager[None]:
    import redis

    return service_errors((redis.RedisError, OSError), lambda error: f"the store of state: {error}")
