"""The coordinator's shell over nodes in memory: what it writes down of steps. With ZooKeeper: tests/integration."""

import threading
from dataclasses import replace

import pytest

from keyshift.driver.leader import Coordinator, CoordinatorDied
from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, UnitId
from keyshift.model.notes import Doing, Phase
from keyshift.model.records import UnitCame, UnitLeft, UnitsCame, UnitsLeft
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.waiting import wait_until
from keyshift.wire.faults import parse
from keyshift.wire.nodes import PhaseDone, acks

START = Assignment.contiguous(4, 2)
FIRST, SECOND = (Step((Move(UnitId(unit), SlotId(0), SlotId(1)),)) for unit in (0, 1))
BACK = Step((Move(UnitId(0), SlotId(1), SlotId(0)),))
PAUSING = Step(FIRST.moves, Mode(gate="router"))
SAID = {
    "installed-1": UnitsCame((UnitCame(0, 1, 2),), 3),
    "prepared-0": PhaseDone(1),
    "prepared-1": PhaseDone(1),
    "released-0": UnitsLeft((UnitLeft(0, 10, 1, 2),)),
}
ENDS = tuple(SAID)


class Nodes:
    """``hook(path, value)`` is called after each publication. ``values``: by path."""

    def __init__(self, hook):
        self.hook, self.listeners, self.acks, self.values = hook, {}, {}, {}

    def lead(self, name, act):
        act()

    def read(self, node):
        return self.values.get(node.path)

    def require(self, node):
        return self.values[node.path]

    def publish(self, node, value):
        self.values[node.path] = value
        self.hook(node.path, value)

    def watch_children(self, folder, call):
        self.listeners[folder.path] = call
        call(sorted(self.acks.get(folder.path, ())))

    def acknowledge(self, version, *names):
        path = acks(version).path
        self.acks.setdefault(path, set()).update(names)
        self.listeners[path](sorted(self.acks[path]))

    def read_below(self, folder):
        return {name: SAID[name] for name in self.acks.get(folder.path, ())}


def lead(coordinator, *requests):
    """Until nothing is under way any more; ``requests`` are the steps of migrations, asked for at once."""

    def look():
        if not coordinator.busy:
            coordinator.end()

    for steps in requests:
        coordinator.request(lambda current, steps=steps: steps)
    coordinator.lead(look)
    return coordinator


@pytest.fixture
def migrate():
    """Run a migration of two steps; ``hook`` also gets the nodes and the coordinator."""

    def run(hook):
        nodes = Nodes(lambda path, value: hook(nodes, coordinator, path, value))
        coordinator = Coordinator(nodes, "test", START, 30.0, 2)
        lead(coordinator, (FIRST, SECOND)).log.read_acknowledgements(nodes)
        return coordinator

    return run


def test_every_step_is_written_down_with_what_its_slots_measured(migrate):
    def hook(nodes, coordinator, path, value):
        if path == "steps":
            for version, _ in value.steps:
                nodes.acknowledge(version, "prepared-0", "prepared-1")
        if path == "assignment":
            nodes.acknowledge(value.assignment.version, *ENDS)

    coordinator = migrate(hook)
    begin = START.version
    assert [(version, record.step) for version, record in coordinator.log.records.items()] == [
        (begin + 1, FIRST),
        (begin + 2, SECOND),
    ]
    for record in coordinator.log.records.values():
        assert record.outcome == "complete"
        assert record.published_us <= record.switched_us <= record.completed_us
        assert record.released == {0: SAID["released-0"]} and record.installed == {1: SAID["installed-1"]}
    assert [assignment.version for assignment in coordinator.log.history] == [begin, begin + 1, begin + 2]


