"""A job with replicas as the system under test: one dies, the others go on, and it comes back.

State moves in all of them alike: each makes the same plan, and switches behind the same epochs, see
``driver.agreement``; or one moves after the other, see ``replicas.requests``. A request waits while a replica is on its
way back.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping

from keyshift.clock import now_us
from keyshift.driver.job_faults import first_slot_host
from keyshift.experiment.replicas import moves_apart
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.final_state import FinalState
from keyshift.lab.replicas.jobs import LedReplica, Replicas
from keyshift.lab.replicas.leaders import leaders
from keyshift.lab.replicas.requests import Admission, MoveRequest, OneByOne, Requests, Together
from keyshift.lab.replicas.resume_points import ResumePoints
from keyshift.lab.replicas.returning import Returns
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, QueryDied
from keyshift.model.records import Measured
from keyshift.planner import Strategy
from keyshift.progress import Say
from keyshift.wire.faults import EXECUTOR, FOLLOWER, REPLICA, Fault

LOOK_S = 0.1  # between two looks at whether the last one that may comes back
TOGETHER_US = 1_000_000  # in which all routers of all replicas answer an appointment


class ReplicatedJob:
    """See ``SystemUnderTest``.

    What is asked of a job is asked of the replica that has lived for longest, as all of them do the same.
    """

    def __init__(self, spec: RunSpec, replicas: Replicas, say: Say) -> None:
        self._spec, self._replicas, self._say = spec, replicas, say
        self._notes: list[str] = []
        self._told = 0  # differences
        self.measured_of: int | None = None  # see ``LiveSystem``
        self._apart = moves_apart(spec.job, spec.scenario)
        self._requests: Requests = (OneByOne if self._apart else Together)(replicas, self._tell)
        self._dead: deque[LedReplica] = deque()  # whose way back has not begun
        self._returns = Returns(replicas, lambda: self._points.newest, self._tell)
        self._admission = Admission(replicas, self._requests, lambda: self._returns.under_way)
        given = self._admission.still, lambda: self._returns.needed, self._tell
        self._points = ResumePoints(replicas, spec.job.snapshot_s, *given)
        replicas.before_stop += [self._returns.close, self._points.end]

    @property
    def _first(self) -> LedReplica:
        return self._replicas.living[0]

    @contextlib.contextmanager
    def _surviving(self, replica: LedReplica) -> Iterator[None]:
        """Inside, ``replica`` may die. Raises KeyshiftError if it was the last one, and none is coming back."""
        try:
            yield
        except (QueryDied, MigrationFailed) as error:
            self._returns.end(replica)
            replica.application.kill()  # before nobody counts on it: whatever is left of it writes no more
            replica.lives, replica.deaths = False, replica.deaths + 1
            left = len(self._replicas.living)
            self._tell(f"replica {replica.number} died ({error}); {left} of {len(self._replicas.all)} went on")
            while not self._replicas.living:  # one may be on its way back, from what was written before
                if not self._returns.hopeful:
                    raise KeyshiftError(f"no replica is left: {'; '.join(self._notes)}") from error
                time.sleep(LOOK_S)
                self._returns.look()
            self._returns.count()
            if self._spec.job.returns:
                self._dead.append(replica)
                self._let_return()

    def _let_return(self) -> None:
        """Those that have died. Not while some of the others have moved and some have not: each would come back with
        the assignment of one of them.
        """
        with self._admission.changing:  # behind a death nothing begins to move
            while self._dead and not self._requests.partly_told:
                self._returns.begin(self._dead.popleft())

    def _tell(self, line: str) -> None:
        self.note(line)
        self._say(line)

    def start(self) -> None:
        """The Spark of each at the same time, then their queries one after the other."""
        self._say(f"starting {len(self._replicas.all)} replicas, each with a Spark of its own")
        self._replicas.begin()
        for replica in self._replicas.all:
            with self._surviving(replica):
                replica.system.start()
        self._returns.count()
        self._points.begin()

    def check(self) -> None:
        """Notices who has died or is back, and tells of differences. Raises KeyshiftError if nobody is left."""
        for difference in self._replicas.differences[self._told :]:
            self._told += 1
            self._say(str(difference))
        self._returns.look()
        self._points.check()
        for replica in self._replicas.living:
            with self._surviving(replica):
                replica.system.check()
        self._admission.pass_on()
        self._let_return()

    def recover(self) -> str:
        """It is never started anew: no death but the last one is an error."""
        raise KeyshiftError("a job with replicas is not started anew")

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """To each of them."""
        for replica in self._replicas.living:
            with self._surviving(replica):
                replica.system.announce(change, point)

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Of all of them. Raises BadInput for ``replace``: one might have begun by then, and another one not."""
        if replace:
            raise BadInput("replicas do not take back what has not begun, as one of them may have begun it")
        self._add(MoveRequest(change, stage))

    def _add(self, request: MoveRequest) -> None:
        self._requests.add(request)
        self._admission.pass_on()

    def cancel(self) -> None:
        """Nobody has to come back any more, and nothing that has not begun moves."""
        self._requests.clear()
        self._dead.clear()
        self._returns.close()

    def measure(self) -> Mapping[str, Mapping[int, Measured]]:
        """Of one of them, ``measured_of``."""
        first = self._first
        self.measured_of = first.number
        return first.system.measure()

    @property
    def owners(self) -> Mapping[str, Collection[int]]:
        """In each of them."""
        return self._first.system.owners

    @property
    def returning(self) -> bool:
        """See ``LiveSystem``: also before anybody has noticed that one has died."""
        unnoticed = any(not replica.application.running for replica in self._replicas.living)
        return unnoticed or bool(self._dead) or self._returns.under_way

    @property
    def busy(self) -> bool:
        """Whether something is to move, a replica is on its way back, or a service is away."""
        waits = self._requests.waits or self.returning
        return waits or any(replica.system.busy for replica in self._replicas.living)

    def hit(self, fault: Fault) -> None:
        """A replica that is killed, or stopped, is the one that has lived for longest; an executor is that of its
        first slot. It has stood for election before the others, so it leads; a follower is the one that came last.
        """
        at, first = time.time(), self._first
        if fault.who == FOLLOWER:
            self._replicas.living[-1].application.kill()
        elif fault.who == EXECUTOR:
            first.application.delete_executor(first_slot_host(first.job.stages[0]))
        elif fault.who != REPLICA:
            first.system.hit(fault)
        elif fault.action == "stop":
            first.application.pause(fault.seconds)
        else:
            first.application.kill()
        self._replicas.struck.append((at, fault))

    def note(self, line: str) -> None:
        """Behind those until now."""
        self._notes.append(line)

    def stop(self) -> None:
        """Each of them, all behind the same epoch, so that they have had the same turns."""
        self.cancel()
        self._points.end()
        at_us, epochs = now_us() + TOGETHER_US, dict[int, int]()
        for replica in self._replicas.living:
            with self._surviving(replica):
                epochs[replica.number] = replica.system.stop_at(at_us)
        if len({*epochs.values()}) > 1:
            self.note(f"replicas stopped behind different epochs, {epochs}: their last turns are not the same ones")
        for replica in self._replicas.living:
            with self._surviving(replica):
                replica.system.stop()

    def final_state(self) -> FinalState:
        """That of the replica that has come furthest, and of these of the one that moved last, with those of all that
        live: each has had an end of its own.
        """
        states = {replica.number: replica.system.final_state() for replica in self._replicas.living}
        number, furthest = max(states.items(), key=lambda each: _came_to(each[1]))
        for fault in self._spec.scenario.faults():
            if fault not in [each for _, each in self._replicas.struck]:
                self.note(f"fault = {self._spec.scenario.fault}: {fault} did not happen")
        if self._apart and furthest.stages:
            self.note(f"steps, moves and completion are those of replica {number}, which moved last")
        if self._replicas.order:
            self.note(leaders(self._replicas.order, self._spec.tasks))
        notes = [f"replica {each}: {line}" for each, state in states.items() for line in state.notes]
        return dataclasses.replace(
            furthest,
            replicas=states,
            judged=number if self._apart else None,
            began={replica.number: replica.began for replica in self._replicas.all},
            strength=self._returns.strength,
            snapshots=self._points.taken,
            notes=[*self._notes, *notes],
            struck=[(at, fault.what) for at, fault in self._replicas.struck],
        )


def _came_to(state: FinalState) -> tuple[int, int]:
    moved = (record.published_us for stage in state.stages for record in stage.records)
    return sum(state.offsets.values()), max(moved, default=0)
