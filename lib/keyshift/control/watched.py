"""A job in the background as a notebook sees it: found by its name, started, looked at, asked for things, stopped.

It is not the notebook's: it goes on when the kernel ends, and the next kernel finds it again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyshift.analysis.plots.live import History
from keyshift.control.background import start
from keyshift.control.client import Client, await_end, await_verdict
from keyshift.control.files import JobFile, Jobs
from keyshift.experiment.commands import Command, script_of
from keyshift.experiment.live_spec import live_spec, wanted_slots
from keyshift.experiment.possible import Rehearsal, rehearse
from keyshift.lab.environment import require_possible_here
from keyshift.lab.live.status import JobState, Status
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.progress import Say, progress
from keyshift.results.manifest import Manifest

LOOK_S = 0.4  # between two looks at a job: it is seen at least twice a second
LONGEST_S = 3600.0  # of a script that is played in a notebook


class WatchedJob:
    """The job ``name`` of this state folder, whether it runs or not. ``history``: what was seen of it from here.

    Methods that need a job that runs raise BadInput without one.
    """

    def __init__(self, name: str = "explore", profile: str | None = None) -> None:
        self.name, self.profile = name, profile
        self.history = History()
        self.manifest: Manifest | None = None  # of the run that was stopped from here
        self._jobs = Jobs()

    @property
    def _file(self) -> JobFile | None:
        file = self._jobs.read(self.name)
        return file if file and self._jobs.alive(file) else None

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self._file is not None

    def how(self) -> str:
        """Say in one line whether it runs, or how it ended."""
        if file := self._file:
            return f"job {self.name} runs: {file.workload}, {file.strategy}"
        if self.manifest is not None:
            return f"run {self.manifest.run_id} has ended, verdict {self.manifest.status}"
        if gone := self._jobs.read(self.name):
            return f"job {self.name} does not run here: {self._jobs.ended(gone)}"
        return f"no job {self.name} runs; `keyshift results list` has the runs that were stopped"

    def start(self, values: Mapping[str, Any], say: Say | None = None) -> None:
        """Start it; returns when events go in. Raises BadInput if it runs already, or is not possible."""
        history = History()
        with progress(say) as shown:
            start(values, shown, self.name, profile=self.profile)
        self.history, self.manifest = history, None

    def look(self) -> Status:
        """Return its status now, which goes into the history. Raises ServiceUnavailable if it does not answer."""
        status = self._client().status()
        if status["stages"]:
            self.history.add(status)
        return status

    def do(self, command: Command) -> None:
        """Have the job carry out ``command``. Raises BadInput if the job refuses it."""
        client = self._client()
        self.history.note_request(str(command))
        client.do(command)

    def stop(self, say: Say | None = None) -> Manifest:
        """End the load and wait for the verdict; the run is stored. Raises KeyshiftError if the job dies."""
        file = self._client().job
        with progress(say) as shown:
            told = await_verdict(self._jobs, file, shown)
        manifest = self.manifest = told["manifest"]
        assert manifest is not None, "a stop is answered with the verdict"
        await_end(file)
        return manifest

    def _client(self) -> Client:
        if (file := self._file) is None:
            raise BadInput(self.how())
        return Client(file)


def play(
    job: WatchedJob,
    values: Mapping[str, Any],
    script: Sequence[str],
    seconds: float,
    seen: Callable[[WatchedJob], None] = lambda job: None,
) -> Manifest:
    """Start ``job``, have it do what ``script`` says, stop it after ``seconds`` of load; its run, with the verdict.

    ``seen`` is called after each look. Nothing is started for a script or values that are not right (BadInput). What
    the job refuses is raised as well, when it has been stopped. Raises KeyshiftError if it dies.
    """
    to_come = script_of(script)
    spec = live_spec(values)
    if not 0 < seconds <= LONGEST_S or (to_come and to_come[-1].at_s >= seconds):
        last = f"above {to_come[-1].at_s:g}, the second of the last action, and " if to_come else "above 0 and "
        raise BadInput(f"seconds = {seconds:g}: must be {last}at most {LONGEST_S:g}")
    rehearse(to_come, Rehearsal(spec, dict.fromkeys(spec.tasks, wanted_slots(spec))))
    require_possible_here([spec], job.profile, lasts_s=seconds)
    job.start(values)
    refused: BaseException | None = None
    try:
        while True:
            looked = time.monotonic()
            status = job.look()
            running_s = status["running_s"]
            seen(job)
            while to_come and to_come[0].at_s <= running_s:
                job.do(to_come.pop(0).action)
            if running_s >= seconds or status["state"] == JobState.FAILED:
                break
            time.sleep(max(0.1, LOOK_S - (time.monotonic() - looked)))
    except BaseException as error:
        refused = error
    if not job.runs:
        raise KeyshiftError(job.how()) from refused
    manifest = job.stop()
    if refused is not None:
        raise refused
    return manifest
