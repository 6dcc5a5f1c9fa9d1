"""A session with ZooKeeper, through kazoo, that survives lost connections and its own expiry."""

import contextlib
import threading
from collections.abc import Iterator

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException

from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.wire.client import ANSWER_S, GIVE_UP_S, begin, end
from keyshift.wire.epoch import Epoch, newest

BegunSession = tuple[KazooClient, threading.Event]  # a session, and what is set while it has a connection


class _Ahead:
    """At most one session that was begun before anybody needs it, for one ``hosts`` and ``secret``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[tuple[str, str], BegunSession] = {}

    def begin(self, hosts: str, secret: str) -> None:
        """Begin a session, and do not wait for it. One for another job ends."""
        with self._lock:
            if (hosts, secret) in self._begun:
                return
            others, self._begun = self._begun, {(hosts, secret): begin(hosts, secret)}
        for client, _ in others.values():
            end(client)

    def take(self, hosts: str, secret: str) -> BegunSession | None:
        """The session, if there is one; it is the caller's now."""
        with self._lock:
            return self._begun.pop((hosts, secret), None)


_ahead = _Ahead()


class Session:
    """A lost connection passes unnoticed: calls wait, each for a bounded time. ``_renewed`` and ``_lost`` are called
    by other threads, ``_renewed`` by one at a time. All methods raise ServiceUnavailable, as those of ``Coordination``.
    """

    def __init__(self, hosts: str, secret: str) -> None:
        ahead = _ahead.take(hosts, secret)
        self._client, self._there = ahead or begin(hosts, secret)
        self._hosts, self._secret = hosts, secret
        self._first = ahead is None
        self._timer: threading.Timer | None = None
        self._expired = False  # the session, and there is no other one yet
        self._failure: str | None = None
        self._renewing = threading.Lock()  # guards the two below
        self._to_renew: bool | None = None  # whether in another session; None: nothing is to be renewed
        self._renews = False  # a thread does

    def _start(self) -> None:
        """Wait for the session. Who calls this ends it if an error is raised."""
        within_s = ANSWER_S if self._first else GIVE_UP_S  # one that was begun ahead may have lost its connection
        if not self._there.wait(within_s):
            raise ServiceUnavailable(f"ZooKeeper at {self._hosts} did not answer within {within_s:g} s: is it running?")
        self._client.add_listener(self._connection_changed)

    def _renewed(self, expired: bool) -> None:
        """Do what is due when there is a connection again. ``expired``: in another session."""

    def _lost(self) -> None:
        """Do what is due when there will be no connection any more."""

    def check(self) -> None:
        """Raises ServiceUnavailable if ZooKeeper is gone for good. Watching and acknowledging do not tell."""
        if self._failure:
            raise ServiceUnavailable(self._failure)

    def catch_up(self) -> None:
        """Make sure to read nothing older than what anybody has written until now: another server may be behind."""
        with self._talking():
            self._client.retry(self._client.sync, "/")

    def epoch_of(self, job: str) -> Epoch | None:
        """The epoch of the driver that has claimed ``job`` last; None if nobody can claim it."""
        with self._talking():
            return newest(self._client, job)

    def _connection_changed(self, state: str) -> None:
        """Take note, from kazoo's thread, which must not wait."""
        if state == KazooState.CONNECTED:
            if self._timer is not None:
                self._timer.cancel()
            expired, self._timer, self._expired = self._expired, None, False
            with self._renewing:
                self._to_renew = expired or bool(self._to_renew)
                begins, self._renews = not self._renews, True
            if begins:
                self._client.handler.spawn(self._renew)
            return
        self._expired |= state == KazooState.LOST
        if self._timer is None:
            self._timer = threading.Timer(GIVE_UP_S, self._give_up)
            self._timer.daemon = True
            self._timer.start()

    def _renew(self) -> None:
        """Renew in a thread of its own, one at a time: what comes meanwhile is renewed in one go, behind that."""
        while True:
            with self._renewing:
                expired, self._to_renew = self._to_renew, None
                if expired is None:
                    self._renews = False
                    return
            self._renewed(expired)

    def _give_up(self) -> None:
        self._client.remove_listener(self._connection_changed)
        self._fail(f"ZooKeeper at {self._hosts} was away for {GIVE_UP_S:g} s: see `keyshift status`")
        end(self._client)  # fails whatever waits for an answer

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
        """Begin the session of the next participant in this process now."""
        _ahead.begin(self._hosts, self._secret)

    def _end(self) -> None:
        self._client.remove_listener(self._connection_changed)
        if self._timer is not None:
            self._timer.cancel()
        end(self._client)
