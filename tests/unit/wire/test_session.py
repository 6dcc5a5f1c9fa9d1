"""What is done about a session that is lost and renewed; the connection itself is a stand-in."""

import threading

import pytest
from kazoo.client import KazooState
from small_kazoo import Client

from keyshift.model.errors import ServiceUnavailable
from keyshift.waiting import wait_until
from keyshift.wire import session as zookeeper_session
from keyshift.wire.coordination import Coordination
from keyshift.wire.session import Session

DEADLINE_S = 60.0


@pytest.fixture
def there(monkeypatch):
    there = threading.Event()
    monkeypatch.setattr(zookeeper_session, "begin", lambda hosts, secret: (Client(), there))
    return there


class Renewed(Session):
    """Stands in the first renewal until ``go``."""

    def __init__(self):
        super().__init__("nowhere:1", "")
        self.seen, self.go = [], threading.Event()
        self._start()

    def _renewed(self, expired):
        self.seen.append(expired)
        assert self.go.wait(DEADLINE_S)


def test_a_storm_of_renewals_is_one_thread_that_renews_once_more(there):
    there.set()
    session = Renewed()
    session._connection_changed(KazooState.SUSPENDED)
    session._connection_changed(KazooState.CONNECTED)
    assert wait_until(lambda: session.seen, DEADLINE_S)
    for lost in [KazooState.LOST, *[KazooState.SUSPENDED] * 100]:
        session._connection_changed(lost)
        session._connection_changed(KazooState.CONNECTED)
    threads = session._client.handler.threads
    assert len(threads) == 1 and session.seen == [False]
    session.go.set()
    threads[0].join(DEADLINE_S)
    assert session.seen == [False, True], "what was registered is registered in the newest session"
    session._connection_changed(KazooState.SUSPENDED)
    session._connection_changed(KazooState.CONNECTED)
    assert wait_until(lambda: session.seen == [False, True, False], DEADLINE_S)
    session._end()


def test_one_that_was_begun_ahead_is_waited_for_as_one_that_has_lost_its_connection_and_no_longer(there, monkeypatch):
    """Its server may have been away meanwhile, and kazoo waits for an answer of one that was just going."""
    monkeypatch.setattr(zookeeper_session, "ANSWER_S", 0.05)
    zookeeper_session._ahead.begin("nowhere:1", "")
    threading.Timer(0.3, there.set).start()
    Coordination("nowhere:1", "/keyshift/job")._end()
    there.clear()
    with pytest.raises(ServiceUnavailable, match=r"nowhere:1 did not answer within 0\.05 s"):
        Coordination("nowhere:1", "/keyshift/job")
    monkeypatch.setattr(zookeeper_session, "GIVE_UP_S", 0.06)
    zookeeper_session._ahead.begin("nowhere:1", "")
    client, _ = zookeeper_session._ahead._begun
    with pytest.raises(ServiceUnavailable, match=r"nowhere:1 did not answer within 0\.06 s"):
        Coordination("nowhere:1", "/keyshift/job")
    assert client.stopped and zookeeper_session._ahead._begun is None


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_session_ends_though_somebody_is_interrupted_who_begins_or_ends_it(there, monkeypatch):
    there.set()
    with monkeypatch.context() as patched:
        patched.setattr(Coordination, "_start", interrupt)
        zookeeper_session._ahead.begin("nowhere:1", "")
        client, _ = zookeeper_session._ahead._begun
        with pytest.raises(KeyboardInterrupt):
            Coordination("nowhere:1", "/keyshift/job")
        assert client.stopped
    session = Coordination("nowhere:1", "/keyshift/job")
    monkeypatch.setattr(session, "_confirm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert session._client.stopped
