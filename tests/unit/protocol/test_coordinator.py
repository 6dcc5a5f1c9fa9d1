"""The coordinator alone, one sentence of the protocol at a time; how all behave together is in tests/property."""

from itertools import count

import pytest
from small_steps import assignment, step

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Mode, Step
from keyshift.protocol import CoordinatorMachine
from keyshift.protocol.coordinator import (
    Dropped,
    MigrationDone,
    PlanNext,
    PublishAssignment,
    PublishSteps,
    SnapshotLate,
    StepDone,
    StepLate,
)


def publish(version: int, *steps: tuple[int, Step]) -> PublishSteps:
    return PublishSteps(version, steps)


SWAP = step((0, 0, 1), (3, 1, 2))
BACK = step((0, 1, 0))
PAUSING = step((0, 0, 1), mode=Mode(gate="router"))


def coordinator(in_turns: bool = False) -> CoordinatorMachine:
    return CoordinatorMachine(assignment(7, 0, 0, 1, 1), deadline_ms=100, slots=3, in_turns=in_turns)


def switched(*steps: Step) -> CoordinatorMachine:
    machine = coordinator()
    machine.start(steps or (SWAP, BACK), now_ms=0)
    for slot in (0, 1, 2):
        machine.acknowledged("prepared", 8, slot, now_ms=10)
    assert machine.assignment.version == 8
    return machine


def finish(machine: CoordinatorMachine, now_ms: float = 20) -> list:
    """The effects of the last acknowledgement of SWAP."""
    for phase, slot in (("installed", 1), ("released", 0), ("released", 1)):
        assert machine.acknowledged(phase, 8, slot, now_ms) == []
    return machine.acknowledged("installed", 8, 2, now_ms)


def test_a_step_is_prepared_published_and_acknowledged_before_the_next_switches():
    machine = coordinator()
    assert machine.start((SWAP, BACK), 0) == [publish(8, (8, SWAP))]
    assert machine.busy
    assert machine.acknowledged("prepared", 8, 0, 1) == []
    assert machine.acknowledged("prepared", 8, 2, 1) == []
    assert machine.assignment.version == 7, "nothing is switched before all are prepared"
    assert machine.acknowledged("prepared", 8, 1, 1) == [
        PublishAssignment(assignment(8, 1, 0, 1, 2)),
        publish(9, (8, SWAP), (9, BACK)),
    ]
    assert machine.assignment == assignment(8, 1, 0, 1, 2)
    assert finish(machine) == [StepDone(8)]
    machine.acknowledged("prepared", 9, 0, 30)
    assert machine.acknowledged("prepared", 9, 1, 30) == [PublishAssignment(assignment(9, 0, 0, 1, 2))]
    assert machine.acknowledged("released", 9, 1, 40) == []
    assert machine.acknowledged("installed", 9, 0, 40) == [StepDone(9), MigrationDone()]
    assert not machine.busy


def test_a_step_ahead_has_its_time_from_when_the_one_before_is_complete_and_before_that_no_state_moves_for_it():
    machine = switched()
    with pytest.raises(ProtocolViolation, match="slot 0 reports 'installed' before the switch to 9"):
        machine.acknowledged("installed", 9, 0, 11)
    finish(machine, now_ms=90)
    assert machine.tick(190) == []
    assert machine.tick(191) == [publish(9), StepLate(9, "prepare", (0, 1), rolled_back=True)]


def test_repeated_and_outdated_acknowledgements_change_nothing():
    machine = switched()
    for version, slot in ((8, 0), (8, 1), (7, 0), (6, 2)):
        assert machine.acknowledged("prepared", version, slot, 11) == []
    assert machine.acknowledged("installed", 7, 1, 11) == []
    for _ in range(2):
        assert machine.acknowledged("released", 8, 0, 12) == []
        assert machine.acknowledged("released", 8, 1, 12) == []
        assert machine.acknowledged("installed", 8, 1, 12) == []
    assert machine.acknowledged("installed", 8, 2, 12) == [StepDone(8)]
    assert machine.acknowledged("installed", 8, 2, 13) == []
    assert coordinator().acknowledged("prepared", 8, 0, 0) == [], "nothing is under way"


# -- deadlines ------------------------------------------------------------------------------------------------------


def test_a_step_that_is_not_prepared_in_time_is_rolled_back():
    machine = coordinator()
    machine.start((SWAP, BACK), 0)
    machine.acknowledged("prepared", 8, 1, 5)
    assert machine.tick(100) == [], "the deadline itself is still in time"
    failed = StepLate(8, "prepare", (0, 2), rolled_back=True, dropped=Dropped(1, 0))
    assert machine.tick(101) == [publish(8), failed]
    assert machine.assignment == assignment(7, 0, 0, 1, 1)
    assert not machine.busy
    assert machine.acknowledged("prepared", 8, 0, 102) == []
    assert machine.tick(1000) == []


