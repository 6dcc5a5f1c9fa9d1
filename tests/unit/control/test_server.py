"""The HTTP server as strangers meet it: who asks nothing, or comes when too many have, is sent away."""

import asyncio
import contextlib
import socket

import pytest
from fastapi import FastAPI

from keyshift.control import server as servers
from keyshift.control.server import Guard, Server, listen
from keyshift.waiting import wait_until

ASKED = b"GET /here HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n\r\n"
PATIENCE_S = 20.0


@pytest.fixture
def address():
    app = FastAPI()
    app.add_middleware(Guard, token="the-token")
    app.get("/here")(lambda: {"here": True})
    listener = listen()
    found = listener.getsockname()
    server = Server(app, listener)
    yield found
    server.stop()


@contextlib.contextmanager
def connection(address):
    with socket.create_connection(address, PATIENCE_S) as found:
        yield found


def answered(found):
    """The status of the next answer; None if the connection is closed instead."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        with contextlib.suppress(ConnectionResetError):
            if part := found.recv(1 << 16):
                answer += part
                continue
        return None
    return int(answer.split()[1])


@pytest.mark.parametrize("before", [b"", ASKED], ids=["at first", "after an answer"])
def test_who_does_not_finish_a_question_is_sent_away(address, before, monkeypatch):
    monkeypatch.setattr(servers, "HEAD_S", 2.0 if before else 0.3)  # in which the first question has to come
    with connection(address) as slow:
        slow.sendall(before)
        assert not before or answered(slow) == 200
        assert wait_until(lambda: sent_away(slow), PATIENCE_S)


def sent_away(slow):
    """Send a letter more, and see whether the other side is still there."""
    slow.settimeout(0.02)
    try:
        slow.sendall(b"G")
        return slow.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_an_answer_may_take_longer_than_a_question(monkeypatch):
    monkeypatch.setattr(servers, "HEAD_S", 0.5)
    app, listener = FastAPI(), listen()

    @app.get("/here")
    async def answer():
        await asyncio.sleep(servers.HEAD_S)  # begun behind the time for the question, it ends behind that

    server = Server(app, listener)
    # Again, if the machine stood still for so long that the question came too late.
    assert wait_until(lambda: asked(listener.getsockname()) == 200, PATIENCE_S)
    server.stop()


def test_too_many_are_sent_away_and_when_some_have_gone_others_may_come(address, monkeypatch):
    monkeypatch.setattr(servers, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(servers, "HEAD_S", 10 * PATIENCE_S)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connection(address)).sendall(b"GET /here")
        assert asked(address) is None
    assert wait_until(lambda: asked(address) == 200, PATIENCE_S)


def asked(address):
    with connection(address) as found:
        with contextlib.suppress(ConnectionError):
            found.sendall(ASKED)
        return answered(found)
