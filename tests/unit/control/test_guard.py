"""What stands before the HTTP of a job: the token comes first, and a body has limits."""

import asyncio

import pytest
from fastapi import FastAPI, Request

from keyshift.control import server
from keyshift.control.server import MOST_BYTES, Guard

TOKEN = "the-token"
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
    monkeypatch.setattr(server, "BODY_S", 0.05)
    assert ask(BEARER, [b"the first half"], [{"type": "http.request", "body": b"", "more_body": True}]) == (408, 2, [])
    _, _, bodies = ask(BEARER, [b"the first half"], [{"type": "http.disconnect"}])
    assert bodies == []
