"""The job of a soak, from outside: started, asked, killed and resumed, stopped, all in the public ways."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

from keyshift.clock import SECOND_US
from keyshift.control import background
from keyshift.control.client import Client, await_end, stop_job
from keyshift.control.files import JobFile, Jobs
from keyshift.experiment.commands import Command
from keyshift.experiment.live_spec import live_spec, wanted_slots
from keyshift.lab.live.status import JobState, Status
from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.progress import Say
from keyshift.services.stack import Stack
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until

NAME = "soak"
SETTLE_S = 6.0  # before a job can be told to have got over what happened: its death is noticed by then
RECOVER_S = 240.0  # for it to get over it
GONE_S = 30.0  # for a killed process to be gone
LOOK_S = 0.5
T = TypeVar("T")


class Unanswered(KeyshiftError):
    """A request got no answer, though the job's process lives; or the job did not get over what happened."""


class SoakJob:
    """The job of a soak. ``watched``: hears the job's process whenever there is another one."""

    def __init__(self, stack: Stack, values: Mapping[str, Any], profile: str | None, watched: Callable[[int], None]):
        self._stack, self._values, self._profile, self._watched = stack, dict(values), profile, watched
        self._partitions = wanted_slots(live_spec(values))
        self._jobs = Jobs(stack.home)
        self._file: JobFile | None = None
        self.run_id = ""

    def start(self, say: Say) -> None:
        """Start the job; returns when it is ready and has a snapshot."""
        self._begun(*background.start(self._values, say, NAME, profile=self._profile))
        if not wait_until(lambda: self.status().get("snapshots"), RECOVER_S):
            raise Unanswered(f"no snapshot within {RECOVER_S:g} s")

    def _begun(self, job: JobFile, told: Status) -> None:
        self._file, self.run_id = job, told["run_id"]
        self._watched(job.pid)

    @property
    def alive(self) -> bool:
        """Whether its process lives."""
        return self._file is not None and self._jobs.alive(self._file)

    def status(self) -> Status:
        """Ask for its status. Raises KeyshiftError, with how it ended, if it does not run any more; Unanswered."""
        told = self._asked(lambda client: client.status())
        if told["state"] == JobState.FAILED:
            raise KeyshiftError(f"the job has failed: {told['why']}")
        return told

    def do(self, command: Command) -> None:
        """Ask it to carry out a command. Raises BadInput, or KeyshiftError if a service is away."""
        self._asked(lambda client: client.do(command))

    def _asked(self, ask: Callable[[Client], T]) -> T:
        assert self._file is not None
        try:
            return ask(Client(self._file))
        except ServiceUnavailable as error:
            if self.alive:
                raise Unanswered(str(error)) from error
            ended = self._jobs.read(NAME) or self._file
            raise KeyshiftError(f"the job has ended: {self._jobs.ended(ended)}") from error

    def die(self) -> None:
        """Kill its process; returns when another one goes on with it."""
        assert self._file is not None
        os.kill(self._file.pid, signal.SIGKILL)
        if not wait_until(lambda: not self.alive, GONE_S):
            raise Unanswered(f"process {self._file.pid} was killed and lives after {GONE_S:g} s")
        self._begun(*background.resume(NAME, lambda line: None))

    def settle(self, lasts_s: float) -> Status:
        """Wait until it has got over what happened, which lasts so long, and runs, has results and moves nothing.

        Raises Unanswered.
        """
        time.sleep(SETTLE_S + lasts_s)
        told: Status = {}

        def over() -> bool:
            nonlocal told
            told = self.status()
            return told["state"] == JobState.RUNNING and not told["migrating"] and told["results_per_s"] > 0

        if not wait_until(over, RECOVER_S, LOOK_S):
            how = {name: told.get(name) for name in ("state", "activity", "migrating", "results_per_s")}
            raise Unanswered(f"the job did not get over it within {RECOVER_S:g} s: {how}")
        return told

    def silence_ms(self, begin: float, end: float) -> float | None:
        """The longest time without a result between two moments (seconds since the epoch); None if Kafka is away."""
        with contextlib.suppress(ServiceUnavailable):
            results = Topic.at(self._stack.endpoints(), f"{self.run_id}-results", self._partitions)
            moments = [moment / SECOND_US for moment in results.result_times(begin)]
            inside = sorted(moment for moment in moments if begin <= moment <= end)
            every = [begin, *inside, end]
            return round(1000 * max(after - before for before, after in pairwise(every)), 1)
        return None

    def stop(self, within_s: float, say: Say) -> Status:
        """Stop the job; returns its last status, with the verdict, when its process is gone. Raises Unanswered if that
        takes too long.
        """
        assert self._file is not None
        try:
            told = stop_job(Client(self._file), say, within_s)
        except TimeoutError:
            raise Unanswered(f"the stop was not answered within {within_s:g} s") from None
        await_end(self._file)
        return told

    def end(self) -> None:
        """End its process, whatever it does. What it could go on from stays."""
        if self._file is None or not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._file.pid, signal.SIGTERM)
        with contextlib.suppress(ServiceUnavailable):
            return await_end(self._file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._file.pid, signal.SIGKILL)
