"""A job that runs until it is stopped, from notebooks, commands and whatever else has a thread.

job = lab.start(live_spec({"workload": "keycount"}))
job.do(Scale(slots=4), wait=True)
job.status()
job.stop().summary
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from keyshift.experiment.commands import UNDER_WAY, Command, CommandAnswer
from keyshift.experiment.live_spec import wanted_slots
from keyshift.experiment.spec import RunSpec
from keyshift.lab.autoscaler import decision_told
from keyshift.lab.controls import JobControls
from keyshift.lab.ending import Ending
from keyshift.lab.live.inbox import NotRunning
from keyshift.lab.live.journal import Keeper
from keyshift.lab.live.run import LiveRun
from keyshift.lab.live.status import JobLife, JobState, ScalingStatus, Status
from keyshift.lab.run_loop import RunLoop, Script
from keyshift.lab.scalings import Scalings
from keyshift.model.errors import KeyshiftError
from keyshift.model.notes import Activity
from keyshift.model.records import Second
from keyshift.results.manifest import Manifest, new_run_id
from keyshift.traffic.messages import Latencies

TOLD = 10  # decisions of an autoscaler in a status
RecordRun = Callable[..., Manifest]  # see ``Lab.record``


class LiveJob:
    """A job that runs until it is stopped; for any thread. The one that calls ``execute``, once, then controls it.

    ``on_end``: called when it has ended. ``keeper``: what is written down of the job; without, nothing is.

    ``do`` raises BadInput, and changes nothing, if that is not possible or the job does not run; ServiceUnavailable if
    a service is away.
    """

    def __init__(
        self,
        record: RecordRun,
        spec: RunSpec,
        on_end: Callable[[], None] = lambda: None,
        keeper: Keeper | None = None,
    ) -> None:
        self._record, self.spec, self._on_end, self._keeper = record, spec, on_end, keeper or Keeper()
        resumed = self._keeper.resumed
        # Slots of each stage that a restart may lead to.
        self.restart_slots = dict.fromkeys(spec.tasks, wanted_slots(spec))
        self.run_id = resumed().run_id if resumed else new_run_id(spec.workload.name, spec.strategy.name)
        self.ready, self.ended = threading.Event(), threading.Event()
        self.manifest: Manifest | None = None  # of a job that has ended, whatever its verdict
        self.error: BaseException | None = None  # why there is none
        self._life = JobLife()
        self._run: LiveRun | None = None
        self._unwanted = False
        self._ended_at: float | None = None  # seconds of the wall clock
        self._controller: threading.Thread | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def execute(self) -> Manifest:
        """Run the job from its start to its verdict, which is stored. Raises KeyshiftError if it dies."""
        self._controller = threading.current_thread()
        try:
            self.manifest = self._record(self.spec, self.run_id, self._script, self._keeper)
            return self.manifest
        except BaseException as error:
            self.error = error
            if isinstance(error, KeyboardInterrupt):  # it may have come while the job was tidied up
                stored = f"it was interrupted when its verdict was stored: `keyshift results show {self.run_id}`"
                over = self._keeper.ending is Ending.STOPPED
                self.error = KeyshiftError(stored) if over else self._keeper.error or error
            raise
        finally:
            self._ended_at = time.time()
            with contextlib.ExitStack() as stack:
                stack.callback(self.ended.set)
                stack.callback(self._on_end)
                self._life.enter(JobState.FAILED if self.manifest is None else JobState.ENDED)
                if self._run:
                    self._run.close()

    def fail(self, error: BaseException) -> None:
        """Give the job up before it executes: what it needs does not come."""
        if self.manifest is None and self.error is None:
            self.error = error
            self._life.enter(JobState.FAILED)
        self.ended.set()

    def keep(self) -> None:
        """Call ``execute`` in a thread that nobody waits for: ``error`` has what it raises."""
        with contextlib.suppress(KeyshiftError):
            self.execute()

    def _script(self, loop: RunLoop) -> Script:
        self._run = run = LiveRun(loop, self._keeper, self._life, self.ready.set)
        run.loop.unwanted = self._unwanted  # from now on it hears that itself
        return run.script()

    def await_ready(self) -> None:
        """Wait until events go in. Raises what kept the job from it."""
        while not self.ready.wait(0.1):
            if self.ended.is_set() and not self.ready.is_set():
                raise self.error or KeyshiftError(f"job {self.run_id} has ended before it was ready")

    def give_up(self) -> None:
        """End the job without a verdict, and wait until nothing of it is left."""
        self._unwanted = True
        if self._run:
            self._run.loop.unwanted = True
        if threading.current_thread() is not self._controller:
            self.ended.wait()

    def begin_stop(self) -> None:
        """Begin what ``stop`` does, without waiting: the load ends at the next look, or when the job has recovered."""
        self._life.stop_wanted = True

    def stop(self) -> Manifest:
        """End the load, wait for all results and the verdict. Whoever asks again gets the same.

        A job that starts or recovers stops when it has. Raises what kept it from its verdict.
        """
        self.begin_stop()
        self.ended.wait()
        if self.manifest is None:
            raise self.error if isinstance(self.error, KeyshiftError) else KeyshiftError(f"the job died: {self.why}")
        return self.manifest

    # -- how it is ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        """How far it is."""
        return self._life.state

    @property
    def why(self) -> str | None:
        """In one line, why the job has failed; None if it has not."""
        if self.error is None:
            return None
        if isinstance(self.error, KeyboardInterrupt):
            return "it was interrupted"
        words = " ".join(str(self.error).split())
        return words if isinstance(self.error, KeyshiftError) else f"{type(self.error).__name__}: {words}"

    def status(self) -> Status:
        """Return what the job says of itself; nobody is asked."""
        spec, run = self.spec, self._run
        summary, verdict = (self.manifest.summary, self.manifest.verdict) if self.manifest else (None, None)
        status: Status = {
            "run_id": self.run_id,
            "state": self.state.value,
            "why": self.why,
            "workload": spec.workload.name,
            "strategy": spec.strategy.name,
            "summary": summary,
            "examples": verdict.examples if verdict else [],
            "manifest": self.manifest,
            "stages": {},
            "migrations": [],
        }
        if run is None or not self.ready.is_set():
            return status
        seconds = run.loop.traffic.seconds
        last = seconds[-1] if seconds else Second(0, 0)
        status.update(run.system.status())
        status |= {
            "activity": str(run.loop.reporter.doing),
            "running_s": round((self._ended_at or time.time()) - run.loop.began_at, 1),
            "rate": sum(run.loop.rates.values()) if self.state is JobState.RUNNING else 0.0,
            "offered": run.offered,
            "results": run.loop.traffic.received,
            "results_per_s": last.results,
            "p50_ms": last.p50_ms,
            "p99_ms": last.p99_ms,
            "migrating": run.migrations.under_way,
            "migrations": run.migrations.status(),
            "deaths": len(run.loop.deaths) + sum(each["deaths"] for each in status.get("replicas", {}).values()),
            "autoscaler": self._scaling(run.loop.scalings),
        }
        measured = run.measured
        for name, stage in status["stages"].items():
            for slot, of_slot in stage["of_slot"].items():
                of_slot |= measured.get(name, {}).get(slot, {})
        return status

    def _scaling(self, made: Scalings) -> ScalingStatus | None:
        """Return what the autoscaler has decided; None without one."""
        if self.spec.scenario.trigger != "auto":
            return None
        names = [stage.name for stage in self.spec.workload.stages]
        newest = [decision_told(each, names) for each in made[-TOLD:]]
        return {"looks": len(made), "moves": made.moves, "decisions": newest}

    @property
    def activities(self) -> Mapping[str, Activity]:
        """What happens to the state of each stage now; nothing of a job that has not begun."""
        if self._run is None or not self.ready.is_set():
            return {}
        of_all = self._run.loop.reporter.doing.activity
        of_each = self._run.system.activities
        return {name: of_each[name] if of_all.of_stage else of_all for name in of_each}

    @property
    def latencies(self) -> Mapping[int, Latencies]:
        """Latencies of what came out so far, by slot."""
        return self._run.loop.traffic.latencies if self._run else {}

    # -- what can be done with it -------------------------------------------------------------------------------------

    def do(self, command: Command, wait: bool = False) -> CommandAnswer:
        """Carry out a command and give its answer; with ``wait``, if a migration comes of it, when that is over."""
        run = self._run
        if run is None or self.state is not JobState.RUNNING:
            raise NotRunning(f"job {self.run_id} is {self.state}, not running")
        answer = run.inbox.ask(lambda: command.carry_out(JobControls(run.loop, run.migrate, self.restart_slots)))
        if not wait or "number" not in answer:
            return answer
        migration = run.migrations.find(answer["stage"], answer["number"])
        while migration["outcome"] == UNDER_WAY and not self.ended.wait(0.1):
            pass
        return {**answer, **migration}
