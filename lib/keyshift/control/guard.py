"""What stands before the HTTP of a job: nobody gets in without its token, and nobody brings too much."""

import asyncio
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20  # of a request's body
BODY_S = 10.0  # in which it has to arrive


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
    """All of it; None if it is too much, or if whoever sends it is gone, who hears no answer."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BYTES or message["type"] == "http.disconnect":
            return None
    return body


def _refused(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": reason}, status, headers)
