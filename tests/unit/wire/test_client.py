"""Nobody waits for kazoo without a bound: not in a storm of calls, not for an answer, not at the end."""

import contextlib
import socket
import threading
from functools import partial
from select import select
from types import SimpleNamespace

import pytest
from kazoo.exceptions import OperationTimeoutError
from kazoo.interfaces import IAsyncResult

from keyshift.wire import client as zookeeper_client
from keyshift.wire.client import begin, connected, end
from keyshift.wire.confirmed import ConfirmedWrites

DEADLINE_S = 60.0


@pytest.fixture
def client(request):
    """Its connection loop stands: it waits for a server that takes a connection and says nothing.

    A parameter: after so many seconds it is about to connect again.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        client, _ = begin(f"127.0.0.1:{server.getsockname()[1]}", "", getattr(request, "param", DEADLINE_S))
        connection, _ = server.accept()
    yield client
    connection.close()
    end(client)


def ends(act) -> bool:
    """Whether it does, in time."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return not thread.is_alive()


def test_writes_wait_for_nobody_though_the_connection_loop_stands(client):
    writes = ConfirmedWrites(client, "", print)

    def storm():
        for number in range(600):
            writes.create([(f"/acks/{number}", b"")])
        writes.repeat()

    assert ends(storm)
    assert len(client._queue) == 2 * 600


@pytest.mark.parametrize("client", [1.0], indirect=True)
def test_a_session_ends_though_its_worker_makes_calls_that_nobody_takes(client, monkeypatch):
    monkeypatch.setattr(zookeeper_client, "END_S", DEADLINE_S)
    made = []
    answer = client.handler.async_result()
    answer.rawlink(lambda _: made.extend(client.exists_async("/") for _ in range(1000)))
    answer.set()
    assert ends(partial(end, client))
    assert not client.handler.running and len(made) == 1000


def test_the_loop_hears_of_each_call_once(client):
    bell, other = client.handler.create_socket_pair()
    for _ in range(1000):
        other.send(b"\0")
    with contextlib.closing(bell):
        assert [bell.recv(1) for _ in range(1000)] == [b"\0"] * 1000
        assert select([bell], [], [], 0)[0] == []
        other.send(b"\0")
        assert bell.recv(1) == b"\0"
        other.send(b"\0")
    with pytest.raises(OSError):
        other.send(b"\0")


def test_an_answer_that_never_comes_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(zookeeper_client, "GIVE_UP_S", 0.05)
    with pytest.raises(OperationTimeoutError):
        client.get("/")
    answer: IAsyncResult = client.handler.async_result()
    with pytest.raises(client.handler.timeout_exception):
        answer.get(block=False)
    answer.set(3)
    assert answer.get() == 3


def test_a_session_that_does_not_end_is_left_alone(monkeypatch):
    monkeypatch.setattr(zookeeper_client, "END_S", 0.05)
    never, left = threading.Event(), []
    monkeypatch.setattr(zookeeper_client.atexit, "unregister", left.append)

    handler = SimpleNamespace(stop=never.wait)
    assert ends(lambda: end(SimpleNamespace(handler=handler, stop=handler.stop)))
    assert left == [handler.stop]
    never.set()


def test_the_first_of_several_servers_that_takes_a_connection_is_enough_and_otherwise_the_last_error_counts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        with connected(f"no such host:1,127.0.0.1:1,{there}", 5.0) as link:
            assert link.getpeername() == server.getsockname()
    with pytest.raises(ConnectionRefusedError):
        connected("no such host:1,127.0.0.1:1", 5.0)
