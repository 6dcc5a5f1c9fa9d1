"""The HTTP server of a job, in a thread beside it."""

import socket
import threading

import uvicorn
from fastapi import FastAPI

from keyshift.errors import BadInput

LOOPBACK = "127.0.0.1"
GOODBYE_S = 10  # for answers under way when the server ends


def listen(port: int = 0, host: str = LOOPBACK) -> socket.socket:
    """A socket on ``port``, of all free ones if it is 0. Raises BadInput if it cannot be had."""
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"port = {port}: {host} cannot be listened on ({reason}); name another one, or none") from error


def url_of(listener: socket.socket) -> str:
    """Where a server on it can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


class Server:
    """From its making to ``stop``."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=GOODBYE_S
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="keyshift-control", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """When the answers under way are given."""
        self._server.should_exit = True
        self._thread.join()
