"""HTTP while a job runs. Every request needs the job's token: ``Authorization: Bearer TOKEN``.

``POST /verb`` for each of ``commands.COMMANDS``, with its values in the query or in a JSON body; a query has
``settings=name=value`` as often as there are settings. Answers are JSON. A request that is refused has ``detail``, the
reason in one line, and has changed nothing: 401 without the token, 408 or 413 if it is too slow or too large
(``Guard``), 400 if it is wrong, 409 if the job is not running, 503 if it has failed or too many commands wait for it.
"""

import asyncio
import json
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import QueryParams

from keyshift.control.metrics import Metrics
from keyshift.control.server import guarded_app
from keyshift.experiment.commands import COMMANDS, CommandAnswer, command
from keyshift.lab.live.inbox import NotRunning
from keyshift.lab.live.job import LiveJob
from keyshift.lab.live.status import Status
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable

LOOK_S = 0.05  # between two looks at whether the job has ended
MOST_COMMANDS = 40  # that wait for the job at the same time, each in a thread


def make_app(job: LiveJob, token: str) -> FastAPI:
    """The application. It answers about ``job`` before it has begun, and after it has ended."""
    app = guarded_app("keyshift", token, Metrics(job))
    waiting = CapacityLimiter(MOST_COMMANDS)  # of their own: the threads for status and metrics are always there

    @app.exception_handler(KeyshiftError)
    def refused(_: Request, error: KeyshiftError) -> JSONResponse:
        status = 409 if isinstance(error, NotRunning) else 400 if isinstance(error, BadInput) else 503
        return JSONResponse({"detail": " ".join(str(error).split())}, status)

    @app.get("/status", response_model=None)
    def status() -> Status:
        return job.status()

    @app.post("/stop", response_model=None)
    async def stop(request: Request) -> Status:
        job.begin_stop()
        while not job.ended.is_set():  # no thread: that may take long, and whoever is gone by then may have asked often
            if await request.is_disconnected():
                return job.status()  # nobody hears that
            await asyncio.sleep(LOOK_S)
        job.stop()
        return job.status()

    async def do(request: Request) -> CommandAnswer:
        verb = request.url.path.removeprefix("/")
        wanted = command(verb, _given(request.query_params, _body(await request.body())))
        if waiting.available_tokens < 1:
            raise ServiceUnavailable(
                f"{MOST_COMMANDS} commands wait for the job already, nothing was changed: ask again later"
            )
        return await to_thread.run_sync(job.do, wanted, limiter=waiting)

    for verb in COMMANDS:
        app.post(f"/{verb}", status_code=202, response_model=None)(do)
    return app


def _given(query: QueryParams, body: dict[str, Any]) -> dict[str, Any]:
    """The values of a command. Raises BadInput for one that is given twice; settings of the query may be repeated."""
    values: dict[str, Any] = {name: query.getlist(name) for name in query}
    for name, said in values.items():
        if name in body:
            raise BadInput(f"{name} is given twice, in the query and in the body; leave one out")
        if name != "settings":
            if len(said) > 1:
                raise BadInput(f"{name} is given twice, as {said[0]!r} and as {said[1]!r}; leave one out")
            values[name] = said[0]
    return values | body


def _body(given: bytes) -> dict[str, Any]:
    """Read a body of JSON. Raises BadInput."""
    try:
        values = json.loads(given or b"{}")
    except (ValueError, RecursionError) as error:  # it may be nested too deep
        raise BadInput(f"the body is no JSON: {error}") from None
    if not isinstance(values, dict | None):
        raise BadInput(f"the body must be a JSON object, not {given[:80].decode(errors='replace')}")
    return values or {}
