"""A session with ZooKeeper, through kazoo, that survives lost connections and its own expiry."""

import contextlib
import threading
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl

from keyshift.errors import ServiceUnavailable, service_errors

ANSWER_S = 10.0  # for a new session
GIVE_UP_S = 30.0  # without a connection; kazoo alone would keep every caller waiting for ever
PATIENT = {"max_tries": -1, "max_delay": 1.0}  # kazoo's own pauses grow to an hour


def _only_for(secret: str) -> dict[str, Any]:
    """What makes kazoo sign in, and make nodes that only who signs in likewise can read, write and delete."""
    password = sha256(f"zookeeper {secret}".encode()).hexdigest()  # is sent in clear, so it must not open anything else
    return {"auth_data": [("digest", f"job:{password}")], "default_acl": [make_digest_acl("job", password, all=True)]}


def _client(hosts: str, secret: str) -> KazooClient:
    return KazooClient(
        hosts=hosts,
        timeout=ANSWER_S,
        connection_retry=PATIENT,
        command_retry=PATIENT,
        **_only_for(secret) if secret else {},
    )


class _Ahead:
    """At most one session that was begun before anybody needs it, for one ``hosts`` and ``secret``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: tuple[str, str] | None = None
        self._client: KazooClient | None = None
        self._there: Any = None  # an event

    def begin(self, hosts: str, secret: str) -> None:
        """Does not wait for the session. One for another job ends."""
        with self._lock:
            if self._of == (hosts, secret):
                return
            other, self._of, self._client = self._client, (hosts, secret), _client(hosts, secret)
            self._there = self._client.start_async()
        if other is not None:
            _end(other)

    def take(self, hosts: str, secret: str) -> KazooClient | None:
        """The session, if there is one; it is the caller's now."""
        with self._lock:
            if self._of != (hosts, secret):
                return None
            client, there, self._of, self._client = self._client, self._there, None, None
        there.wait(ANSWER_S)
        return client


_ahead = _Ahead()


def _end(client: KazooClient) -> None:
    with contextlib.suppress(
        Exception
    ):  # already broken; or another thread is stopping it, for which kazoo has no class
        client.stop()
        client.close()


class Session:
    """A lost connection passes unnoticed: calls wait. ``_renewed`` and ``_lost`` are called by kazoo's threads.

    Every method raises ServiceUnavailable if ZooKeeper is not there, refuses, or was away for ``GIVE_UP_S``; then for
    good.
    """

    def __init__(self, hosts: str, secret: str) -> None:
        ahead = _ahead.take(hosts, secret)
        self._client = ahead or _client(hosts, secret)
        self._hosts, self._secret = hosts, secret
        self._first = ahead is None
        self._timer: threading.Timer | None = None
        self._expired = False  # the session, and there is no other one yet
        self._failure: str | None = None

    def _start(self) -> None:
        try:
            self._client.start(timeout=ANSWER_S)  # does nothing for a session that is there
        except KazooTimeoutError as error:
            self._client.close()
            raise ServiceUnavailable(
                f"ZooKeeper at {self._hosts} did not answer within {ANSWER_S:g} s: is it running?"
            ) from error
        self._client.add_listener(self._connection_changed)

    def _renewed(self, expired: bool) -> None:
        """There is a connection again. ``expired``: in another session."""

    def _lost(self) -> None:
        """There will be none any more."""

    def check(self) -> None:
        """Raises ServiceUnavailable if ZooKeeper is gone for good. Watching and acknowledging do not tell."""
        if self._failure:
            raise ServiceUnavailable(self._failure)

    def _connection_changed(self, state: str) -> None:
        """From kazoo's thread, which must not wait."""
        if state == KazooState.CONNECTED:
            if self._timer is not None:
                self._timer.cancel()
            expired, self._timer, self._expired = self._expired, None, False
            self._client.handler.spawn(self._renewed, expired)
            return
        self._expired |= state == KazooState.LOST
        if self._timer is None:
            self._timer = threading.Timer(GIVE_UP_S, self._give_up)
            self._timer.daemon = True
            self._timer.start()

    def _give_up(self) -> None:
        self._client.remove_listener(self._connection_changed)
        self._fail(f"ZooKeeper at {self._hosts} was away for {GIVE_UP_S:g} s: see `keyshift status`")
        with contextlib.suppress(KazooException):  # it is about to connect, and stops then
            self._client.stop()  # fails whatever waits for an answer

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._lost()

    def _refused(self, node: str, error: Exception) -> None:
        self._fail(f"ZooKeeper at {self._hosts} refused {node} ({type(error).__name__})")

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        self.check()
        with service_errors(KazooException, self._explained):
            yield

    def _explained(self, error: KazooException) -> str:
        said = f"ZooKeeper at {self._hosts} refused or was lost ({type(error).__name__}): see `keyshift status`"
        return self._failure or said

    def _begin_next(self) -> None:
        """That of the next participant in this process begins now."""
        _ahead.begin(self._hosts, self._secret)

    def _end(self) -> None:
        self._client.remove_listener(self._connection_changed)
        if self._timer is not None:
            self._timer.cancel()
        _end(self._client)
