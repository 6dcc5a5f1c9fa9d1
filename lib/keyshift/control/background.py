"""Starts jobs in the background, and resumes them, each in a process of its own (``control.process``)."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from keyshift.control.client import LOOK_S, Client
from keyshift.control.files import NOTHING, JobFile, Jobs, last_line
from keyshift.control.server import listen, url_of
from keyshift.experiment.definitions import Parcels, define, parcels_of
from keyshift.experiment.live_spec import live_spec
from keyshift.lab.environment import require_possible_here
from keyshift.lab.live.status import JobState, Status
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.profile import ControlProfile, located
from keyshift.progress import Say
from keyshift.services.processes import detached, identity, keep_apart

RELEASE = b"release\n"  # what the process is told when whoever has started it knows that the job is ready
TOKEN = "KEYSHIFT_CONTROL_TOKEN"  # of all jobs, for who reads it from a Secret; without it each job draws its own


class StartOrder(BaseModel):
    """What the process of a job is told first, as a line of JSON on its standard input."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    values: dict[str, Any]  # of the spec
    profile: str | None
    entry: str = ""  # see ``files.JobFile``
    parcels: Parcels = {}  # what the notebook that starts the job has defined, see ``experiment.definitions``
    resume: bool = False  # go on with the job of this name
    take_over: bool = False  # ... even if its process seems to live
    token: str = Field(default="", repr=False)
    pid: int = 0  # of the process itself, as it is known to others
    socket: int = -1  # an inherited file descriptor that listens


def control_token() -> str:
    """What the environment says of ``TOKEN``, without blanks around it; empty if it says nothing. Raises BadInput if no
    request could have it.
    """
    token = os.environ.get(TOKEN, "").strip()
    for number, each in enumerate(token, 1):  # which is not told: it is secret
        if not (each.isascii() and each.isprintable()):
            raise BadInput(f"{TOKEN}: character {number} is none of printable ASCII, which alone a request can have")
    return token


def start(
    values: Mapping[str, Any], say: Say, name: str = "", port: int = 0, profile: str | None = None
) -> tuple[JobFile, Status]:
    """Start a job in a process that outlives this one; returns when it is ready, with its status.

    Raises BadInput before anything is started if the job is not possible, and what it says if it dies meanwhile. It
    ends, too, if this is interrupted. Whoever resumes it has its profile, wherever that is done.
    """
    return _begun(Jobs(), StartOrder(name=name, values=dict(values), profile=located(profile)), say, port)


def resume(run: str, say: Say, port: int = 0, take_over: bool = False) -> tuple[JobFile, Status]:
    """Go on, in another process, with a job whose process is gone, from its newest snapshot; see ``start``.

    ``run``: the job's name, or the beginning of the run's id. ``take_over``: from a process that lives, too, here or on
    another machine; when it notices it ends, and leaves everything as it is. Raises BadInput if there is no such job,
    or if it runs.
    """
    jobs = Jobs()
    job, journal = jobs.resumable(run, take_over)  # and once more when nobody else can resume it
    order = StartOrder(
        name=job.name,
        values=journal.values,
        profile=journal.profile,
        parcels=journal.parcels,
        resume=True,
        take_over=take_over,
    )
    return _begun(jobs, order, say, port)


def _listen(control: ControlProfile, port: int, say: Say) -> socket.socket:
    """Listen at ``port``, if somebody has named one; else at that of the profile, or another if somebody has that."""
    try:
        return listen(port or control.port, control.listen)
    except BadInput:
        if port:
            raise
        found = listen(0, control.listen)
        say(f"port {control.port} is taken, using {found.getsockname()[1]}")
        return found


def _begun(jobs: Jobs, order: StartOrder, say: Say, port: int) -> tuple[JobFile, Status]:
    token = control_token() or secrets.token_urlsafe(32)
    define(order.parcels)
    spec = live_spec(order.values)
    place = require_possible_here([spec], order.profile)
    parcels = order.parcels if order.resume else parcels_of(spec, say)
    with _listen(place.control, port, say) as listener, jobs.naming():
        before: JobFile | None = None
        if order.resume:
            before, _ = jobs.resumable(order.name, order.take_over)
            name, entry = before.name, before.entry
            before = jobs.awaited_elsewhere(name) or before  # of two that go on, one has the job: both can be found
        else:
            name = jobs.free_name(order.name, spec.workload.name)
            entry = jobs.new_entry(name)
        # The process before may live: how it ends some day is looked up in its log.
        kind = f".{secrets.token_hex(2)}" if order.take_over else ""
        log = jobs.home / "logs" / f"job-{name}{kind}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        process = _launched(listener, log)
        job = JobFile(
            name=name,
            url=url_of(listener),
            token=token,
            **identity(process.pid),
            workload=spec.workload.name,
            strategy=spec.strategy.name,
            log=str(log),
            entry=entry,
            before=before,
        )
        its = {"pid": process.pid, "socket": listener.fileno()}
        drawn = {"name": name, "entry": entry, "parcels": parcels, "token": job.token}
        whole = StartOrder(**{**dict(order), **drawn, **its})  # which refuses a name that it does not have
        with _ended_otherwise(jobs, job, process, say, contextlib.nullcontext()):
            jobs.write(job)
            _tell(process, json.dumps(whole.model_dump()).encode() + b"\n")
    with _ended_otherwise(jobs, job, process, say, jobs.naming()):
        told = _await_ready(job, process, log, say)
        _tell(process, RELEASE)
    return job, told


@contextlib.contextmanager
def _ended_otherwise(
    jobs: Jobs, job: JobFile, process: subprocess.Popen[bytes], say: Say, naming: AbstractContextManager[None]
) -> Iterator[None]:
    """End the process if what is inside fails. A job of which nothing is left then is forgotten, unless it was
    forgotten already: then its name may be another one's; or another process goes on with it. ``naming``: nobody takes
    the name meanwhile.
    """
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        with naming:
            file = jobs.read(job.name) or job
            ended = jobs.ended(file)
            if ended.remains == NOTHING:
                jobs.remove(job)
        if file.entry == job.entry and ended.remains != NOTHING:
            goes_on = f"process {file.pid} goes on with it, as before"
            say(f"job {job.name}: {goes_on if jobs.alive(file) else ended.go_on}")
        raise


def _launched(listener: socket.socket, log: Path) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    program = [sys.executable, "-m", "keyshift.control.process"]
    process = detached(program, log, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=env)
    keep_apart(process.pid)  # of the runs of a notebook's kernel
    return process


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died, and says why elsewhere
        process.stdin.write(line)
        process.stdin.flush()


def _await_ready(job: JobFile, process: subprocess.Popen[bytes], log: Path, say: Say) -> Status:
    client, shown = Client(job), 0
    while True:
        shown = _show(log, shown, say)
        if (status := process.poll()) is not None:
            kind = BadInput if status == 2 else KeyshiftError
            raise kind(f"job {job.name} did not start: {last_line(log)} (its log is {log})")
        with contextlib.suppress(ServiceUnavailable):  # it does not listen yet
            if (told := client.status())["state"] not in (JobState.STARTING, JobState.FAILED):
                return told  # somebody may have stopped it since it began
        time.sleep(LOOK_S)


def _show(log: Path, shown: int, say: Say) -> int:
    """Show the whole lines of a log behind the bytes that were ``shown``; gives how many there are then."""
    with open(log, "rb") as file:
        file.seek(shown)
        whole, newline, _ = file.read().rpartition(b"\n")
    for line in whole.decode(errors="replace").splitlines():
        if not line.startswith("keyshift: "):  # that is said at the end
            say(line)
    return shown + len(whole) + len(newline)
