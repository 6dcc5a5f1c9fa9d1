"""Jobs in the background, from outside: started, asked, and stopped over HTTP."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import psutil

from keyshift.control.files import NOTHING, JobFile, Jobs, last_line, process_created
from keyshift.control.server import listen, url_of
from keyshift.experiment.commands import UNDER_WAY, Command
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.own import Parcels, define_own, own_parcels
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, ServiceUnavailable
from keyshift.place.profile import load_profile
from keyshift.progress import Say
from keyshift.services.jars import require_java

LOOK_S = 0.3
ANSWER_S = 120.0  # a job that recovers or restarts answers when it has
END_S = 120.0  # for its process to stop what it has started
RELEASE = b"release\n"
TOKEN = "KEYSHIFT_CONTROL_TOKEN"  # of all jobs, for who reads it from a Secret; without it each job draws its own


class Client:
    """Asks one job. Raises BadInput for what the job refuses, ServiceUnavailable if it does not answer."""

    def __init__(self, job: JobFile) -> None:
        self._job = job
        self._http = httpx.Client(
            base_url=job.url,
            headers={"Authorization": f"Bearer {job.token}"},
            timeout=ANSWER_S,
            trust_env=False,  # a proxy has no business between us and this machine
        )

    def status(self) -> dict[str, Any]:
        """See ``LiveJob.status``."""
        return self._asked("GET", "/status")

    def stop(self) -> dict[str, Any]:
        """Its status with the verdict, however long that takes."""
        return self._asked("POST", "/stop", timeout=None)

    def do(self, command: Command) -> dict[str, Any]:
        """See ``LiveJob.do``."""
        return self._asked("POST", f"/{command.verb}", json=command.model_dump(mode="json", exclude_defaults=True))

    def _asked(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **more)
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ServiceUnavailable(f"job {self._job.name} at {self._job.url} does not answer: {error}") from error
        if answer.is_success:
            return told  # type: ignore[no-any-return]
        reason = f"job {self._job.name}: {told.get('detail', answer.reason_phrase)}"
        raise BadInput(reason) if answer.is_client_error else KeyshiftError(reason)


def start(
    values: Mapping[str, Any], say: Say, name: str = "", port: int = 0, profile: str | None = None
) -> tuple[JobFile, dict[str, Any]]:
    """Start a job in a process that outlives this one; returns when it is ready, with its status.

    Raises BadInput before anything is started if the job is not possible, and what it says if it dies meanwhile. It
    ends, too, if this is interrupted.
    """
    return _begun(Jobs(), values, say, name, port, profile, own=None)


def resume(run: str, say: Say, port: int = 0, take_over: bool = False) -> tuple[JobFile, dict[str, Any]]:
    """Go on, in another process, with a job whose process is gone, from its newest snapshot; as ``start``.

    ``run``: the job's name, or the beginning of the run's id. ``take_over``: from a process that lives, too, here or on
    another machine; when it notices it ends, and leaves everything as it is. Raises BadInput if there is no such job,
    or if it runs.
    """
    jobs = Jobs()
    job, journal = jobs.resumable(run, take_over)  # and once more when nobody else can resume it
    given = journal["values"], say, job.name, port, journal["profile"], journal.get("own", {})
    return _begun(jobs, *given, take_over)


def _begun(
    jobs: Jobs,
    values: Mapping[str, Any],
    say: Say,
    name: str,
    port: int,
    profile: str | None,
    own: Parcels | None,
    take_over: bool = False,
) -> tuple[JobFile, dict[str, Any]]:
    """``own``: what a job that goes on was given of a notebook's cells; None: the job is new."""
    resume = own is not None
    define_own(own or {})
    spec, place = live_spec(values), load_profile(profile)
    own = own if resume else own_parcels(spec)
    place.require_cores(spec.cores)
    require_java()
    with listen(port or place.control.port, place.control.listen) as listener, jobs.naming():
        name = jobs.resumable(name, take_over)[0].name if resume else jobs.free_name(name, spec.workload.name)
        log = jobs.home / "logs" / f"job-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        process = _launched(listener, log)
        job = JobFile(
            name=name,
            url=url_of(listener),
            token=os.environ.get(TOKEN) or secrets.token_urlsafe(32),
            pid=process.pid,
            created=process_created(process.pid),
            workload=spec.workload.name,
            strategy=spec.strategy.name,
            log=str(log),
        )
        config: dict[str, Any] = {"name": name, "values": dict(values), "profile": profile, "own": own}
        config |= {"token": job.token, "resume": resume, "take_over": take_over}
        with _ended_otherwise(jobs, job, process, say):
            jobs.write(job)
            _tell(process, json.dumps(config | {"socket": listener.fileno()}).encode() + b"\n")
    with _ended_otherwise(jobs, job, process, say):
        told = _await_ready(job, process, log, say)
        _tell(process, RELEASE)
    return job, told