def test_a_step_that_is_late_after_its_switch_has_failed_and_goes_forward():
    machine = switched()
    machine.acknowledged("released", 8, 0, 20)
    machine.acknowledged("installed", 8, 2, 20)
    assert machine.tick(110) == [], "the deadline is counted from the switch"
    taken_back = publish(9, (8, SWAP))
    failed = StepLate(8, "transfer", (1,), rolled_back=False, dropped=Dropped(1, 0))
    assert machine.tick(111) == [taken_back, failed]
    assert machine.assignment.version == 8
    assert not machine.busy and machine.late
    assert machine.tick(1000) == [], "said once"
    machine.acknowledged("released", 8, 1, 1001)
    assert machine.late, "a unit is still to come"
    assert machine.acknowledged("installed", 8, 1, 1001) == [StepDone(8)], "the steps after it were dropped"
    assert not machine.late
    assert machine.start((BACK,), 1002) == [publish(10, (10, BACK))]


def test_a_migration_after_a_late_step_begins_when_that_step_is_complete():
    machine = switched()
    machine.tick(111)
    later = step((1, 0, 2))
    (published,) = machine.start((later,), 200)
    assert published == publish(9, (8, SWAP)) and published.rest == (later,), "for whoever takes over"
    assert machine.busy
    with pytest.raises(ProtocolViolation, match="another is under way"):
        machine.start((later,), 201)
    assert finish(machine, 210) == [StepDone(8), publish(10, (10, later))]


def test_a_late_step_has_its_time_again_when_a_migration_waits_for_it():
    machine = switched()
    machine.tick(111)
    machine.start((BACK,), 200)
    assert machine.busy and not machine.late
    assert machine.tick(300) == []
    failed = StepLate(8, "transfer", (0, 1, 2), rolled_back=False, dropped=Dropped(1, 0))
    assert machine.tick(301) == [publish(9, (8, SWAP)), failed]
    assert finish(machine, 310) == [StepDone(8)], "what waited was dropped with it"


def test_a_late_step_resumes_at_once_what_it_had_paused():
    """When it ends, nobody may lead any more who would tell the routers, and no savepoint passes one that is paused."""
    machine = switched(PAUSING)
    resumed = PublishAssignment(assignment(8, 1, 0, 1, 1))
    assert machine.tick(111) == [resumed, StepLate(8, "transfer", (0, 1), rolled_back=False)]
    machine.acknowledged("released", 8, 0, 200)
    assert machine.acknowledged("installed", 8, 1, 200) == [StepDone(8), resumed]
    assert not machine.busy


# -- requests that overlap -------------------------------------------------------------------------------------------


def test_requests_during_a_migration_wait_their_turn_in_their_order():
    machine = switched(SWAP)
    assert machine.submit("one") == []
    assert machine.submit("two") == []
    assert finish(machine) == [StepDone(8), MigrationDone(), PlanNext("one")]
    assert machine.planned((), machine.assignment, 21) == [MigrationDone(), PlanNext("two")]
    assert machine.planned((), machine.assignment, 22) == [MigrationDone()]


def test_a_request_that_replaces_takes_over_the_steps_and_requests_that_have_not_begun():
    machine = switched(SWAP, BACK, SWAP)
    machine.submit("one")
    assert machine.submit("two", replace=True) == [publish(9, (8, SWAP))]
    assert finish(machine) == [StepDone(8), MigrationDone(Dropped(2, 1)), PlanNext("two")]
    assert machine.planned((), machine.assignment, 21) == [MigrationDone()], "what was dropped is told once"


def test_cancelling_finishes_a_step_that_has_switched_and_takes_back_the_rest():
    machine = switched(SWAP, BACK)
    machine.submit("one")
    assert machine.cancel(12) == [publish(9, (8, SWAP))]
    assert machine.busy
    assert machine.acknowledged("prepared", 9, 0, 13) == [], "the step ahead was taken back too"
    assert machine.acknowledged("prepared", 9, 1, 13) == []
    assert finish(machine) == [StepDone(8), MigrationDone(Dropped(1, 1))]
    assert machine.assignment == assignment(8, 1, 0, 1, 2)


def test_cancelling_rolls_back_a_step_that_has_not_switched():
    machine = coordinator()
    machine.start((SWAP, BACK), 0)
    machine.acknowledged("prepared", 8, 0, 1)
    assert machine.cancel(2) == [publish(8), MigrationDone(Dropped(2, 0))]
    assert machine.assignment == assignment(7, 0, 0, 1, 1)
    assert not machine.busy
    for slot in (1, 2):
        assert machine.acknowledged("prepared", 8, slot, 3) == []
    assert machine.start((SWAP,), 4) == [publish(9, (9, SWAP))], "under a version of its own"


