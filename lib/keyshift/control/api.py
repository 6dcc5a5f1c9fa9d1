"""HTTP while a job runs. Every request needs the job's token: ``Authorization: Bearer TOKEN``.

Answers are JSON. A request that is refused has ``detail``, the reason in one line, and has changed nothing: 401 without
the token, 408 or 413 if it is too slow or too large (``guard``), 400 or 422 if it is wrong, 409 if the job is not
running, 503 if it has failed.
"""

import contextlib
from typing import Annotated, Any

from fastapi import BackgroundTasks, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from keyshift.control.guard import Guard
from keyshift.control.metrics import CONTENT_TYPE, Metrics
from keyshift.lab.live.job import LiveJob, planned
from keyshift.lab.live.run import NotRunning
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.refusals import refusal

Stage = Annotated[str | None, Query(description="a keyed stage; may be left out if there is one")]


class PlanRequest(BaseModel):
    """What ``POST /plan`` takes."""

    model_config = ConfigDict(extra="forbid")

    strategy: str
    target: int | dict[int, int] = Field(description="a number of slots, or key groups and the slots they go to")
    settings: dict[str, bool | int | str] = Field(default={}, description="changes to the strategy")
    stage: str | None = None


def make_app(job: LiveJob, token: str) -> FastAPI:
    """The application. It answers about ``job`` before it has begun, and after it has ended."""
    app = FastAPI(title="keyshift", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, token=token)
    metrics = Metrics(job)

    @app.exception_handler(KeyshiftError)
    def refused(_: Request, error: KeyshiftError) -> JSONResponse:
        status = 409 if isinstance(error, NotRunning) else 400 if isinstance(error, BadInput) else 503
        return JSONResponse({"detail": " ".join(str(error).split())}, status)

    @app.exception_handler(RequestValidationError)
    def not_understood(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without "query" or "body"; the whole body has no other name.
        faults = [each | {"loc": each["loc"][1:] or ("request",)} for each in error.errors()]
        return JSONResponse({"detail": refusal(faults, PlanRequest)}, 422)

    @app.get("/status")
    def status() -> dict[str, Any]:
        return job.status()

    @app.get("/metrics")
    def scrape() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.post("/scale", status_code=202)
    def scale(slots: Annotated[int, Query()], stage: Stage = None) -> dict[str, Any]:
        return job.scale(stage, slots, wait=False)

    @app.post("/plan", status_code=202)
    def plan(wanted: PlanRequest, after: BackgroundTasks) -> dict[str, Any]:
        proposed = job.propose(wanted.strategy, wanted.target, wanted.settings, wanted.stage)

        def begin() -> None:
            with contextlib.suppress(NotRunning):  # it was stopped meanwhile
                job.begin(proposed)

        after.add_task(begin)  # when the answer is out
        return planned(proposed)

    @app.post("/cancel")
    def cancel() -> dict[str, Any]:
        job.cancel()
        return {"cancelled": True}

    @app.post("/rate")
    def rate(rate: Annotated[float, Query(description="events per second")]) -> dict[str, Any]:
        job.set_rate(rate)
        return {"rate": rate}

    @app.post("/fault", status_code=202)
    def fault(fault: Annotated[str, Query(description="e.g. kill:slot")]) -> dict[str, Any]:
        job.hit(fault)
        return {"fault": fault}

    @app.post("/stop")
    def stop() -> dict[str, Any]:
        job.stop()
        return job.status()

    return app
