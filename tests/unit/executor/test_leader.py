"""The coordinator's shell over nodes in memory: what it writes down of steps. With ZooKeeper: tests/integration."""

import pytest

from keyshift.executor.leader import Coordinator, Wish
from keyshift.keys import Assignment, Mode, Move, SlotId, Step, UnitId

START = Assignment.contiguous(4, 2)
FIRST, SECOND = (Step((Move(UnitId(unit), SlotId(0), SlotId(1)),)) for unit in (0, 1))
PAUSING = Step(FIRST.moves, Mode(gate="router"))
ENDS = ("installed-1", "prepared-0", "prepared-1", "released-0")


class Nodes:
    """``hook(path, value)`` is called after each publication."""

    def __init__(self, hook):
        self.hook, self.listeners, self.acks, self.values = hook, {}, {}, {}

    def lead(self, name, act):
        act()

    def read(self, path):
        return self.values.get(path)

    def require(self, path):
        return self.values[path]

    def publish(self, path, value):
        self.values[path] = value
        self.hook(path, value)

    def watch_children(self, path, call):
        self.listeners[path] = call
        call(sorted(self.acks.get(path, ())))

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


class Died(Exception):
    pass


def prepared(nodes, value):
    """The slots prepare all steps that are published."""
    for step in value["steps"]:
        nodes.acknowledge(step["version"], "prepared-0", "prepared-1")


def lead(nodes, *requests, deadline_s=30.0):
    """One coordinator, with a migration for each of ``requests``, asked for at once."""
    coordinator = Coordinator(nodes, "test", START, deadline_s)
    wishes = [Wish(0.0, lambda current, steps=steps: steps) for steps in requests]
    coordinator.serve(wishes, 0.0, lambda phase: None, lambda: None)
    return coordinator


@pytest.mark.parametrize("replaced", [False, True])
def test_steps_that_were_dropped_are_not_done_by_who_takes_over(replaced):
    """The first coordinator dies as soon as it has said so: the first step is late, or another request came instead."""
    done = START.version + 1

    def hook(path, value):
        if path == "assignment" and replaced:
            wishes.append(Wish(0.0, lambda current: (), replace=True))
        if path == "steps" and value["version"] == done:
            prepared(nodes, value)
        if path == "steps" and value["version"] > done and len(value["steps"]) == 1:
            raise Died

    nodes = Nodes(hook)
    nodes.values["assignment"] = START.to_json() | {"paused": []}
    wishes = [Wish(0.0, lambda current: (FIRST, SECOND))]
    with pytest.raises(Died):
        Coordinator(nodes, "one", START, 0.05).serve(wishes, 0.0, lambda phase: None, lambda: None)
    nodes.hook = lambda path, value: None
    nodes.acknowledge(done, *ENDS)
    coordinator = lead(nodes)
    assert coordinator.assignment == Assignment(done, (1, 0, 1, 1))
    assert [(version, record.outcome) for version, record in coordinator.records.items()] == [(done, "complete")]


def test_who_takes_over_does_what_was_to_come():
    def die(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment":
            raise Died

    def finish(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment":
            nodes.acknowledge(value["version"], *ENDS)

    nodes = Nodes(die)
    nodes.values["assignment"] = START.to_json() | {"paused": []}
    with pytest.raises(Died):
        lead(nodes, (FIRST, SECOND))
    nodes.hook = finish
    nodes.acknowledge(START.version + 1, *ENDS)
    assert lead(nodes).assignment == Assignment(START.version + 2, (1, 1, 1, 1))


def test_no_router_keeps_anything_back_for_a_step_that_is_late_when_nobody_leads_any_more():
    def hook(path, value):
        if path == "steps":
            prepared(nodes, value)

    nodes = Nodes(hook)
    coordinator = lead(nodes, (PAUSING,), deadline_s=0.05)
    assert coordinator.records[START.version + 1].outcome == "late"
    assert nodes.values["assignment"] == coordinator.assignment.to_json() | {"paused": []}


def test_what_was_dropped_because_a_step_was_late_is_told():
    def hook(path, value):
        if path == "steps" and value["version"] == START.version + 1:
            prepared(nodes, value)

    nodes = Nodes(hook)
    coordinator = lead(nodes, (FIRST, SECOND), (SECOND,), deadline_s=0.05)
    (trouble,) = coordinator.troubles
    assert "goes forward" in trouble
    assert "1 steps and 1 requests for a migration behind it were dropped" in trouble
