"""The jobs in the background of a state folder, as private files: three for each job.

- ``NAME.json``: where the job is and how to reach it (``JobFile``);
- ``NAME.ENTRY.journal``: what the job could go on from, as long as it could;
- ``NAME.ENTRY.leftovers``, once nothing can go on with the job: what it may have left in the services, and the secret
  that is needed to delete that.

ENTRY is drawn when a job is started. So whatever the process of a job that was forgotten still writes, as it stood
still or is on another machine, is not taken for that of the job that has its name now.
"""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keyshift.experiment.definitions import Parcels
from keyshift.folders import REMEDY, locked, remove_whole, require_disk_space, state_folder, write_whole
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.place.profile import load_profile
from keyshift.progress import silent
from keyshift.registry import unknown
from keyshift.services import processes

if TYPE_CHECKING:
    from keyshift.lab.live.journal import Journal

NAME = r"[a-z0-9][a-z0-9_-]{0,40}"
LOCK_S = 30.0
FORMAT = 9  # of journals; another one is not read
REDIS = ("redis", "backend.redis")  # values of a spec: the address of somebody's server for state


class JobFile(BaseModel):
    """What is known of a job. ``pid``, ``created``, ``born`` and ``host`` name its process (``processes.identity``);
    ``entry``: no other job has it; ``why``: how it ended, if it says so. ``before``: what was known before that
    process, which is to go on with the job and has not got hold of it yet.
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    url: str
    token: str
    pid: int
    created: float
    born: str
    host: str
    workload: str
    strategy: str
    log: str
    entry: str
    why: str = ""
    before: "JobFile | None" = None

    def same(self, other: "JobFile") -> bool:
        """Whether the other file is of the same job and the same process."""
        return (self.entry, self.pid, self.created, self.born) == (other.entry, other.pid, other.created, other.born)


class Kept(BaseModel):
    """What is on disk of a job beside its ``JobFile``: how it was asked for and what it was named. A journal has the
    fields of a ``lab.live.journal.Journal`` beside these, which only whoever goes on with the job reads.
    """

    model_config = ConfigDict(extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    format: int = FORMAT
    run_id: str
    token: str = Field(default="", repr=False)
    values: dict[str, Any] = {}  # of the spec
    profile: str | None = None
    parcels: Annotated[Parcels, Field(alias="own")] = {}  # what a notebook has defined; ``own`` in files
    sources: dict[str, int]  # with their routers
    replicas: int = 1
    work: str = ""  # the folder of temporary files


class HowEnded(NamedTuple):
    """How a job ended, what remains of it, and how to go on."""

    why: str
    remains: str  # one of REMAINS
    go_on: str

    def __str__(self) -> str:
        return f"{self.why}; {self.go_on}"


ALL, LEFTOVERS, NOTHING, UNKNOWN = REMAINS = "all that it goes on from", "leftovers", "nothing", "nobody here knows"


class Jobs:
    """The jobs in the background of one state folder."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = state_folder(home)
        self._folder = self.home / "jobs"

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Hold the lock under which jobs get their names: inside, no other process names one."""
        require_disk_space(self.home, 0, REMEDY)  # makes it, for its user alone
        with locked(self._folder / ".lock", "keyshift job start", silent, LOCK_S):
            yield

    def free_name(self, wanted: str, workload: str) -> str:
        """Return ``wanted``, or a name made of the workload's.

        Raises BadInput if ``wanted`` is no name, or belongs to a job that runs or of which something is left, or to one
        whose file nobody here can read: something may be left of that.
        """
        if not wanted:
            numbers = (f"{workload}-{number}" for number in range(1, 1_000_000))
            return next(name for name in numbers if not self._path(name).exists())
        if not re.fullmatch(NAME, wanted):
            raise BadInput(f"name = {wanted!r}: must be lower-case letters, digits, '_' and '-', at most 41")
        known, path = self.read(wanted), self._path(wanted)
        if known is None and path.exists():
            raise BadInput(
                f"name = {wanted}: {path} cannot be read (it is damaged, of another user or another keyshift), and a "
                "job of this name may go on; choose another name, or delete that file if nobody wants the job any more"
            )
        if known and self.alive(known):
            raise BadInput(f"name = {wanted}: a job of this name runs, process {known.pid}; choose another")
        if known and (ended := self.ended(known)).remains != NOTHING:
            raise BadInput(f"name = {wanted}: there is a job of this name, {ended}; choose another name")
        return wanted

    def write(self, job: JobFile) -> None:
        """Write the file of a job, readable for its owner alone."""
        write_whole(self._path(job.name), job.model_dump_json())

    def read(self, name: str) -> JobFile | None:
        """Return the job of this name; None if there is none, or its file is damaged.

        If a process has ended that was to go on with the job and never got hold of it, the job is what it was before:
        its process may live.
        """
        job = _written(self._path(name))
        while job and (before := job.before) and not self.alive(job):
            job = before if self.alive(before) else before.model_copy(update={"why": job.why or before.why})
        return job

    def hold(self, name: str, entry: str, pid: int) -> None:
        """Write down that the process ``pid`` drives a job: what was known before is of no use any more, nor what is
        known of a process that has ended and never got hold of it. Raises ServiceUnavailable if that cannot be written
        down now.
        """
        if not ((written := _written(self._path(name))) and written.before):
            return
        with self.naming():
            file = self.read(name)
            if file and (file.entry, file.pid) == (entry, pid) and not self.awaited_elsewhere(name):
                self.write(file.model_copy(update={"before": None, "why": ""}))

    def remove(self, job: JobFile) -> None:
        """Forget a job of which nothing is left, unless its name is another one's by now, or another process goes on
        with it. Call it inside ``naming``, or in its own process, whose name nobody takes; safe to call twice.
        """
        if (file := self.read(job.name)) and file.same(job):
            self.journal(job.name, job.entry).drop()
            remove_whole(self._path(job.name))

    def journal(self, name: str, entry: str | None = None) -> "JournalFile":
        """Return the files that say what can be continued, or is to be deleted, of the job of this name.

        ``entry``: of an earlier job of this name, or one that has no ``JobFile`` yet.
        """
        if entry is None:
            entry = job.entry if (job := self.read(name)) else ""
        return JournalFile(self._folder, name, entry)

    def new_entry(self, name: str) -> str:
        """Draw the entry of a job that has just got its name: what is there of earlier ones is of no use any more."""
        for path in self._folder.glob(f"{name}.*.*"):
            path.unlink(missing_ok=True)
        return secrets.token_hex(4)

    def resumable(self, run: str, take_over: bool = False) -> tuple[JobFile, Kept]:
        """Find the job of this name, or whose run's id begins so, and its journal. Raises BadInput if it cannot go on.

        ``take_over``: even if its process lives.
        """
        if (named := self.read(run)) and not self.journal(named.name, named.entry).read():
            self.require_gone(named)
            raise BadInput(f"job {run}: nothing can go on with it; {self.ended(named)}")
        kept = {job.name: (job, journal) for job in self.all() if (journal := self.journal(job.name, job.entry).read())}
        found = [kept[run]] if run in kept else [each for each in kept.values() if each[1].run_id.startswith(run)]
        if not run or len(found) != 1:
            known = [journal.run_id for _, journal in kept.values()]
            raise unknown("job to resume", run, known or ["none has a snapshot and no process"])
        [(job, journal)] = found
        if journal.format != FORMAT:
            raise BadInput(
                f"job {job.name}: its journal has format = {journal.format}, and this keyshift reads {FORMAT}; "
                "resume it with the one that began it"
            )
        if take_over and journal.replicas > 1:
            raise BadInput(
                f"job {job.name}: --take-over is not possible with replicas = {journal.replicas}, as what those of the "
                f"other process go on to give would be taken for ours; end that one, then `keyshift resume {job.name}`"
            )
        if not take_over:
            remedy = "; --take-over takes it from a process that lives and does nothing"
            self.require_gone(job, remedy if journal.replicas == 1 else "")
        return job, journal

    def require_gone(self, job: JobFile, remedy: str = "") -> None:
        """Raise BadInput if the job runs: it can be stopped. ``remedy``: or what else."""
        if self.alive(job):
            what = f"this is for a job whose process is gone; `keyshift job stop {job.name}` ends it"
            raise BadInput(f"job {job.name} runs, process {job.pid}: {what}{remedy}")

    def all(self) -> list[JobFile]:
        """All jobs in the order of their names, also those that have ended without being stopped."""
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        return [job for name in names if (job := self.read(name))]

    def running(self) -> list[JobFile]:
        """The jobs whose processes live."""
        return [job for job in self.all() if self.alive(job)]

    def left_elsewhere(self) -> list[str]:
        """The names of jobs that have ended and have left something in services that are not this folder's."""
        return [job.name for job in self.all() if self.journal(job.name, job.entry).elsewhere()]

    def alive(self, job: JobFile) -> bool:
        """Whether the process of the job lives."""
        return processes.living(job.pid, job.created, job.born) is not None

    def on_other_host(self, job: JobFile) -> bool:
        """Whether its process is of another host, see ``processes.on_other_host``, and has not said how it ended."""
        return not job.why and processes.on_other_host(job.host, self.alive(job))

    def awaited_elsewhere(self, name: str) -> JobFile | None:
        """The file of a process of another host that is to go on with the job: ``read`` gives what was known before."""
        job = _written(self._path(name))
        while job and job.before and not (self.alive(job) or self.on_other_host(job)):
            job = job.before
        return job if job and self.on_other_host(job) else None

    def ended(self, job: JobFile) -> HowEnded:
        """Say how a job ended whose process is gone. One that is ``on_other_host`` may run."""
        remains, go_on = self.journal(job.name, job.entry).remains()
        if not self.on_other_host(job):
            why = job.why or f"its process {job.pid} was killed; the end of its log: {last_line(Path(job.log))}"
            return HowEnded(why, remains, go_on)
        if remains == NOTHING:  # it may be starting
            remains, go_on = UNKNOWN, f"ask there, or delete {self._path(job.name)} if that host is gone"
        return HowEnded(f"its process {job.pid} is of host {job.host}, where nobody here can look", remains, go_on)

    def choose(self, name: str | None) -> JobFile:
        """The job of this name, or the only one that runs. Raises BadInput naming those there are."""
        if name is not None:
            if job := self.read(name):
                return job
            raise unknown("job", name, [each.name for each in self.all()])
        if not (running := self.running()):
            raise BadInput("no job runs here; start one with `keyshift job start`")
        if len(running) > 1:
            raise BadInput(f"{len(running)} jobs run here, name one: {', '.join(job.name for job in running)}")
        return running[0]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


