"""The HTTP server as strangers meet it: the token comes first, a body has limits, and who asks nothing is sent away."""

import asyncio
import contextlib
import socket

import pytest
from fastapi import FastAPI, Request

from keyshift.control import server as servers
from keyshift.control.server import MOST_BYTES, Guard, Server, listen
from keyshift.waiting import wait_until

TOKEN = "the-token"
ASKED = f"GET /here HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
PATIENCE_S = 20.0


@pytest.fixture
def address():
    app = FastAPI()
    app.add_middleware(Guard, token=TOKEN)
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


# -- the guard ---------------------------------------------------------------------------------------------------------


BEARER = [(b"authorization", f"Bearer {TOKEN}".encode())]
MIB = bytes(1 << 20)


def ask(headers, chunks, then=()):
    """The status of the answer, how many chunks of the body were taken for it, and what came to the application."""
    app, bodies, sent = FastAPI(), [], []

    @app.post("/echo")
    async def echo(request: Request):
        bodies.append(await request.body())
        return {}

    app.add_middleware(Guard, token=TOKEN)
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages = [*messages, *then] if then else [*messages[:-1], messages[-1] | {"more_body": False}]
    left = list(messages)

    async def receive():
        return left.pop(0) if left else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/echo", "raw_path": b"/echo"}
    scope |= {"root_path": "", "scheme": "http", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], len(messages) - len(left), bodies


WRONG = [b"Bearer wrong", TOKEN.encode(), f"Basic {TOKEN}".encode(), b"Bearer \xff\xfe"]


@pytest.mark.parametrize("headers", [[], *([(b"authorization", each)] for each in WRONG)])
def test_without_the_token_nothing_of_a_body_is_read(headers):
    assert ask(headers, [MIB] * 64) == (401, 0, [])


def test_a_body_comes_whole_up_to_the_limit_and_no_further():
    half = bytes(MOST_BYTES // 2)
    assert ask(BEARER, [half, half]) == (200, 2, [half + half])
    assert ask(BEARER, [half, half, b"1", *[MIB] * 64]) == (413, 3, [])
    told = [(b"content-length", str(1 << 30).encode())]
    assert ask(BEARER + told, [half, half, b"1", *[MIB] * 64]) == (413, 3, [])


def test_a_body_that_does_not_arrive_is_not_waited_for_and_half_of_one_reaches_nobody(monkeypatch):
    monkeypatch.setattr(servers, "BODY_S", 0.05)
    assert ask(BEARER, [b"the first half"], [{"type": "http.request", "body": b"", "more_body": True}]) == (408, 2, [])
    _, _, bodies = ask(BEARER, [b"the first half"], [{"type": "http.disconnect"}])
    assert bodies == []
