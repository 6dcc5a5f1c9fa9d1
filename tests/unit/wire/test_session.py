"""What is done about a session that is lost and renewed; the connection itself is a stand-in."""

import threading

import pytest
from kazoo.client import KazooState
from small_kazoo import Client

from keyshift.model.errors import ServiceUnavailable
from keyshift.waiting import wait_until
from keyshift.wire import session as zookeeper_session
from keyshift.wire.confirmed import ConfirmedWrites
from keyshift.wire.coordination import Coordination
from keyshift.wire.session import Session

DEADLINE_S = 60.0


@pytest.fixture
def there(monkeypatch):
    """Set while there is a connection; ``there.begun``: the clients of all sessions, in their order."""
    there = threading.Event()
    there.begun = []

    def begin(hosts, secret):
        there.begun.append(Client())
        return there.begun[-1], there

    monkeypatch.setattr(zookeeper_session, "begin", begin)
    return there


def join():
    return Coordination("nowhere:1", "/keyshift/job")


def begun_ahead(there):
    """The client of a session that somebody has left for the next one, and that has no connection."""
    there.set()
    join().close(prepare_next=True)
    there.clear()
    return there.begun[-1]


class Renewed(Session):
    """Stands in the first renewal until ``go``."""

    def __init__(self):
        super().__init__("nowhere:1", "")
        self.seen, self.go = [], threading.Event()
        self._start()

    def _renewed(self, expired):
        self.seen.append(expired)
        assert self.go.wait(DEADLINE_S)

    def close(self):
        self._end()


def test_a_storm_of_renewals_is_one_thread_that_renews_once_more(there):
    there.set()
    session = Renewed()
    [client] = there.begun
    client.tell(KazooState.SUSPENDED, KazooState.CONNECTED)
    assert wait_until(lambda: session.seen, DEADLINE_S)
    for lost in [KazooState.LOST, *[KazooState.SUSPENDED] * 100]:
        client.tell(lost, KazooState.CONNECTED)
    threads = client.handler.threads
    assert len(threads) == 1 and session.seen == [False]
    session.go.set()
    threads[0].join(DEADLINE_S)
    assert session.seen == [False, True], "what was registered is registered in the newest session"
    client.tell(KazooState.SUSPENDED, KazooState.CONNECTED)
    assert wait_until(lambda: session.seen == [False, True, False], DEADLINE_S)
    session.close()


def test_one_that_was_begun_ahead_is_waited_for_as_one_that_has_lost_its_connection_and_no_longer(there, monkeypatch):
    """Its server may have been away meanwhile, and kazoo waits for an answer of one that was just going."""
    monkeypatch.setattr(zookeeper_session, "ANSWER_S", 0.05)
    begun_ahead(there)
    threading.Timer(0.3, there.set).start()
    join().close()
    there.clear()
    with pytest.raises(ServiceUnavailable, match=r"nowhere:1 did not answer within 0\.05 s"):
        join()
    client = begun_ahead(there)
    monkeypatch.setattr(zookeeper_session, "GIVE_UP_S", 0.06)
    with pytest.raises(ServiceUnavailable, match=r"nowhere:1 did not answer within 0\.06 s"):
        join()
    assert client.stopped
    with pytest.raises(ServiceUnavailable, match=r"0\.05 s"):  # nobody else gets it
        join()


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_session_ends_though_somebody_is_interrupted_who_begins_or_ends_it(there, monkeypatch):
    with monkeypatch.context() as patched:
        client = begun_ahead(there)
        patched.setattr(there, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            join()
        assert client.stopped
    there.set()
    session = join()
    monkeypatch.setattr(ConfirmedWrites, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert there.begun[-1].stopped