def test_a_step_ahead_that_is_taken_back_leaves_no_record(migrate):
    def hook(nodes, coordinator, path, value):
        if path == "steps" and len(value.steps) == 1 and value.version == START.version + 1:
            nodes.acknowledge(value.version, "prepared-0", "prepared-1")
        if path == "assignment":
            coordinator.request(None)
        if path == "steps" and value.version == START.version + 2 and len(value.steps) == 1:
            nodes.acknowledge(START.version + 1, *ENDS)

    coordinator = migrate(hook)
    assert [(version, record.outcome) for version, record in coordinator.log.records.items()] == [
        (START.version + 1, "complete")
    ]
    assert coordinator.log.notes == ["1 steps were taken back before they had begun"]
    assert coordinator.assignment == Assignment(START.version + 1, (1, 0, 1, 1))


class Died(Exception):
    pass


def prepared(nodes, value):
    """The slots prepare all steps that are published."""
    for version, _ in value.steps:
        nodes.acknowledge(version, "prepared-0", "prepared-1")


@pytest.mark.parametrize("replaced", [False, True])
def test_steps_that_were_dropped_are_not_done_by_who_takes_over(replaced):
    """The first coordinator dies as soon as it has said so: the first step is late, or another request came instead."""
    done = START.version + 1

    def hook(path, value):
        if path == "assignment" and replaced:
            dying.request(lambda current: (), replace=True)
        if path == "steps" and value.version == done:
            prepared(nodes, value)
        if path == "steps" and value.version > done and len(value.steps) == 1:
            raise Died

    nodes = Nodes(hook)
    nodes.values["assignment"] = PublishAssignment(START)
    dying = Coordinator(nodes, "one", START, 0.05, 2)
    with pytest.raises(Died):
        lead(dying, (FIRST, SECOND))
    nodes.hook = lambda path, value: None
    nodes.acknowledge(done, *ENDS)
    coordinator = lead(Coordinator(nodes, "two", START, 30.0, 2))
    assert coordinator.assignment == Assignment(done, (1, 0, 1, 1))
    assert [(version, record.outcome) for version, record in coordinator.log.records.items()] == [(done, "complete")]


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
            nodes.acknowledge(value.assignment.version, *ENDS)

    nodes = Nodes(die)
    nodes.values["assignment"] = PublishAssignment(START)
    with pytest.raises(Died):
        lead(Coordinator(nodes, "one", START, 30.0, 2), (FIRST, SECOND))
    nodes.hook = finish
    nodes.acknowledge(START.version + 1, *ENDS)
    assert lead(Coordinator(nodes, "two", START, 30.0, 2)).assignment == Assignment(START.version + 2, (1, 1, 1, 1))


@pytest.mark.parametrize("phase", ["prepare", "switch"])
def test_a_successor_inherits_the_records_and_what_was_asked_for_and_not_begun(phase):
    """The first coordinator dies in a phase of its first step, with one request waiting and one in its inbox."""
    [kill] = parse(f"kill:coordinator@{phase}")

    def hook(path, value):
        for version, _ in value.steps if path == "steps" else ():
            nodes.acknowledge(version, "prepared-0", "prepared-1")
        if path == "assignment":
            for move in migrations[value.assignment.version - START.version - 1].moves:
                done = f"installed-{move.destination}", f"released-{move.source}"
                nodes.acknowledge(value.assignment.version, *done)

    def at_phase(reached):
        if reached == phase:
            first.request(lambda current: (BACK,))
            first.fail(kill)

    migrations = [FIRST, SECOND, BACK]
    nodes = Nodes(hook)
    nodes.values["assignment"] = PublishAssignment(START)
    first = Coordinator(nodes, "first", START, 30.0, 2, at_phase=at_phase)
    with pytest.raises(CoordinatorDied):
        lead(first, (FIRST,), (SECOND,))
    assert first.busy, "until there is a successor"
    assert nodes.values["assignment"].assignment.version == START.version
    (record,) = first.log.records.values()
    second = Coordinator(nodes, "second", first.assignment, 30.0, 2)
    second.inherit(first)
    lead(second)
    assert [made.step for made in second.log.records.values()] == migrations
    assert second.log.records[START.version + 1] is record
    assert {made.outcome for made in second.log.records.values()} == {"complete"}
    versions = [assignment.version for assignment in second.log.history]
    assert versions == [START.version + n for n in range(4)]


