"""The HTTP server of a job, in a thread beside it, and what stands before its answers: nobody gets in without the job's
token, and nobody brings too much or stays for nothing.
"""

import asyncio
import secrets
import socket
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyshift.model.errors import BadInput

LOOPBACK = "127.0.0.1"
GOODBYE_S = 10  # for answers under way when the server ends
HEAD_S = 10.0  # in which the head of a request has to arrive, from the connection or the last answer on
MOST_CONNECTIONS = 64
MOST_BYTES = 1 << 20  # of a request's body
BODY_S = 10.0  # in which it has to arrive


def listen(port: int = 0, host: str = LOOPBACK) -> socket.socket:
    """A socket on ``port``, of all free ones if it is 0. Raises BadInput if it cannot be had."""
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"port = {port}: {host} cannot be listened on ({reason}); name another one, or none") from error


def url_of(listener: socket.socket) -> str:
    """The address at which a server on ``listener`` can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


class _Connection(H11Protocol):
    """A connection that is closed if there are too many, or if nothing is asked: uvicorn has no deadline for that.

    (Its ``limit_concurrency`` counts only whoever has asked.)
    """

    _deadline: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()

    def on_response_complete(self) -> None:
        self._deadline.cancel()
        self._begin()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Server:
    """Serves ``app`` on ``listener`` in a thread of its own, until ``stop``."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GOODBYE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="keyshift-control", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the server when the answers under way are given."""
        self._server.should_exit = True
        self._thread.join()


class Guard:
    """Middleware: 401 without the token, before anything of the body is read and whatever the path; 413 for a body of
    more than ``MOST_BYTES``, also if it does not say so; 408 for one that does not arrive in ``BODY_S``.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let ``app`` answer, which gets the body as a whole."""
        kind, _, credentials = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secrets.compare_digest(credentials.strip().encode(), self._token):
            reason = "the job's token is needed: Authorization: Bearer TOKEN"
            await _refused(401, reason, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(receive)
        except TimeoutError:
            await _refused(408, f"the body did not arrive within {BODY_S:g} s")(scope, receive, send)
            return
        if body is None:
            await _refused(413, f"the body has more than {MOST_BYTES} bytes")(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, again, send)


async def _body(receive: Receive) -> bytes | None:
    """Read all of the body; None if it is too much, or if whoever sends it is gone, who hears no answer."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BYTES or message["type"] == "http.disconnect":
            return None
    return body


def guarded_app(title: str, token: str, metrics: Collector) -> FastAPI:
    """An application behind a ``Guard``. ``GET /metrics`` reads ``metrics`` anew, in Prometheus' text format."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, token=token)

    @app.get("/metrics")
    def scrape() -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app


def _refused(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": reason}, status, headers)
