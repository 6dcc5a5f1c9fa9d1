"""A client of kazoo that keeps nobody waiting without a bound, as kazoo's own does."""

import atexit
import contextlib
import socket
import threading
from hashlib import sha256
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import OperationTimeoutError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.security import make_digest_acl

ANSWER_S = 10.0  # for a new session, and without a sign of life of the server
GIVE_UP_S = 30.0  # without a connection
END_S = 20.0  # to end a session; a server that has gone silent is noticed within ANSWER_S
PATIENT = {"max_tries": -1, "max_delay": 1.0}  # kazoo's own pauses grow to an hour


class _Bell:
    """Wakes kazoo's connection loop: both ends of a pair of sockets, in which each request that waits is a byte.

    Real sockets have room for fewer than 300 of these. Whoever sends another one while the loop stands would wait for
    it, and for ever if it has ended; so here the bytes are counted, and at most one is under way.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._bytes = 0
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._reader.fileno()

    def send(self, data: bytes) -> int:
        with self._lock:
            if not self._bytes:
                self._writer.send(data)
            self._bytes += 1
        return 1

    def recv(self, _size: int) -> bytes:
        with self._lock:
            self._bytes -= 1
            return b"\0" if self._bytes else self._reader.recv(1)

    def close(self) -> None:
        with self._lock:
            self._bytes = 0  # whoever sends from now on gets an error
            self._reader.close()
            self._writer.close()


class _Answer(AsyncResult):
    """An answer that is awaited for a limited time: kazoo forgets a request that is made while a session ends."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and not self.wait(GIVE_UP_S if timeout is None else timeout):
            raise OperationTimeoutError
        return super().get(block=False)


class _Handler(SequentialThreadingHandler):
    def create_socket_pair(self) -> tuple[_Bell, _Bell]:
        bell = _Bell()
        return bell, bell

    def async_result(self) -> _Answer:
        return _Answer(self)


def _only_for(secret: str) -> dict[str, Any]:
    """Return what makes kazoo sign in, and make nodes that only who signs in likewise can read, write and delete."""
    password = sha256(f"zookeeper {secret}".encode()).hexdigest()  # is sent in clear, so it must not open anything else
    return {"auth_data": [("digest", f"job:{password}")], "default_acl": [make_digest_acl("job", password, all=True)]}


def connected(addresses: str, within_s: float) -> socket.socket:
    """A connection with the first of several servers that takes one: of several nodes one may be away.

    ``addresses``: HOST:PORT, with commas between them. Raises the OSError of the last one.
    """
    *others, last = addresses.split(",")
    for address in others:
        with contextlib.suppress(OSError):
            return _connected(address, within_s)
    return _connected(last, within_s)


def _connected(address: str, within_s: float) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), within_s)


def begin(hosts: str, secret: str, session_s: float = ANSWER_S) -> tuple[KazooClient, threading.Event]:
    """A session that begins, and what is set while there is a connection. Does not wait for it.

    ``session_s``: without a sign of life of this client for so long, it ends.
    """
    client = KazooClient(
        hosts=hosts,
        timeout=session_s,
        handler=_Handler(),
        connection_retry=PATIENT,
        command_retry={**PATIENT, "deadline": 2 * GIVE_UP_S},  # if connections come and go; else it is given up before
        **_only_for(secret) if secret else {},
    )
    return client, client.start_async()


def end(client: KazooClient) -> None:
    """End a session. What has not ended within ``END_S`` is left to a thread of its own: nobody waits for it."""

    def stop() -> None:
        with contextlib.suppress(Exception):  # broken, or another thread is stopping it: kazoo has no class for that
            client.stop()
            client.close()

    ending = threading.Thread(target=stop, daemon=True)
    ending.start()
    ending.join(END_S)
    if ending.is_alive():
        atexit.unregister(client.handler.stop)  # with which kazoo would keep the process from ending
