"""The coordinator's shell over nodes in memory: what it writes down of steps. With ZooKeeper: tests/integration."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_job import CONFIG

from keyshift.driver import leader as module
from keyshift.driver.agreement import Agreement, MemberSay
from keyshift.driver.appointments import Appointments
from keyshift.driver.leader import Coordinator, CoordinatorDied
from keyshift.driver.step_log import StepLog
from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import Assignment, Move, SlotId, Step, UnitId
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import UnitCame, UnitLeft, UnitsCame, UnitsLeft
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.waiting import wait_until
from keyshift.wire.faults import parse
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ASSIGNMENT, ROUTERS, STEPS, PhaseDone, acks

START = Assignment.contiguous(4, 2)
FIRST, SECOND = (Step((Move(UnitId(unit), SlotId(0), SlotId(1)),)) for unit in (0, 1))
BACK = Step((Move(UnitId(0), SlotId(1), SlotId(0)),))
CAME, LEFT = UnitsCame((UnitCame(0, 1, 2),), 3), UnitsLeft((UnitLeft(0, 10, 1, 2),))
SAID = dict.fromkeys(("prepared", "captured"), PhaseDone(1)) | {"installed": CAME, "released": LEFT}


class Died(Exception):
    pass


class Nodes(MemoryCoordination):
    """Whoever publishes something calls ``before``, and then ``after``."""

    def __init__(self, after=lambda path, value: None):
        super().__init__(Memory())
        self.before = self.after = lambda path, value: None
        self.begin()
        self.publish(ASSIGNMENT, PublishAssignment(START))
        self.after = after

    def publish(self, node, value):
        self.before(node.path, value)
        super().publish(node, value)
        self.after(node.path, value)

    def say(self, version, *names):
        for name in names:
            self.acknowledge(acks(version)[name], SAID[name.split("-")[0]])

    def prepare(self, path, value):
        """The slots prepare all steps that are published."""
        if path == "steps":
            for version, _ in value.steps:
                self.say(version, "prepared-0", "prepared-1")

    def end(self, version):
        """They have made the step."""
        moves = dict(self.read(STEPS).steps)[version].moves
        done = [(f"released-{move.source}", f"installed-{move.destination}") for move in moves]
        self.say(version, *(name for names in done for name in names))

    def carry_out(self, path, value):
        """They prepare and make all that is published."""
        self.prepare(path, value)
        if path == "assignment" and value.snapshot:
            self.say(value.assignment.version, "captured-0", "captured-1")
        elif path == "assignment":
            self.end(value.assignment.version)

    def dies_before(self, path, when=lambda value: True):
        """Whoever leads does not live to publish this."""

        def before(published, value):
            if published == path and when(value):
                raise Died

        self.before = before

    def goes_on(self):
        """Nobody dies any more, and all is carried out."""
        self.before, self.after = (lambda path, value: None), self.carry_out


def coordinator(nodes, before=None, deadline_s=30.0, **heard):
    made = Coordinator(nodes, "test", before.assignment if before else START, deadline_s, 2, **heard)
    if before:
        made.inherit(before)
    return made


def lead(coordinator, *requests):
    """Until nothing is under way any more; ``requests`` are the steps of migrations, asked for at once."""

    def look():
        if not coordinator.busy:
            coordinator.end()

    for steps in requests:
        coordinator.request(lambda current, steps=steps: steps)
    coordinator.lead(look)
    return coordinator


def lead_until_death(coordinator, *requests, how=Died):
    with pytest.raises(how):
        lead(coordinator, *requests)
    return coordinator


def steps_of(coordinator):
    return [record.step for record in coordinator.log.records.values()]


def outcomes_of(coordinator):
    return {version: record.outcome for version, record in coordinator.log.records.items()}


def test_every_step_is_written_down_with_what_its_slots_measured():
    nodes = Nodes()
    nodes.goes_on()
    leader = lead(coordinator(nodes), (FIRST, SECOND))
    leader.log.read_acknowledgements(nodes)
    versions = [START.version + 1, START.version + 2]
    assert outcomes_of(leader) == dict.fromkeys(versions, "complete")
    assert steps_of(leader) == [FIRST, SECOND]
    for record in leader.log.records.values():
        assert record.published_us <= record.switched_us <= record.completed_us
        assert record.released == {0: LEFT} and record.installed == {1: CAME}
    assert [assignment.version for assignment in leader.log.history] == [START.version, *versions]


def test_what_slots_say_of_a_step_is_read_until_all_of_them_have_and_then_no_more():
    """An attempt may have thousands of steps, and another one waits until it has ended."""
    nodes, log, version = Nodes(), StepLog(START), START.version + 1
    log.published(version, [(version, FIRST)], 5)
    nodes.say(version, "released-0")
    log.read_acknowledgements(nodes)
    record = log.records[version]
    assert (record.released, record.installed) == ({0: LEFT}, {})
    nodes.say(version, "installed-1")
    log.read_acknowledgements(nodes, under_way=False)
    assert record.installed == {}, "it is"
    log.ended(version, "complete", 9)
    log.read_acknowledgements(nodes, under_way=False)
    assert (record.released, record.installed, log.told_by_all) == ({0: LEFT}, {1: CAME}, {version})
    nodes.close()
    log.read_acknowledgements(nodes)


def test_of_a_step_that_has_ended_nothing_is_awaited_any_more():
    """An attempt may last for days, and have a snapshot every few seconds."""
    nodes = Nodes()
    nodes.goes_on()
    leader = coordinator(nodes)
    leader.snapshot("one")
    lead(leader, (FIRST, SECOND), (BACK,))
    assert set(outcomes_of(leader).values()) == {"complete"} and len(leader.log.history) == 5
    assert nodes.watches == [] and not leader.log.late_snapshots


def test_a_step_ahead_that_is_taken_back_leaves_no_record():
    first = START.version + 1

    def after(path, value):
        if path == "steps" and len(value.steps) == 1 and value.version == first:
            nodes.prepare(path, value)
        if path == "assignment":
            leader.request(None)
        if path == "steps" and value.version == first + 1 and len(value.steps) == 1:
            nodes.say(first, "released-0", "installed-1")

    nodes = Nodes(after)
    leader = coordinator(nodes)
    lead(leader, (FIRST, SECOND))
    assert outcomes_of(leader) == {first: "complete"}
    assert leader.log.notes == ["1 steps were taken back before they had begun"]
    assert leader.assignment == Assignment(first, (1, 0, 1, 1))


@pytest.mark.parametrize("replaced", [False, True])
def test_steps_that_were_dropped_are_not_done_by_who_takes_over(replaced):
    """The first coordinator dies as soon as it has said so: the first step is late, or another request came instead."""
    done = START.version + 1

    def after(path, value):
        if path == "assignment" and replaced:
            dying.request(lambda current: (), replace=True)
        if path == "steps" and value.version == done:
            nodes.prepare(path, value)
        if path == "steps" and value.version > done and len(value.steps) == 1:
            raise Died

    nodes = Nodes(after)
    dying = coordinator(nodes, deadline_s=0.05)
    lead_until_death(dying, (FIRST, SECOND))
    nodes.after = lambda path, value: None
    nodes.end(done)
    successor = lead(coordinator(nodes))
    assert successor.assignment == Assignment(done, (1, 0, 1, 1))
    assert outcomes_of(successor) == {done: "complete"}


@pytest.mark.parametrize("phase", ["prepare", "switch"])
def test_a_successor_inherits_the_records_and_what_was_asked_for_and_not_begun(phase):
    """The first coordinator dies in a phase of its first step, with one request waiting and one in its inbox."""
    [kill] = parse(f"kill:coordinator@{phase}")

    def at_phase(reached):
        if reached == phase:
            first.request(lambda current: (BACK,))
            first.fail(kill)

    nodes = Nodes()
    nodes.goes_on()
    first = coordinator(nodes, at_phase=at_phase)
    lead_until_death(first, (FIRST,), (SECOND,), how=CoordinatorDied)
    assert first.busy, "until there is a successor"
    assert nodes.read(ASSIGNMENT).assignment.version == START.version
    (record,) = first.log.records.values()
    second = lead(coordinator(nodes, first))
    assert steps_of(second) == [FIRST, SECOND, BACK]
    assert second.log.records[START.version + 1] is record
    assert set(outcomes_of(second).values()) == {"complete"}
    assert [assignment.version for assignment in second.log.history] == [START.version + n for n in range(4)]


def test_a_step_that_ended_before_its_leader_died_keeps_its_record():
    """It is still among the steps that were published last, and the next leader publishes others."""
    ended, begun = START.version + 1, START.version + 2

    def after(path, value):
        if path == "assignment" and value.assignment.version == begun:
            raise Died
        nodes.carry_out(path, value)

    nodes = Nodes(after)
    first = lead_until_death(coordinator(nodes), (FIRST, SECOND, BACK))
    assert [version for version, _ in nodes.read(STEPS).steps] == [ended, begun]
    nodes.goes_on()
    nodes.end(begun)
    second = lead(coordinator(nodes, first))
    assert outcomes_of(second) == dict.fromkeys([ended, begun, begun + 1], "complete")


def test_a_fault_that_has_not_hit_who_died_hits_the_successor_once():
    [kill], nodes = parse("kill:coordinator@4"), Nodes()
    first = coordinator(nodes)
    for _ in range(2):
        first.fail(kill)
    lead_until_death(first, how=CoordinatorDied)
    second = lead_until_death(coordinator(nodes, first), how=CoordinatorDied)
    lead(coordinator(nodes, second))


def test_a_leader_that_is_stopped_goes_on_after_its_time():
    leader, begin = coordinator(Nodes()), time.monotonic()
    leader.fail(*parse("stop:coordinator@4:0.5s"))
    lead(leader)
    assert time.monotonic() - begin >= 0.5


def test_a_leader_that_is_stopped_can_be_ended():
    leader, stands = coordinator(Nodes()), threading.Event()

    def look():
        stands.set()
        leader.fail(*parse("stop:coordinator@4:600s"))

    leading = threading.Thread(target=leader.lead, args=(look,), daemon=True)
    leading.start()
    assert stands.wait(60)
    leader.end()
    leading.join(60)
    assert not leading.is_alive()


@pytest.mark.parametrize(("others", "ends"), [([(1, 0)], True), ([], False)])
def test_a_replica_that_is_late_with_a_step_ends_if_there_are_others(others, ends):
    nodes = Nodes()
    agrees = MemberSay(Agreement(lambda: [(0, 0), *others]), (0, 0))
    config = replace(CONFIG, ordering="live_robin", heartbeat_us=20_000)
    leader = coordinator(nodes, deadline_s=0.05, appointments=Appointments(config, nodes, agrees))
    if ends:
        with pytest.raises(MigrationFailed, match=r"late in phase prepare \(slot 0, slot 1\), and other repl"):
            lead(leader, (FIRST,))
    else:
        assert outcomes_of(lead(leader, (FIRST,))) == {START.version + 1: "rolled back"}


def test_replicas_that_have_used_different_versions_switch_together_behind_the_last_one_of_all():
    """The first has taken a step back; then the second has come back, with nothing but the assignment of the first."""
    living, used, leaders = [(0, 0)], START.version + 1, []
    agreement = Agreement(lambda: living)

    def begin(member):
        def after(path, value):
            if path == "steps" and value.steps == ((used, SECOND),):
                leader.request(None)
            elif path != "assignment":
                nodes.prepare(path, value)
            elif value.appointment.holds:
                nodes.end(value.assignment.version)

        nodes = Nodes()
        for router in range(config.routers):
            nodes.publish(ROUTERS[router], 0)
        nodes.after = after
        leader = coordinator(nodes, appointments=Appointments(config, nodes, MemberSay(agreement, member)))
        leaders.append(leader)
        return leader

    config = replace(CONFIG, ordering="live_robin", heartbeat_us=20_000)
    lead(begin((0, 0)), (SECOND,))
    living.append((1, 1))
    begin((1, 1))
    assert [(each.assignment, each.log.used) for each in leaders] == [(START, used), (START, START.version)]
    for each in leaders:
        each.request(lambda current: (FIRST,), behind=used)
    threads = [threading.Thread(target=lead, args=(each,), daemon=True) for each in leaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "each waits for the other one at a switch of its own"
    assert [each.assignment for each in leaders] == [Assignment(used + 1, (1, 0, 1, 1))] * 2


def test_the_time_in_which_others_agree_on_a_switch_is_not_that_of_the_step(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def after(path, value):
        nodes.prepare(path, value)
        if path == "assignment":
            clock[0] += 25

    def look():
        if leader.assignment.version == START.version:
            return
        if clock[0] < 50:
            clock[0] += 29  # behind this look it is seen who is late
        elif leader.busy:
            nodes.end(START.version + 1)
        else:
            leader.end()

    nodes = Nodes(after)
    leader = coordinator(nodes)
    leader.request(lambda current: (FIRST,))
    leader.lead(look)
    assert outcomes_of(leader) == {START.version + 1: "complete"}


def test_a_migration_is_under_way_until_it_is_told_that_its_step_was_late_and_what_was_dropped_because_of_that():
    """Whoever sees that it is over asks how it ended, and why."""
    late, seen = START.version + 1, []

    def after(path, value):
        if path == "steps" and value.version == late:
            nodes.prepare(path, value)
        if path == "steps" and leader.late:
            seen.append(leader.busy)

    nodes = Nodes(after)
    leader = coordinator(nodes, deadline_s=0.05)
    lead(leader, (FIRST, SECOND), (SECOND,))
    assert seen == [True]
    assert leader.late and outcomes_of(leader) == {late: "late"}
    (trouble,) = leader.log.notes
    assert "goes forward" in trouble
    assert "1 steps and 1 requests for a migration behind it were dropped" in trouble


def test_a_plan_that_takes_long_does_not_hold_the_coordinator():
    """A step that is late ends, and its end is written down, while the plan of the next request is made."""
    nodes = Nodes()
    nodes.after = nodes.prepare
    leader, late, seen = coordinator(nodes, deadline_s=0.05), START.version + 1, []

    def plan(current):
        seen.append(outcomes_of(leader)[late])
        nodes.end(late)
        nodes.goes_on()
        leader.snapshot("meanwhile")
        seen.append(wait_until(lambda: "meanwhile" in leader.log.snapshots, 60, 0.01))
        return (SECOND,)

    def look():
        if leader.log.notes and not seen:
            leader.request(plan)
        elif seen and not leader.busy:
            leader.end()

    leader.request(lambda current: (FIRST,))
    leader.lead(look)
    assert seen == ["late", True]
    assert leader.assignment.owner == (1, 1, 1, 1)


def test_requests_of_several_threads_are_made_one_after_the_other():
    nodes, seen = Nodes(), []
    nodes.goes_on()
    leader = coordinator(nodes)

    def swap(current):
        """Every unit to the other slot, from wherever it is by now."""
        seen.append(current.version)
        moves = (Move(UnitId(unit), slot, SlotId(1 - slot)) for unit, slot in enumerate(current.owner))
        return [Step((move,)) for move in moves]

    threads = [threading.Thread(target=leader.request, args=(swap,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    lead(leader)
    for thread in threads:
        thread.join(60)
    lead(leader)
    assert seen == [START.version + 4 * n for n in range(4)]
    assert leader.assignment.owner == START.owner
    assert not leader.log.notes


@pytest.mark.parametrize("at", ["plan", "steps"])
def test_a_migration_of_which_its_leader_published_no_step_is_its_successors(at):
    """Once: whether its plan was written down or not, and through a second death. Another plan came before."""
    nodes, planned = Nodes(), []
    nodes.goes_on()
    first = lead(coordinator(nodes), (FIRST,))
    nodes.dies_before(at)
    first.request(lambda current: planned.append(current) or (SECOND,))
    first.request(lambda current: (BACK,))
    lead_until_death(first)
    second = lead_until_death(coordinator(nodes, first))
    nodes.goes_on()
    assert steps_of(lead(coordinator(nodes, second))) == [FIRST, SECOND, BACK]
    assert len(planned) == (3 if at == "plan" else 1)


def test_a_cancellation_that_its_leader_did_not_live_to_publish_is_its_successors():
    def after(path, value):
        nodes.prepare(path, value)
        if path == "assignment":
            first.request(None)

    nodes = Nodes(after)
    nodes.dies_before("steps", lambda value: value.rest == 0 and len(value.steps) == 1)
    first = coordinator(nodes)
    lead_until_death(first, (FIRST, SECOND, BACK))
    nodes.goes_on()
    nodes.end(START.version + 1)
    assert lead(coordinator(nodes, first)).assignment == Assignment(START.version + 1, (1, 0, 1, 1))


def test_a_snapshot_is_known_though_its_leader_died_when_it_was_published():
    def after(path, value):
        nodes.prepare(path, value)
        if path == "assignment" and value.snapshot:
            raise Died

    nodes = Nodes(after)
    leader = coordinator(nodes)
    leader.snapshot("one")
    lead_until_death(leader)
    version = leader.log.snapshots["one"]
    assert nodes.read(ASSIGNMENT).assignment.version == version
    assert leader.log.assignment_of(version) == Assignment(version, START.owner)


def test_a_phase_does_not_say_that_something_has_migrated_if_nothing_has():
    nodes, said = Nodes(), []
    nodes.goes_on()
    lead(coordinator(nodes, say=said.append), ())
    assert said == [Doing(Activity.PLANNING), Doing(Activity.STEADY)]
    lead(coordinator(nodes, say=said.append), (FIRST,))
    assert said[-1] == Doing(Activity.MIGRATED)
    nodes.publish(STEPS, replace(nodes.read(STEPS), version=START.version + 2, steps=(), rest=0))  # behind a snapshot
    said.clear()
    lead(coordinator(nodes, say=said.append))
    assert Doing(Activity.MIGRATED) not in said


def test_what_a_leader_did_not_live_to_publish_is_no_record_of_what_comes_instead():
    """It is a snapshot's version first, in which nothing moves: whoever wants it sees that nobody has begun it."""
    nodes = Nodes()
    nodes.dies_before("steps")
    first = coordinator(nodes)
    first.snapshot("instead")
    lead_until_death(first)
    assert not first.log.snapshots
    nodes.goes_on()
    second = lead(coordinator(nodes, first), (FIRST,))
    assert not second.log.snapshots
    assert list(second.log.records) == [START.version + 1]
