"""One attempt of a stage: its place in ZooKeeper, and whoever leads it."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keyshift.driver import agreement
from keyshift.driver.appointments import Appointments
from keyshift.driver.leader import Coordinator, CoordinatorDied, MakeSteps
from keyshift.model.errors import Damaged, NotThere
from keyshift.model.keys import NO_VERSION, Assignment, Step, Version
from keyshift.model.notes import Doing
from keyshift.model.records import StepRecord
from keyshift.objects import damage_told
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.epoch import Epoch
from keyshift.wire.faults import Fault
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.state.outbox import again

SayDoing = Callable[[Doing], None]


@dataclass(frozen=True)
class Unfinished:
    """What an attempt has left to the next one: its newest assignment, under which its slots may have answered; the
    steps of its plan that had not switched; requests that had not begun; the restart that leads to the next one.
    """

    assignment: Assignment
    steps: Sequence[Step] = ()
    requests: Sequence[MakeSteps] = ()
    restart: StepRecord | None = None


class StageAttempt:
    """When an attempt is made, its tasks find what they need; whoever leads it first goes on with what is ``left``.

    It leads from ``start`` to ``end``, with another coordinator if one dies, and is in ZooKeeper until ``leave``.
    ``request``, ``fail`` and ``check`` are for any thread. ``say`` and ``at_phase`` (where a step begins) are called by
    the leader's thread. ``agrees``: with other replicas of the job.
    """

    def __init__(
        self,
        config: JobConfig,
        left: Unfinished,
        say: SayDoing,
        at_phase: Callable[[str], None],
        agrees: agreement.MemberSay | None = None,
    ) -> None:
        self.config, self._say, self._at_phase, self._agrees = config, say, at_phase, agrees
        self.participant = self._new_session(leads=False)
        with contextlib.ExitStack() as stack:
            stack.callback(self.participant.close)
            self.participant.begin()
            if left.steps:
                plan = nodes.WrittenPlan(f"of attempt {config.attempt - 1}", tuple(left.steps))
                self.participant.publish(nodes.PLAN, plan)
            if left.restart:  # for another process: nobody has written it down when this one switches
                self.participant.publish(nodes.RESTART, left.restart)
            self.participant.publish(nodes.ASSIGNMENT, PublishAssignment(left.assignment))
            if config.in_turns and config.restore:
                self._publish_places(left.assignment.version)
            self.coordinator, self._session = self._elected_next(left.assignment)
            stack.pop_all()
        for make_steps in left.requests:
            self.coordinator.request(make_steps)
        self._changing = threading.Lock()  # who leads, and who asks for something
        self._ending, self.over = False, False  # over: nobody leads any more
        self._failure: BaseException | None = None  # what ended the coordinator
        name = f"keyshift-leader-{config.stage}"
        self._leader = threading.Thread(target=self._try_to_lead, name=name, daemon=True)

    def start(self) -> None:
        """Lead, until ``end``."""
        self._leader.start()

    def check(self) -> None:
        """Raises whatever ended the coordinator, or the connection with ZooKeeper."""
        if self._failure is not None:
            raise self._failure
        self.participant.check()

    def request(self, make_steps: MakeSteps | None, replace: bool = False, behind: Version = NO_VERSION) -> None:
        """Ask for a migration, or take back what has not begun; see ``Coordinator.request``."""
        with self._changing:
            self.coordinator.request(make_steps, replace, behind)

    def fail(self, fault: Fault) -> None:
        """Let ``fault`` hit whoever leads; see ``Coordinator.fail``."""
        leads = threading.current_thread() is self._leader  # which changes who leads; if it stands, nobody waits for it
        with contextlib.nullcontext() if leads else self._changing:
            self.coordinator.fail(fault)

    def end(self) -> None:
        """Lead no more."""
        if self._leader.ident is not None:
            with self._changing:
                self._ending = True
                self.coordinator.end()
            self._leader.join()
        self.over = True

    def leave(self) -> None:
        """Leave ZooKeeper, after ``end`` and the end of the query."""
        with contextlib.ExitStack() as last:
            last.callback(self.participant.close)
            last.callback(self._session.close)
            self.coordinator.await_planner()  # which sees that the query has ended

    def _publish_places(self, version: Version) -> None:
        """Publish where routers and slots go on in their order, which is where they stood. A savepoint that cannot be
        read says nothing: whoever restores from it will tell. It is read for as long as slots try, since one that got
        its state, and not its place, would go on from nowhere. Raises ServiceUnavailable if the store is away for
        longer.
        """
        config, savepoint = self.config, str(self.config.restore)
        store = SavepointStore(config.endpoints, config.restore_of or config.job)
        with contextlib.suppress(Damaged, NotThere), damage_told(store.committed, savepoint):
            name = f"where {config.stage} goes on, from savepoint {savepoint}"
            manifest = again(name, threading.Event(), lambda: store.manifest(savepoint), config.deadline_s)
            if config.number == 0:
                for router, watermark in manifest.watermarks.items():
                    self.participant.publish(nodes.ROUTERS[router], watermark)
            for slot, position in manifest.stages[config.stage].placed(config.slots, config.routers).items():
                self.participant.publish(nodes.POSITIONS[slot], position.under(version))

    # -- leading ------------------------------------------------------------------------------------------------------

    def _new_session(self, leads: bool) -> Coordination:
        """Begin a session with ZooKeeper. ``leads``: a coordinator's own, which ends with it."""
        config = self.config
        return Coordination(config.endpoints.zookeeper, config.root, config.token, Epoch(config.job, config.epoch))

    def _elected_next(self, assignment: Assignment) -> tuple[Coordinator, Coordination]:
        config, session = self.config, self._new_session(leads=True)
        appointments = Appointments(config, session, self._agrees) if config.in_turns else None
        given = session, config.job, assignment, config.deadline_s, config.slots, self._say, self._at_phase
        return Coordinator(*given, appointments), session

    def _try_to_lead(self) -> None:
        try:
            self._lead()
        except BaseException as error:  # the controlling thread's now
            self._failure = error

    def _lead(self) -> None:
        while True:
            try:
                return self.coordinator.lead(self._session.check)
            except CoordinatorDied:
                self._succeed()

    def _succeed(self) -> None:
        """Let another coordinator be elected and lead from now on."""
        before = self.coordinator
        before.await_planner()  # which publishes nothing any more
        self._session.close()
        coordinator, self._session = self._elected_next(before.assignment)
        with self._changing:
            coordinator.inherit(before)
            self.coordinator = coordinator
            if self._ending:
                coordinator.end()
