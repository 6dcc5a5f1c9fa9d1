"""A coordinator loses its session in the middle of a migration: with the real ZooKeeper."""

import threading

import pytest

from keyshift.driver.leader import Coordinator
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, Move, Step
from keyshift.model.records import UnitsCame, UnitsLeft
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination

START = Assignment.contiguous(4, 2)
STEPS = (Step((Move(0, 0, 1),)), Step((Move(1, 0, 1),)), Step((Move(2, 1, 0),)))
SAID = {"prepared": nodes.PhaseDone(1), "installed": UnitsCame((), 1), "released": UnitsLeft(())}


class Slots:
    """Two slots that acknowledge whatever is published, until ``stop_after`` acknowledgements were given."""

    def __init__(self, stack, root, stop_after):
        self.coordination = Coordination(stack.zookeeper, root)
        self.left = stop_after
        self.given = set()
        self.lock = threading.Lock()
        self.moves = {}  # version -> moves
        self.coordination.watch(nodes.STEPS, self.published)
        self.coordination.watch(nodes.ASSIGNMENT, self.switched)

    def published(self, told):
        for version, step in told.steps:
            self.moves[version] = step.moves
            for slot in (0, 1):
                self.acknowledge(version, "prepared", slot)

    def switched(self, told):
        if (version := told.assignment.version) > START.version:
            _, source, destination = self.moves[version][0]
            self.acknowledge(version, "released", source)
            self.acknowledge(version, "installed", destination)

    def acknowledge(self, version, phase, slot):
        with self.lock:
            if self.left > 0 and (version, phase, slot) not in self.given:
                self.given.add((version, phase, slot))
                self.left -= 1
                self.coordination.acknowledge(nodes.ack(version, phase, slot), SAID[phase])

    def go_on(self):
        self.left = 1000
        self.published(self.coordination.read(nodes.STEPS))
        self.switched(self.coordination.read(nodes.ASSIGNMENT))


def lead(coordinator, check=lambda: None):
    """Until nothing is under way any more."""

    def look():
        check()
        if not coordinator.busy:
            coordinator.end()

    coordinator.lead(look)


@pytest.fixture
def join(stack, request):
    """Makes another participant of the test's own job."""
    made = []

    def participant():
        made.append(Coordination(stack.zookeeper, f"/{request.node.name}"))
        made[-1].begin()
        return made[-1]

    yield participant
    made[-1].withdraw(nodes.ALL)
    for each in made:
        each.close()


def test_a_coordinator_that_was_paused_cannot_publish_after_another_has_taken_over(
    stack, request, join, sessions, expire
):
    first, second, slots = join(), join(), Slots(stack, f"/{request.node.name}", stop_after=1000)
    first.publish(nodes.ASSIGNMENT, PublishAssignment(START))
    paused, goes_on, raised = threading.Event(), threading.Event(), []

    def pause():
        paused.set()
        assert goes_on.wait(60)

    def lead_and_pause():
        coordinator = Coordinator(first, "first", START, 30.0, 2)

        def look():
            pause()
            coordinator.request(lambda current: STEPS[:1])

        with pytest.raises(ServiceUnavailable, match="another coordinator leads"):
            coordinator.lead(look)
        raised.append(True)

    leading = threading.Thread(target=lead_and_pause)
    leading.start()
    try:
        assert paused.wait(60)
        expire(sessions[0])
        coordinator = Coordinator(second, "second", START, 30.0, 2)
        coordinator.request(lambda current: STEPS)
        lead(coordinator)
        there = nodes.PLAN, nodes.STEPS, nodes.ASSIGNMENT
        left = [second.read(node) for node in there]
        goes_on.set()
        leading.join(60)
        assert raised == [True]
        assert left == [second.read(node) for node in there]
        assert left[-1].assignment.version == START.version + len(STEPS)
    finally:
        goes_on.set()
        slots.coordination.close()


def test_a_coordinator_whose_session_expires_goes_on_if_nobody_else_leads(stack, request, join, sessions, expire):
    coordination, slots = join(), Slots(stack, f"/{request.node.name}", stop_after=4)
    expired = []

    def expire_when_quiet():
        if slots.left == 0 and not expired:
            expired.append(True)
            expire(sessions[0])
            slots.go_on()

    try:
        coordination.publish(nodes.ASSIGNMENT, PublishAssignment(START))
        coordinator = Coordinator(coordination, "test", START, 30.0, 2)
        coordinator.request(lambda current: STEPS)
        lead(coordinator, expire_when_quiet)
        assert expired
        assert coordinator.assignment.owner == (1, 1, 0, 1)
        assert not coordinator.log.notes
        lead(coordinator)  # and may lead again
    finally:
        slots.coordination.close()
