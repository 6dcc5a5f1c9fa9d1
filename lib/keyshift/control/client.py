"""Asks a job in the background over HTTP: its status, what it is to do, its end."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import httpx
import psutil

from keyshift.control.files import JobFile, Jobs
from keyshift.experiment.commands import UNDER_WAY, Command, CommandAnswer, Migration, outcome_said
from keyshift.lab.live.status import GOES_ON, Status
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, ServiceUnavailable
from keyshift.progress import Say
from keyshift.results.manifest import validate
from keyshift.services import processes

LOOK_S = 0.1
ANSWER_S = 120.0  # a job that recovers or restarts answers when it has
END_S = 120.0  # for its process to stop what it has started


class Client:
    """Asks one job. Raises BadInput for what the job refuses, ServiceUnavailable if it does not answer."""

    def __init__(self, job: JobFile) -> None:
        self.job = job
        self._http = httpx.Client(
            base_url=job.url,
            headers={"Authorization": f"Bearer {job.token}"},
            timeout=ANSWER_S,
            trust_env=False,  # a proxy has no business between us and this machine
        )

    def status(self) -> Status:
        """Ask for the status of the job; see ``LiveJob.status``."""
        return _status(self._asked("GET", "/status"))

    def stop(self) -> Status:
        """Stop the job and return its status with the verdict, however long that takes."""
        return _status(self._asked("POST", "/stop", timeout=None))

    def do(self, command: Command) -> CommandAnswer:
        """Have the job carry out a command; see ``LiveJob.do``."""
        return self.ask(command.verb, command.model_dump(mode="json", exclude_defaults=True))

    def ask(self, verb: str, values: Mapping[str, Any]) -> CommandAnswer:
        """Ask as ``do``, with values that the job alone checks: it may know a strategy that this process does not."""
        return cast(CommandAnswer, self._asked("POST", f"/{verb}", json=values))

    def _asked(self, method: str, path: str, **more: Any) -> Any:
        try:
            answer = self._http.request(method, path, **more)
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ServiceUnavailable(f"job {self.job.name} at {self.job.url} does not answer: {error}") from error
        if answer.is_success:
            return told
        reason = f"job {self.job.name}: {told.get('detail', answer.reason_phrase)}"
        raise BadInput(reason) if answer.is_client_error else KeyshiftError(reason)


def _status(raw: Any) -> Status:
    """A status that came as JSON. Raises KeyshiftError if its manifest is of a later version than this one."""
    manifest = validate(told) if (told := raw.get("manifest")) else None
    return cast(Status, raw | {"manifest": manifest, "summary": manifest.summary if manifest else None})


def await_migration(client: Client, migration: Migration, say: Say) -> Migration:
    """Wait until the migration that ``do`` has answered with is over, and return it; also while the job stops, which
    waits for that. Raises MigrationFailed if not all of the state came where it should.
    """
    which = migration["stage"], migration["number"]

    def now(told: Status) -> Migration:
        return next(each for each in told["migrations"] if (each["stage"], each["number"]) == which)

    told = await_status(client, lambda told: now(told)["outcome"] != UNDER_WAY or told["state"] not in GOES_ON, say)
    ended, became = now(told), ""
    if ended["outcome"] == "complete":
        return ended
    if told["state"] not in GOES_ON:
        became = f"; the job has {told['state']}" + (f": {told['why']}" if told["why"] else "")
    which_one = f"the migration of {ended['stage']} to {ended['slots']} slots"
    raise MigrationFailed(f"{which_one} is {outcome_said(ended)}{became}")


def await_status(client: Client, over: Callable[[Status], bool], say: Say) -> Status:
    """Wait until the status is ``over``, and return it; each activity until then is said once."""
    activity = None
    while True:
        told = client.status()
        if told.get("activity") != activity:
            activity = told.get("activity")
            say(f"  {activity}")
        if over(told):
            return told
        time.sleep(LOOK_S)


def stop_job(client: Client, say: Say, within_s: float | None = None) -> Status:
    """Stop the job and return its status with the verdict. The job goes on to stop if this is interrupted.

    Raises TimeoutError if there is no verdict after about ``within_s`` seconds; without it, this may take for ever.
    """
    answer: Future[Status] = Future()
    deadline = math.inf if within_s is None else time.monotonic() + within_s

    def over(told: Status) -> bool:
        return answer.done() or told["state"] not in GOES_ON or time.monotonic() >= deadline

    def stop() -> None:
        try:
            answer.set_result(client.stop())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=stop, name="keyshift-stop", daemon=True).start()  # nobody waits for it on Ctrl-C
    with contextlib.suppress(ServiceUnavailable):  # it has ended between two looks
        await_status(client, over, say)
    return answer.result(None if within_s is None else max(0.0, deadline - time.monotonic()))


def await_verdict(jobs: Jobs, job: JobFile, say: Say) -> Status:
    """Stop the job and return its status with the verdict, as ``stop_job``. Raises KeyshiftError, which says how to go
    on, if it ends without one; then its process is gone, too.
    """
    try:
        return stop_job(Client(job), say)
    except BadInput:
        raise
    except KeyshiftError as error:  # the job, not its verdict, has come to its end
        await_end(job)
        raise KeyshiftError(f"{error}; {jobs.ended(jobs.read(job.name) or job).go_on}") from error


def await_end(job: JobFile) -> None:
    """Wait until the process of the job is gone. Raises ServiceUnavailable if that takes too long."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if processes.await_end([psutil.Process(job.pid)], END_S):
            raise ServiceUnavailable(f"process {job.pid} of job {job.name} did not end; its log is {job.log}")
