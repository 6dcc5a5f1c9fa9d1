"""Agrees with the routers of a stage on an epoch, if its slots work in turns: nothing happens "now" then.

The epoch lies a little ahead, where no frame can be yet. Each router answers whether it has come so far all the same.
If none has, the appointment holds, and they are told so: none of them passes the epoch before. Otherwise another epoch
is appointed, further ahead. A router between two batches has left how far it has come, and so has answered.

Replicas of a job appoint the same epoch for the same switch: it holds if the routers of all of them have confirmed it.
If one has died since it was appointed, nobody knows if that has passed the epoch: it does not hold.

How far ahead is learnt: what was too little costs another round, and what is too much is waited for in each step.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import count

from keyshift.clock import now_us
from keyshift.driver.agreement import Member, MemberSay, alone
from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import Assignment
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination

# Until all routers have heard: at first, at the least and at the most. It doubles if one was late, and falls otherwise.
AHEAD_US, LEAST_US, MOST_US, FALLS = 50_000, 10_000, 5_000_000, 0.9
LOOK_S = 0.005  # between two looks for answers: ZooKeeper needs about a millisecond to tell one


class Appointments:
    """The appointments of one attempt of the stage of ``config``, which has a watermark for each of its routers.
    ``agrees``: with other replicas, if there are some.
    """

    def __init__(self, config: JobConfig, coordination: Coordination, agrees: MemberSay | None = None) -> None:
        self._config, self._coordination, self._agrees = config, coordination, agrees or alone()
        self._ahead_us = AHEAD_US

    def make(
        self, what: str, tell: Callable[[Appointment], None], wanted: Callable[[], bool], at_us: int = 0
    ) -> int | None:
        """Call ``tell`` with appointments for ``what`` until one holds, or is not ``wanted`` any more; gives the epoch.

        ``at_us``: where it is to be, or later if a router has passed that, in microseconds since the epoch. Raises
        MigrationFailed if a router does not answer before the deadline.
        """
        heartbeat_us, decide = self._config.heartbeat_us, self._agrees.decide
        for attempt in count():
            earliest, at_us = max(now_us() + self._ahead_us, at_us) // heartbeat_us + 1, 0
            appointed = decide((what, attempt, "epoch"), earliest, _latest, wanted)
            if appointed is None or not wanted():
                break
            epoch, all_told = appointed
            tell(Appointment(epoch))
            confirmed = self._confirmed(what, epoch, wanted)
            if decide((what, attempt, "holds"), confirmed, partial(_by_all, all_told), wanted):
                self._ahead_us = max(round(FALLS * self._ahead_us), LEAST_US)
                tell(Appointment(epoch, holds=True))
                self._coordination.withdraw(nodes.confirmed(what))
                return epoch
            self._ahead_us = min(2 * self._ahead_us, MOST_US)
        return None

    def leave(self) -> bool:
        """Let other replicas go on without this one. Gives whether there are some."""
        return self._agrees.leave()

    def _confirmed(self, what: str, epoch: int, wanted: Callable[[], bool]) -> bool:
        routers, deadline_s = self._config.routers, self._config.deadline_s
        answers: dict[int, bool] = {}

        def answered() -> bool:
            for name, said in self._coordination.read_below(nodes.confirmed(what)).items():
                of, router = nodes.epoch_and_router(name)
                if of == epoch:
                    answers[router] = said
            for name, watermark in self._coordination.read_below(nodes.ROUTERS).items():
                answers.setdefault(int(name), watermark // self._config.heartbeat_us < epoch)
            return len(answers) == routers or not wanted()

        if not wait_until(answered, deadline_s, LOOK_S):
            missing = ", ".join(f"router {router}" for router in range(routers) if router not in answers)
            raise MigrationFailed(f"{what} is appointed: {missing} did not answer within {deadline_s:g} s")
        return len(answers) == routers and all(answers.values())


def _latest(epochs: Mapping[Member, int]) -> tuple[int, Set[Member]]:
    """The latest of ``epochs``, and who is told of it."""
    return max(epochs.values()), epochs.keys()


def _by_all(all_told: Set[Member], confirmed: Mapping[Member, bool]) -> bool:
    return confirmed.keys() >= all_told and all(confirmed.values())


def publish(
    coordination: Coordination,
    appointments: Appointments | None,
    told: PublishAssignment,
    before: Assignment,
    wanted: Callable[[], bool],
) -> None:
    """Let the routers switch: with their next frames or, if there are ``appointments``, where they have agreed to.

    ``before``: what they route by, if ``told`` does not say that.
    """
    if appointments is None:
        return coordination.publish(nodes.ASSIGNMENT, told)

    def tell(appointment: Appointment) -> None:
        known = told.before or before
        coordination.publish(nodes.ASSIGNMENT, replace(told, appointment=appointment, before=known))

    appointments.make(str(told.assignment.version), tell, wanted)
