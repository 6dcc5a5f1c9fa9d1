"""The HTTP server of a job, in a thread beside it."""

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyshift.model.errors import BadInput

LOOPBACK = "127.0.0.1"
GOODBYE_S = 10  # for answers under way when the server ends
HEAD_S = 10.0  # in which the head of a request has to arrive, from the connection or the last answer on
MOST_CONNECTIONS = 64


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