@contextlib.contextmanager
def _ended_otherwise(jobs: Jobs, job: JobFile, process: subprocess.Popen[bytes], say: Say) -> Iterator[None]:
    """If what is inside fails, the process ends. A job of which nothing is left then is forgotten, unless it was
    forgotten already: then its name may be another one's.
    """
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        file = jobs.read(job.name) or job
        ours, ended = (file.pid, file.created) == (job.pid, job.created), jobs.ended(file)
        if ours and ended.remains == NOTHING:
            jobs.remove(job.name)
        elif ours:
            say(f"job {job.name}: {ended.go_on}")
        raise


def _launched(listener: socket.socket, log: Path) -> subprocess.Popen[bytes]:
    if log.exists():  # the process before may live, and has more to say in its own
        log.replace(log.with_name(f"{log.name}.1"))
    with open(log, "wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "keyshift.control.process"],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died, and says why elsewhere
        process.stdin.write(line)
        process.stdin.flush()


def _await_ready(job: JobFile, process: subprocess.Popen[bytes], log: Path, say: Say) -> dict[str, Any]:
    client, shown = Client(job), _Shown(log, say)
    while True:
        shown.more()
        if (status := process.poll()) is not None:
            kind = BadInput if status == 2 else KeyshiftError
            raise kind(f"job {job.name} did not start: {last_line(log)} (its log is {log})")
        with contextlib.suppress(ServiceUnavailable):  # it does not listen yet
            if (told := client.status())["state"] == "running":
                return told
        time.sleep(LOOK_S)


class _Shown:
    """The lines of a log as they come."""

    def __init__(self, log: Path, say: Say) -> None:
        self._log, self._say, self._read = log, say, 0

    def more(self) -> None:
        with open(self._log, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            if not line.startswith("keyshift: "):  # that is said at the end
                self._say(line)


def moved(client: Client, migration: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """The migration that ``do`` has answered with, as it is when it is over. Raises MigrationFailed if not all of the
    state came where it should.
    """
    which = migration["stage"], migration["number"]

    def now(told: dict[str, Any]) -> dict[str, Any]:
        return next(each for each in told["migrations"] if (each["stage"], each["number"]) == which)

    ended = now(followed(client, lambda told: now(told)["outcome"] != UNDER_WAY or told["state"] != "running", say))
    if ended["outcome"] != "complete":
        raise MigrationFailed(f"the migration of {ended['stage']} to {ended['slots']} slots is {ended['outcome']}")
    return ended


def followed(client: Client, over: Callable[[dict[str, Any]], bool], say: Say) -> dict[str, Any]:
    """The status when it is ``over``; each phase until then is said once."""
    phase = None
    while True:
        told = client.status()
        if told.get("phase") != phase:
            phase = told.get("phase")
            say(f"  {phase}")
        if over(told):
            return told
        time.sleep(LOOK_S)


def stopped(client: Client, say: Say) -> dict[str, Any]:
    """Stop the job; its status with the verdict. The job goes on to stop if this is interrupted."""
    answer: Future[dict[str, Any]] = Future()

    def stop() -> None:
        try:
            answer.set_result(client.stop())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=stop, name="keyshift-stop", daemon=True).start()  # nobody waits for it on Ctrl-C
    with contextlib.suppress(ServiceUnavailable):  # it has ended between two looks
        followed(client, lambda told: answer.done() or told["state"] not in ("running", "stopping"), say)
    return answer.result()


def await_end(job: JobFile) -> None:
    """Until its process is gone. Raises ServiceUnavailable if that takes too long."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            psutil.Process(job.pid).wait(END_S)
        except psutil.TimeoutExpired:
            raise ServiceUnavailable(f"process {job.pid} of job {job.name} did not end; its log is {job.log}") from None