# -- snapshots -------------------------------------------------------------------------------------------------------


SNAPSHOT = Step((), snapshot="a")


def captured(machine: CoordinatorMachine, version: int, *phases: str) -> list:
    """The effects of the last acknowledgements of all slots."""
    for phase in phases or ("prepared", "captured"):
        for slot in (0, 1):
            assert machine.acknowledged(phase, version, slot, 5) == []
        effects = machine.acknowledged(phase, version, 2, 5)
    return effects


def test_a_snapshot_is_a_step_of_all_slots_in_which_nothing_moves():
    machine = coordinator()
    assert machine.snapshot("a", 0) == [publish(8, (8, SNAPSHOT))]
    assert not machine.busy and machine.cancel(1) == [], "it is not cancelled with migrations"
    assert captured(machine, 8, "prepared") == [PublishAssignment(assignment(8, 0, 0, 1, 1), snapshot="a")]
    assert captured(machine, 8, "captured") == [StepDone(8), publish(8)]
    assert machine.snapshot("b", 6) == [publish(9, (9, Step((), snapshot="b")))]


def test_a_snapshot_comes_between_two_steps_and_no_step_is_prepared_ahead_of_it():
    machine = coordinator()
    machine.start((SWAP, BACK, SWAP), 0)
    assert machine.snapshot("a", 1) == []
    for slot in (0, 1):
        machine.acknowledged("prepared", 8, slot, 2)
    assert machine.acknowledged("prepared", 8, 2, 2) == [PublishAssignment(machine.assignment)], "no step ahead"
    done, published = finish(machine)
    assert done == StepDone(8) and published == publish(9, (9, SNAPSHOT)) and published.rest == (BACK, SWAP)
    assert machine.busy
    assert captured(machine, 9) == [StepDone(9), publish(10, (10, BACK))]


def test_a_step_that_waits_comes_before_a_second_snapshot():
    machine = coordinator()
    machine.snapshot("a", 0)
    machine.submit("one")
    assert machine.planned((SWAP,), assignment(7, 0, 0, 1, 1), 2) == [publish(8, (8, SNAPSHOT))]
    machine.snapshot("b", 3)
    assert captured(machine, 8) == [StepDone(8), publish(9, (9, SWAP))]


def test_what_was_requested_beside_a_snapshot_ends_with_it_if_nothing_is_to_be_done():
    machine = coordinator()
    machine.snapshot("a", 0)
    machine.submit("one")
    assert machine.planned((), machine.assignment, 2) == []
    assert captured(machine, 8) == [StepDone(8), publish(8), MigrationDone()]


@pytest.mark.parametrize(("in_turns", "phases"), [(False, ()), (False, ("prepared",)), (True, ())])
def test_a_snapshot_that_is_late_is_given_up_and_what_waits_begins(in_turns, phases):
    machine = coordinator(in_turns)
    machine.snapshot("a", 0)
    for phase in phases:
        captured(machine, 8, phase)
    machine.submit("one")
    machine.planned((SWAP,), assignment(7, 0, 0, 1, 1), 7)
    machine.acknowledged("captured" if phases else "prepared", 8, 1, 8)
    assert machine.tick(200) == [publish(8), SnapshotLate(8, (0, 2)), publish(9, (9, SWAP))]
    assert machine.acknowledged("captured", 8, 0, 201) == []


@pytest.mark.parametrize("takes_over", [False, True])
def test_in_turns_nothing_switches_before_all_slots_have_come_to_a_snapshot_that_has_whether_it_is_late_or_not(
    takes_over,
):
    """A router that begins a batch is told of the newest switch alone: it would never come to this one."""
    machine = coordinator(in_turns=True)
    machine.snapshot("a", 0)
    captured(machine, 8, "prepared")
    if takes_over:
        machine = CoordinatorMachine(machine.assignment, deadline_ms=100, slots=3, in_turns=True)
        machine.recover(8, [(8, Step((), snapshot="a"))], (), 0)
    assert machine.tick(200) == [SnapshotLate(8, (0, 1, 2))] and machine.tick(400) == []
    machine.submit("one")
    assert machine.planned((SWAP,), assignment(8, 0, 0, 1, 1), 407) == [publish(8, (8, Step((), snapshot="a")))]
    assert machine.tick(600) == []
    assert captured(machine, 8, "captured") == [StepDone(8), publish(9, (9, SWAP))]


def test_who_takes_over_after_a_snapshot_does_not_wait_for_it():
    """What was acknowledged of it may be withdrawn by then."""
    machine = coordinator()
    machine.snapshot("a", 0)
    done, published = captured(machine, 8)
    assert done == StepDone(8) and published == publish(8)
    successor = CoordinatorMachine(machine.assignment, deadline_ms=100, slots=3)
    assert successor.recover(published.version, published.steps, published.rest, 0) == [MigrationDone()]
    assert successor.snapshot("next", 0) == [publish(9, (9, Step((), snapshot="next")))]