def test_a_step_that_ended_before_its_leader_died_keeps_its_record():
    """It is still among the steps that were published last, and the next leader publishes others."""
    ended, begun = START.version + 1, START.version + 2

    def hook(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment":
            if value.assignment.version == begun:
                raise Died
            nodes.acknowledge(value.assignment.version, *ENDS, "installed-0", "released-1")

    nodes = Nodes(hook)
    nodes.values["assignment"] = PublishAssignment(START)
    first = Coordinator(nodes, "first", START, 30.0, 2)
    with pytest.raises(Died):
        lead(first, (FIRST, SECOND, BACK))
    assert [version for version, _ in nodes.values["steps"].steps] == [ended, begun]
    second = Coordinator(nodes, "second", START, 30.0, 2)
    second.inherit(first)
    nodes.acknowledge(begun, *ENDS)
    lead(second)
    outcomes = {version: record.outcome for version, record in second.log.records.items()}
    assert outcomes == dict.fromkeys([ended, begun, begun + 1], "complete")


def test_a_leader_that_is_stopped_goes_on_after_its_time(monkeypatch):
    slept = []
    monkeypatch.setattr("keyshift.driver.leader.time.sleep", slept.append)
    coordinator = Coordinator(Nodes(lambda *_: None), "test", START, 30.0, 2)
    coordinator.fail(*parse("stop:coordinator@4:3s"))
    lead(coordinator)
    assert slept == [3.0]


def test_no_router_keeps_anything_back_for_a_step_that_is_late_when_nobody_leads_any_more():
    def hook(path, value):
        if path == "steps":
            prepared(nodes, value)

    nodes = Nodes(hook)
    coordinator = lead(Coordinator(nodes, "test", START, 0.05, 2), (PAUSING,))
    assert coordinator.log.records[START.version + 1].outcome == "late"
    assert nodes.values["assignment"] == PublishAssignment(coordinator.assignment)


def test_what_was_dropped_because_a_step_was_late_is_told():
    def hook(path, value):
        if path == "steps" and value.version == START.version + 1:
            prepared(nodes, value)

    nodes = Nodes(hook)
    coordinator = lead(Coordinator(nodes, "test", START, 0.05, 2), (FIRST, SECOND), (SECOND,))
    (trouble,) = coordinator.log.notes
    assert "goes forward" in trouble
    assert "1 steps and 1 requests for a migration behind it were dropped" in trouble


def finish(nodes, ends=ENDS):
    """The hook with which every step is prepared and made."""

    def hook(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment":
            nodes.acknowledge(value.assignment.version, *ends)

    return hook


def test_a_plan_that_takes_long_does_not_hold_the_coordinator():
    """A step that is late ends, and its end is written down, while the plan of the next request is made."""
    nodes = Nodes(lambda path, value: prepared(nodes, value) if path == "steps" else None)
    coordinator = Coordinator(nodes, "test", START, 0.05, 2)
    seen = []

    def plan(current):
        seen.append(coordinator.log.records[START.version + 1].outcome)
        nodes.hook = finish(nodes)
        nodes.acknowledge(START.version + 1, *ENDS)
        seen.append(wait_until(lambda: not coordinator._under_way, 60, 0.01))
        return (SECOND,)

    def look():
        if coordinator.log.notes and not seen:
            coordinator.request(plan)
        elif seen and not coordinator.busy:
            coordinator.end()

    coordinator.request(lambda current: (FIRST,))
    coordinator.lead(look)
    assert seen == ["late", True]
    assert coordinator.assignment.owner == (1, 1, 1, 1)


def test_a_plan_that_cannot_be_made_ends_the_lead():
    def impossible(current):
        raise Died

    coordinator = Coordinator(Nodes(lambda path, value: None), "test", START, 30.0, 2)
    coordinator.request(impossible)
    with pytest.raises(Died):
        lead(coordinator)


def test_requests_of_several_threads_are_made_one_after_the_other():
    nodes = Nodes(lambda path, value: None)
    nodes.hook = finish(nodes, (*ENDS, "installed-0", "released-1"))
    coordinator = Coordinator(nodes, "test", START, 30.0, 2)
    seen = []

    def swap(current):
        """Every unit to the other slot, from wherever it is by now."""
        seen.append(current.version)
        moves = (Move(UnitId(unit), slot, SlotId(1 - slot)) for unit, slot in enumerate(current.owner))
        return [Step((move,)) for move in moves]

    threads = [threading.Thread(target=coordinator.request, args=(swap,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    lead(coordinator)
    for thread in threads:
        thread.join(60)
    lead(coordinator)
    assert seen == [START.version + 4 * n for n in range(4)]
    assert coordinator.assignment.owner == START.owner
    assert not coordinator.log.notes


def test_a_snapshot_comes_in_the_middle_of_a_plan(migrate):
    def hook(nodes, coordinator, path, value):
        if path == "steps":
            if value.version == START.version + 1:
                coordinator.snapshot("in-the-middle")
            for version, _ in value.steps:
                nodes.acknowledge(version, "prepared-0", "prepared-1")
        if path == "assignment":
            nodes.acknowledge(value.assignment.version, *(("captured-0", "captured-1") if value.snapshot else ENDS))

    coordinator = migrate(hook)
    version = coordinator.log.snapshots["in-the-middle"]
    assert START.version < version < coordinator.assignment.version
    assert not coordinator.log.late_snapshots


@pytest.mark.parametrize("at", ["plan", "steps"])
def test_a_migration_of_which_its_leader_published_no_step_is_its_successors(at):
    """Once: whether its plan was written down or not."""

    def die(node, value):
        if node.path == at:
            raise Died
        publish(node, value)

    nodes = Nodes(lambda path, value: None)
    nodes.values["assignment"] = PublishAssignment(START)
    publish, nodes.publish = nodes.publish, die
    planned = []
    first = Coordinator(nodes, "first", START, 30.0, 2)
    first.request(lambda current: planned.append(current) or (FIRST, SECOND))
    first.request(lambda current: (BACK,))
    with pytest.raises(Died):
        lead(first)
    assert not first.log.records
    nodes.publish, nodes.hook = publish, finish(nodes, (*ENDS, "installed-0", "released-1"))
    second = Coordinator(nodes, "second", START, 30.0, 2)
    second.inherit(first)
    lead(second)
    assert [record.step for record in second.log.records.values()] == [FIRST, SECOND, BACK]
    assert len(planned) == (2 if at == "plan" else 1)


def test_a_plan_that_was_written_down_and_not_begun_is_inherited_through_a_second_death():
    nodes = Nodes(lambda path, value: None)
    nodes.values["assignment"] = PublishAssignment(START)
    publish = nodes.publish

    def die(node, value):
        if node.path == "steps":
            raise Died
        publish(node, value)

    nodes.publish, before = die, None
    for name in ("first", "second"):
        leader = Coordinator(nodes, name, START, 30.0, 2)
        if before is None:
            leader.request(lambda current: (FIRST,))
        else:
            leader.inherit(before)
        with pytest.raises(Died):
            lead(leader)
        before = leader
    nodes.publish, nodes.hook = publish, finish(nodes)
    third = Coordinator(nodes, "third", START, 30.0, 2)
    third.inherit(before)
    lead(third)
    assert [record.step for record in third.log.records.values()] == [FIRST]


def test_a_cancellation_that_its_leader_did_not_live_to_publish_is_its_successors():
    def hook(path, value):
        if path == "steps":
            if len(value.steps) == 1 and value.rest == 0:
                raise Died
            prepared(nodes, value)
        if path == "assignment":
            first.request(None)

    nodes = Nodes(hook)
    publish = nodes.publish

    def late(node, value):
        if node.path == "steps" and value.rest == 0 and len(value.steps) == 1:
            raise Died  # before it is there
        publish(node, value)

    nodes.publish = late
    nodes.values["assignment"] = PublishAssignment(START)
    first = Coordinator(nodes, "first", START, 30.0, 2)
    with pytest.raises(Died):
        lead(first, (FIRST, SECOND, BACK))
    nodes.publish, nodes.hook = publish, finish(nodes)
    second = Coordinator(nodes, "second", START, 30.0, 2)
    second.inherit(first)
    nodes.acknowledge(START.version + 1, *ENDS)
    lead(second)
    assert second.assignment == Assignment(START.version + 1, (1, 0, 1, 1))


def test_a_snapshot_is_known_though_its_leader_died_when_it_was_published():
    def die(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment" and value.snapshot:
            raise Died

    nodes = Nodes(die)
    nodes.values["assignment"] = PublishAssignment(START)
    leader = Coordinator(nodes, "first", START, 30.0, 2)
    leader.snapshot("one")
    with pytest.raises(Died):
        lead(leader)
    version = leader.log.snapshots["one"]
    assert nodes.values["assignment"].assignment.version == version
    assert leader.log.assignment_of(version) == Assignment(version, START.owner)


def test_a_phase_does_not_say_that_something_has_migrated_if_nothing_has():
    said = []
    nodes = Nodes(lambda path, value: None)
    nodes.hook = finish(nodes)
    nodes.values["assignment"] = PublishAssignment(START)
    lead(Coordinator(nodes, "test", START, 30.0, 2, said.append), ())
    assert said == [Doing(Phase.PLANNING), Doing(Phase.STEADY)]
    lead(Coordinator(nodes, "test", START, 30.0, 2, said.append), (FIRST,))
    assert said[-1] == Doing(Phase.MIGRATED)
    steps = nodes.values["steps"]
    nodes.values["steps"] = replace(steps, version=START.version + 2, steps=(), rest=0)  # behind a snapshot
    said.clear()
    lead(Coordinator(nodes, "successor", START, 30.0, 2, said.append))
    assert Doing(Phase.MIGRATED) not in said


def test_what_a_leader_did_not_live_to_publish_is_no_record_of_what_comes_instead():
    """It is a snapshot's version first, in which nothing moves."""

    def hook(path, value):
        if path == "steps":
            prepared(nodes, value)
        if path == "assignment":
            nodes.acknowledge(value.assignment.version, "captured-0", "captured-1", *ENDS)

    def die(node, value):
        if node.path == "steps":
            raise Died
        publish(node, value)

    nodes = Nodes(hook)
    nodes.values["assignment"] = PublishAssignment(START)
    publish, nodes.publish = nodes.publish, die
    first = Coordinator(nodes, "first", START, 30.0, 2)
    first.snapshot("instead")
    with pytest.raises(Died):
        lead(first)
    nodes.publish = publish
    second = Coordinator(nodes, "second", START, 30.0, 2)
    second.inherit(first)
    second.request(lambda current: (FIRST,))
    lead(second)
    assert not second.log.snapshots
    assert list(second.log.records) == [START.version + 1]


def test_a_snapshot_that_a_leader_did_not_live_to_publish_may_be_asked_for_again():
    def die(node, value):
        if node.path == "steps":
            raise Died

    nodes = Nodes(lambda path, value: None)
    nodes.publish = die
    first = Coordinator(nodes, "first", START, 30.0, 2)
    first.snapshot("lost")
    with pytest.raises(Died):
        lead(first)
    assert not first.log.snapshots, "whoever wants it sees by this that nobody has begun it"
