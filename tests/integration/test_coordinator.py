"""A coordinator dies in the middle of a migration, and another one brings it to its end: with the real ZooKeeper."""

import threading
import time

import pytest

from keyshift.executor.coordination import Coordination
from keyshift.executor.coordinator import Coordinator, Wish
from keyshift.keys import Assignment, Move, Step

START = Assignment.contiguous(4, 2)
STEPS = (Step((Move(0, 0, 1),)), Step((Move(1, 0, 1),)), Step((Move(2, 1, 0),)))
PHASES = {"prepared": (0, 1), "installed": (1,), "released": (0,)}


class Died(Exception):
    pass


class Slots:
    """Two slots that acknowledge whatever is published, until ``stop_after`` acknowledgements were given."""

    def __init__(self, stack, root, stop_after):
        self.coordination = Coordination(stack.zookeeper, root)
        self.left = stop_after
        self.given = set()
        self.lock = threading.Lock()
        self.moves = {}  # version -> moves
        self.coordination.watch("steps", self.published)
        self.coordination.watch("assignment", self.switched)

    def published(self, raw):
        for step in raw["steps"]:
            self.moves[step["version"]] = step["moves"]
            for slot in (0, 1):
                self.acknowledge(step["version"], "prepared", slot)

    def switched(self, raw):
        if raw["version"] > START.version:
            _, source, destination = self.moves[raw["version"]][0]
            self.acknowledge(raw["version"], "released", source)
            self.acknowledge(raw["version"], "installed", destination)

    def acknowledge(self, version, phase, slot):
        with self.lock:
            if self.left > 0 and (version, phase, slot) not in self.given:
                self.given.add((version, phase, slot))
                self.left -= 1
                self.coordination.acknowledge(f"acks/{version}/{phase}-{slot}", {})

    def go_on(self):
        self.left = 1000
        self.published(self.coordination.read("steps"))
        self.switched(self.coordination.read("assignment"))


def serve(coordination, check):
    if coordination.read("assignment") is None:
        coordination.publish("assignment", START.to_json() | {"paused": []})
    coordinator = Coordinator(coordination, "test", START, 30.0)
    wishes = [] if coordination.read("steps") else [Wish(0.0, lambda current: STEPS)]
    coordinator.serve(wishes, time.monotonic(), lambda phase: None, check)
    return coordinator


@pytest.mark.parametrize("heard", [0, 1, 3, 4, 7])
def test_another_coordinator_finishes_what_one_left_after_some_messages(stack, request, heard):
    root = f"/{request.node.name}"
    first, second = Coordination(stack.zookeeper, root), Coordination(stack.zookeeper, root)
    slots = Slots(stack, root, stop_after=heard)
    quiet_since = time.monotonic()

    def die_when_quiet():
        if slots.left == 0 and time.monotonic() - quiet_since > 0.5:
            raise Died

    try:
        with pytest.raises(Died):
            serve(first, die_when_quiet)
        first.close()
        slots.go_on()
        coordinator = serve(second, lambda: None)
        assert coordinator.assignment.owner == (1, 1, 0, 1)
        assert coordinator.assignment.version == START.version + len(STEPS)
        assert not coordinator.troubles
    finally:
        slots.coordination.withdraw("")
        for session in (slots.coordination, second):
            session.close()