# -- a plan takes time -----------------------------------------------------------------------------------------------


def test_a_plan_from_an_assignment_that_has_changed_meanwhile_is_made_anew():
    machine = coordinator()
    machine.submit("one")
    machine.submit("two")
    assert machine.planned((BACK,), assignment(6, 0, 0, 0, 1), 1) == [PlanNext("one")]
    assert machine.planned((), machine.assignment, 2) == [MigrationDone(), PlanNext("two")]


@pytest.mark.parametrize(("behind", "version"), [(7, 8), (11, 12)])
def test_steps_have_later_versions_than_another_coordinator_has_used(behind, version):
    machine = coordinator()
    machine.submit("one")
    assert machine.planned((SWAP,), machine.assignment, 1, behind) == [publish(version, (version, SWAP))]


def test_a_plan_without_steps_uses_no_version():
    """None that nobody could know: no step is written down under it."""
    machine = coordinator()
    for request in ("one", "two"):
        machine.submit(request)
    assert machine.planned((), machine.assignment, 1, behind=11) == [MigrationDone(), PlanNext("two")]
    assert machine.planned((SWAP,), machine.assignment, 2) == [publish(8, (8, SWAP))]


def test_a_plan_whose_request_was_cancelled_meanwhile_does_not_begin():
    machine = coordinator()
    machine.submit("one")
    assert machine.cancel(1) == []
    assert machine.busy, "until the plan is there"
    assert machine.planned((SWAP,), machine.assignment, 2) == [MigrationDone(Dropped(0, 1))]
    assert not machine.busy
    assert machine.submit("two") == [PlanNext("two")]
    assert machine.planned((), machine.assignment, 4) == [MigrationDone()], "what was dropped is told once"


# -- a coordinator that takes over -----------------------------------------------------------------------------------


class Job:
    """What is written down of a job, and its slots: they say what is expected of them, one thing after the other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.machine = coordinator()
        self.version, self.steps = 0, ()
        self.rest: tuple[Step, ...] = ()
        self.assignment, self.paused = self.machine.assignment, frozenset()
        self.said: list[tuple[str, int, int]] = []  # phase, version, slot
        self.to_say: list[tuple[str, int, int]] = []
        self.versions: dict[int, Step] = {}
        self.done = 0
        self.carry_out(self.machine.start(steps, 0))

    def carry_out(self, effects) -> None:
        for effect in effects:
            match effect:
                case PublishSteps(version, steps, rest):
                    self.version, self.steps, self.rest = version, steps, rest
                    for of, made in steps:
                        assert self.versions.setdefault(of, made) == made, "a version means one step"
                        slots = sorted({slot for move in made.moves for slot in (move.source, move.destination)})
                        said = [("prepared", of, slot) for slot in slots]
                        self.to_say += [each for each in said if each not in self.said + self.to_say]
                case PublishAssignment(published, paused):
                    assert published.version >= self.assignment.version
                    if (version := published.version) > self.assignment.version:
                        moves = self.versions[version].moves
                        self.to_say += [("released", version, slot) for slot in {m.source for m in moves}]
                        self.to_say += [("installed", version, slot) for slot in {m.destination for m in moves}]
                    self.assignment, self.paused = published, paused
                case MigrationDone():
                    self.done += 1

    def take_over(self) -> None:
        self.machine = CoordinatorMachine(self.assignment, 100, 3)
        self.carry_out(self.machine.recover(self.version, self.steps, self.rest, 0))
        for phase, version, slot in self.said:
            self.carry_out(self.machine.acknowledged(phase, version, slot, 0))


THREE = (PAUSING, step((3, 1, 2), (1, 0, 2)), step((0, 1, 2), (3, 2, 0)))


def test_a_coordinator_that_dies_at_any_message_with_any_part_of_it_carried_out_is_replaced():
    deaths = 0
    for at in count():
        job, died = Job(THREE), False
        for message in count():
            if not job.to_say:
                break
            phase, version, slot = job.to_say.pop(0)
            job.said.append((phase, version, slot))
            effects = job.machine.acknowledged(phase, version, slot, 0)
            if message == at // 3 and not died:
                died = True
                job.carry_out(effects[: at % 3])
                job.take_over()
            else:
                job.carry_out(effects)
                assert job.rest == THREE[len(job.versions) :], "what is to come is what was published of it"
        assert job.assignment.owner == assignment(0, 2, 2, 1, 0).owner, f"died at {at}"
        assert job.paused == frozenset() and not job.machine.busy and job.done >= 1
        deaths += died
        if not died:
            break
    assert deaths == 3 * 17, "once per message and part"