class JournalFile:
    """What the job ``name`` can be continued from, or what is known of what it may have left: the files beside its
    ``JobFile`` in ``folder``.
    """

    def __init__(self, folder: Path, name: str, entry: str) -> None:
        self._name = name
        self._path, self._leftovers = (folder / f"{name}.{entry}.{kind}" for kind in ("journal", "leftovers"))

    def expect(self, known: Kept) -> None:
        """Write down what is ``known`` of what the job makes from now on, to find and delete that.

        Nothing can go on with the job yet. Its own process calls this.
        """
        write_whole(self._leftovers, json.dumps(known.model_dump(mode="json", by_alias=True)))

    def keep(self, known: Kept, journal: "Journal") -> None:
        """Write what another process needs to go on with the job, readable for its owner alone."""
        from keyshift.lab.live.journal import journal_to_json  # all of a job: most commands do without it

        content = known.model_dump(mode="json", by_alias=True) | journal_to_json(journal)
        write_whole(self._path, json.dumps(content))
        self._leftovers.unlink(missing_ok=True)

    def number(self) -> int:
        """The number of what was kept last on its disk: another one each time. Raises OSError if nothing is there."""
        return self._path.stat().st_ino

    def close(self) -> None:
        """Let nothing go on with the job from now on: what is left is to be deleted. Needs no room on the disk."""
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._leftovers)

    def drop(self) -> None:
        """Forget what was known: nothing is left of the job. Safe to call twice."""
        for path in (self._path, self._leftovers):
            remove_whole(path)

    def read(self) -> Kept | None:
        """Return what was kept last; None if nothing was, or it cannot be read."""
        return _read(self._path)

    def require(self) -> Kept:
        """Return what was kept last. Raises BadInput if nothing was, or it cannot be read."""
        if (known := self.read()) is None:
            raise self._gone()
        return known

    def content(self) -> "Journal":
        """Return the journal that was kept last. Raises BadInput if there is none, or naming what is damaged in it."""
        from keyshift.lab.live.journal import journal_from_json

        if (raw := _raw(self._path)) is None:
            raise self._gone()
        return journal_from_json(raw)

    def _gone(self) -> BadInput:
        return BadInput(f"job {self._name}: {self._path} is not there any more, so nothing can go on with it")

    def left(self) -> Kept | None:
        """Return what is known of what the job may have left: what was kept, or what was expected; None for nothing.

        Raises BadInput if that cannot be read.
        """
        for path in (self._path, self._leftovers):
            if path.exists():
                if (found := _read(path)) is None:
                    raise BadInput(
                        f"job {self._name}: {path} is damaged, so nobody knows what the job has left; its topics in "
                        "Kafka, its nodes in ZooKeeper and its savepoints in MinIO have its run's id in their names"
                    )
                return found
        return None

    def elsewhere(self) -> bool:
        """Whether the job may have left something in services that others run. A profile that cannot be read may name
        some; of a file that cannot be read nobody knows.
        """
        if (left := _read(self._path) or _read(self._leftovers)) is None:
            return False
        if any(left.values.get(name) for name in REDIS):
            return True
        try:
            return load_profile(left.profile).services != "embedded"
        except KeyshiftError:
            return True

    def remains(self) -> tuple[str, str]:
        """Say what remains of the job when its process is gone, one of ``REMAINS``, and how to go on."""
        forget = f"`keyshift job forget {self._name}` deletes"
        if self.read():
            return ALL, f"`keyshift resume {self._name}` goes on with it, {forget} it"
        if self._path.exists():
            return LEFTOVERS, f"{self._path} is damaged: repair it, or delete by hand what it named"
        if self._leftovers.exists():
            return LEFTOVERS, f"{forget} what is left of it"
        return NOTHING, "nothing is left of it"


def _written(path: Path) -> JobFile | None:
    """Read a job's file, whatever has become of the process that it names."""
    try:
        return JobFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _raw(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _read(path: Path) -> Kept | None:
    try:
        return Kept.model_validate(_raw(path))
    except ValidationError:
        return None


def last_line(log: Path) -> str:
    """The last line of a log that has any words; of several of ours that began with our name, the last."""
    lines = [line for line in processes.tail(log, 200).splitlines() if line.strip()]
    ours = [line.removeprefix("keyshift: ") for line in lines if line.startswith("keyshift: ")]
    return (ours or lines or ["(nothing)"])[-1].strip()
