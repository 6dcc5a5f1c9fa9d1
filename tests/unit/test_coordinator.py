"""The coordinator's shell over nodes in memory: what it writes down of steps. With ZooKeeper: tests/integration."""

import pytest

from keyshift.executor.coordinator import Coordinator, Wish
from keyshift.keys import Assignment, Move, SlotId, Step, UnitId

START = Assignment.contiguous(4, 2)
FIRST, SECOND = (Step((Move(UnitId(unit), SlotId(0), SlotId(1)),)) for unit in (0, 1))
ENDS = ("installed-1", "prepared-0", "prepared-1", "released-0")


class Nodes:
    """``hook(path, value)`` is called after each publication."""

    def __init__(self, hook):
        self.hook, self.listeners, self.acks = hook, {}, {}

    def lead(self, name, act):
        act()

    def read(self, path):
        return None

    def publish(self, path, value):
        self.hook(path, value)

    def watch_children(self, path, call):
        self.listeners[path] = call

    def acknowledge(self, version, *names):
        path = f"acks/{version}"
        self.acks.setdefault(path, set()).update(names)
        self.listeners[path](sorted(self.acks[path]))

    def read_below(self, path):
        return {name: {"said": name} for name in self.acks.get(path, ())}


@pytest.fixture
def migrate():
    """Run a migration of two steps; ``hook`` also gets the nodes and the wishes."""

    def run(hook):
        wishes = [Wish(0.0, lambda current: (FIRST, SECOND))]
        nodes = Nodes(lambda path, value: hook(nodes, wishes, path, value))
        coordinator = Coordinator(nodes, "test", START, 30.0)
        coordinator.serve(wishes, 0.0, lambda phase: None, lambda: None)
        coordinator.read_acknowledgements()
        return coordinator

    return run


def test_every_step_is_written_down_with_what_its_slots_measured(migrate):
    def hook(nodes, wishes, path, value):
        if path == "steps":
            for step in value["steps"]:
                nodes.acknowledge(step["version"], "prepared-0", "prepared-1")
        if path == "assignment":
            nodes.acknowledge(value["version"], *ENDS)

    coordinator = migrate(hook)
    begin = START.version
    assert [(version, record.step) for version, record in coordinator.records.items()] == [
        (begin + 1, FIRST),
        (begin + 2, SECOND),
    ]
    for record in coordinator.records.values():
        assert record.outcome == "complete"
        assert record.published_us <= record.switched_us <= record.completed_us
        assert {f"{phase}-{slot}" for phase, slot in record.acknowledgements} == set(ENDS)
        assert all(data == {"said": f"{phase}-{slot}"} for (phase, slot), data in record.acknowledgements.items())
    assert [assignment.version for assignment in coordinator.history] == [begin, begin + 1, begin + 2]


def test_a_step_ahead_that_is_taken_back_leaves_no_record(migrate):
    def hook(nodes, wishes, path, value):
        if path == "steps" and len(value["steps"]) == 1 and value["version"] == START.version + 1:
            nodes.acknowledge(value["version"], "prepared-0", "prepared-1")
        if path == "assignment":
            wishes.append(Wish(0.0, None))
        if path == "steps" and value["version"] == START.version + 2 and len(value["steps"]) == 1:
            nodes.acknowledge(START.version + 1, *ENDS)

    coordinator = migrate(hook)
    assert [(version, record.outcome) for version, record in coordinator.records.items()] == [
        (START.version + 1, "complete")
    ]
    assert coordinator.troubles == ["1 steps were taken back before they had begun"]
    assert coordinator.assignment == Assignment(START.version + 1, (1, 0, 1, 1))
