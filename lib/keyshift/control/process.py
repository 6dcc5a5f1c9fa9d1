"""The process of a job in the background: ``python -m keyshift.control.process``, started by ``control.background``.

Reads one line of JSON from standard input, a ``StartOrder``. The end of standard input before the line ``RELEASE``
means that whoever has started the process is gone before the job was ready: then the process ends. Progress and the
last word go to standard error.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
from typing import IO, Any

from keyshift.control.api import make_app
from keyshift.control.background import RELEASE, StartOrder
from keyshift.control.files import Jobs, Kept
from keyshift.control.server import Server
from keyshift.experiment.definitions import define
from keyshift.experiment.live_spec import anywhere, chosen_values, live_spec
from keyshift.experiment.spec import RunSpec
from keyshift.lab.ending import Ending
from keyshift.lab.environment import open_job_lab
from keyshift.lab.live.job import LiveJob
from keyshift.lab.live.journal import Journal, Keeper
from keyshift.lab.run import Lab
from keyshift.model.errors import BadInput, Deposed, JobOver, ServiceUnavailable, service_errors
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore


def run() -> None:
    """Run the process until the job has ended. Raises KeyshiftError if it dies."""
    # Unbuffered: the interpreter could not take the lock of a buffered reader away from the thread when it exits.
    starter = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - as long as the process
    order, alone = StartOrder.model_validate(json.loads(starter.readline())), threading.Event()
    threading.Thread(target=_obey, args=(starter, alone), name="keyshift-starter", daemon=True).start()
    define(order.parcels)
    entry, labs = _Entry(order, live_spec(order.values), alone), list[Lab]()

    def record(*arguments: Any) -> Manifest:
        return labs[0].record(*arguments)

    resumed, job = entry.resumed, LiveJob(record, entry.spec, keeper=entry)
    server = Server(make_app(job, order.token), socket.socket(fileno=order.socket))
    try:
        with open_job_lab(job.spec, order.profile, tell, warned=True) as lab:
            if resumed:
                entry.require_not_stored(lab.store, job.run_id)
                lab.require_snapshots(job.spec, *resumed().snapshots)
            labs.append(lab)
            [job.spec] = lab.settled([job.spec])
            entry.chosen(job.spec)
            entry.work, job.restart_slots = str(lab.work), lab.restart_slots(job.spec)
            job.execute()
    except BaseException as error:
        job.fail(error)
        raise
    finally:
        entry.ended(job)
        server.stop()


class _Entry(Keeper):
    """Keeps what is written down of the job, from before anything is made until it has ended. ``alone``: whoever has
    started it was gone before it was told that the job is ready, so that nobody was promised anything.
    """

    outlives = True

    def __init__(self, order: StartOrder, spec: RunSpec, alone: threading.Event) -> None:
        super().__init__()
        self._jobs, self._name, self.spec, self._alone = Jobs(), order.name, spec, alone
        self._entry, self._pid, self._file = order.entry, order.pid, self._jobs.journal(order.name, order.entry)
        self._given = Kept(
            run_id="",
            values=anywhere(order.values, spec),
            profile=order.profile,
            parcels=order.parcels,
            sources=spec.routers_of,
            replicas=spec.job.replicas,
        )
        self.resumed, self.take_over = self._file.content if order.resume else None, order.take_over
        # Temporary files of a process that is gone.
        self._before = self._file.require().work if order.resume and not order.take_over else ""
        self.work = ""  # the folder of temporary files
        self._kept = False
        self._number = 0  # of the journal that this process has written last

    def chosen(self, spec: RunSpec) -> None:
        """Note the load that was chosen for the job: whoever goes on with it has the same."""
        self._given.values = chosen_values(self._given.values, spec)

    def expect(self, run_id: str, token: str) -> None:
        """Write a new job down before anything is made. Raises ServiceUnavailable if that fails."""
        with service_errors(OSError, lambda error: f"cannot write into {self._jobs.home}: {error}"):
            self._file.expect(self._known(run_id, token))

    def claimed(self) -> None:
        """Write down in the job's file that this process drives it: also if it fails, the one before is deposed."""
        with contextlib.suppress(OSError, ServiceUnavailable):  # then behind the next journal
            self._jobs.hold(self._name, self._entry, self._pid)

    def keep(self, journal: Journal) -> None:
        """Write the journal. Whoever writes it drives the job, and the job's file says so from then on. The first one
        of a job that goes on deletes what was temporary.

        Raises BadInput if the name is another job's, or nobody's before anybody heard that the job is ready.
        """
        self._require_known(self._kept)
        self._file.keep(self._known(journal.run_id, journal.token), journal)
        self._number = self._file.number()
        self.claimed()  # another one that was to go on may have failed before it had claimed it
        if self._before and not self._kept:
            shutil.rmtree(self._before, ignore_errors=True)
        self._kept = True

    def is_kept(self) -> bool:
        """See ``Keeper``."""
        with contextlib.suppress(OSError):
            return self._file.number() == self._number
        return False

    def begun(self) -> None:
        """Raise BadInput as ``keep`` does, if nobody would find the job."""
        self._require_known(self._kept)

    def _require_known(self, promised: bool) -> None:
        job = self._jobs.read(self._name)
        if job.entry != self._entry if job else not promised:
            raise BadInput(f"job {self._name} was forgotten: nobody would find it again")

    def require_not_stored(self, store: ResultStore, run: str) -> None:
        """Refuse to go on with a job that has its verdict, and close its journal: BadInput. Its process died before it
        could say so.
        """
        if store.holds(run):
            self._file.close()
            raise BadInput(f"its verdict was stored before it died: `keyshift results show {run}`")

    def _known(self, run_id: str, token: str) -> Kept:
        return self._given.model_copy(update={"run_id": run_id, "token": token, "work": self.work})

    def resumable(self) -> bool:
        """Whether a journal is there and somebody knows that the job is ready."""
        return self.resumed is not None or (self._kept and not self._alone.is_set())

    def decided(self, ending: Ending) -> None:
        """Close the journal if the job is over."""
        if ending.over:
            self._file.close()

    def ended(self, job: LiveJob) -> None:
        """Say how it ended, for ``keyshift job list``. Only a job that was stopped, with nothing left, has no entry."""
        file = self._jobs.read(self._name)
        another = file is not None and file.entry != self._entry  # it was forgotten, maybe from another machine
        forgotten = file is None and isinstance(job.error, Deposed)
        if self.deleted or another or forgotten:  # nobody needs what was written since it was stopped
            self._file.drop()
        elif isinstance(job.error, JobOver):  # the process before died as it was about to close this
            self._file.close()
        if another:
            return
        if self.ending is Ending.STOPPED and self.deleted:
            if file:
                self._jobs.remove(file)
        elif file and file.pid == self._pid and not self._jobs.awaited_elsewhere(self._name):
            # Else another process goes on, or is about to, and says how it ends itself.
            file = file.model_copy(update={"why": file.why or self._last_word(job)})  # it may have been forgotten
            with contextlib.suppress(OSError):  # then it is found out from its log
                self._jobs.write(file)
            if not (file.before and self._jobs.alive(file.before)):  # that one goes on
                tell(f"job {self._name}: {self._jobs.ended(file)}")

    def _last_word(self, job: LiveJob) -> str:
        stopped = f"it was stopped, and its verdict is stored as run {job.run_id}"
        how = stopped if self.ending is Ending.STOPPED else f"{job.why}"
        return "; ".join([how, *(f"not deleted: {line}" for line in self.undeleted)])


def _obey(starter: IO[bytes], alone: threading.Event) -> None:
    """Wait until whoever has started the process lets go; if it is gone without that, end the process."""
    if starter.readline().strip() != RELEASE.strip():
        alone.set()
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """The entry point."""
    run_program(run)


if __name__ == "__main__":
    main()
