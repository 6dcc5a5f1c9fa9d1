"""The process of a job in the background: ``python -m keyshift.control.process``, started by ``control.background``.

Reads one line of JSON from standard input: ``name``, ``values`` of the spec, ``profile``, ``token``, ``socket``, an
inherited file descriptor that listens, ``resume``, whether to go on with the job of this name, ``take_over``, even if
its process seems to live, and ``own``, what the notebook that starts it has defined (``lab.own``). The end of standard
input before the line ``release`` means that whoever has started it is gone before the job was ready: then it ends.
Progress and the last word go to standard error.
"""

import json
import os
import shutil
import signal
import socket
import threading
from functools import partial
from typing import IO, Any

from keyshift.control.api import make_app
from keyshift.control.files import Jobs
from keyshift.control.server import Server
from keyshift.errors import Deposed
from keyshift.lab.connect import open_job_lab
from keyshift.lab.live_job import LiveJob
from keyshift.lab.live_spec import anywhere, live_spec
from keyshift.lab.own import define_own
from keyshift.lab.run import Lab
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.manifest import Manifest

RELEASE = b"release"


def run() -> None:
    """The process, until the job has ended. Raises KeyshiftError if it dies."""
    # Unbuffered: the interpreter could not take the lock of a buffered reader away from the thread when it exits.
    starter = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - as long as the process
    told = json.loads(starter.readline())
    threading.Thread(target=_obey, args=(starter,), name="keyshift-starter", daemon=True).start()
    define_own(told["own"])
    spec, jobs, labs = live_spec(told["values"]), Jobs(), list[Lab]()

    def record(*arguments: Any) -> Manifest:
        return labs[0].record(*arguments)

    def keep(journal: dict[str, Any]) -> None:
        values = anywhere(told["values"], spec)
        given = {"values": values, "profile": told["profile"], "own": told["own"], "work": str(labs[0].work)}
        jobs.keep_journal(name, journal | given)

    name = told["name"]
    resumed = partial(jobs.require_journal, name) if told["resume"] else None
    if resumed and not told["take_over"]:  # or it would be taken from a process that works with it
        shutil.rmtree(resumed()["work"], ignore_errors=True)
    job = LiveJob(record, spec, keep=keep, resumed=resumed, take_over=told["take_over"])
    server = Server(make_app(job, told["token"]), socket.socket(fileno=told["socket"]))
    try:
        with open_job_lab(spec, told["profile"], tell) as lab:
            if resumed:
                lab.require_snapshots(spec, job.run_id, [one["name"] for one in resumed()["snapshots"]])
            labs.append(lab)
            job.most = lab.room(spec)
            job.execute()
    except Deposed as error:  # all that there is of the job in files is of the other process
        job.fail(error)
        raise
    except BaseException as error:
        job.fail(error)
        if (file := jobs.read(name)) is not None:
            if labs:  # it had begun, so all that it could go on from is gone
                jobs.drop_journal(name)
            jobs.write(file.model_copy(update={"why": _last_word(job, error)}))
        raise
    else:
        jobs.remove(name)
    finally:
        server.stop()


def _last_word(job: LiveJob, error: BaseException) -> str:
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{job.why}"


def _obey(starter: IO[bytes]) -> None:
    """Until it lets go."""
    if starter.readline().strip() != RELEASE:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """The entry point."""
    run_program(run)


if __name__ == "__main__":
    main()
