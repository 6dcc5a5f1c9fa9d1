"""keyshift's own job as the system under test: plans, copies and restarts for what is requested."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_bucket import ENDPOINTS

from keyshift.driver.step_log import StepLog
from keyshift.experiment.scenario import Balance, ScaleTo
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge.final_state import NOTHING_COPIED, CopiedAhead, FinalState, StageEnd
from keyshift.lab.system import OF_TASKS, KeyshiftJob, job_config, used_by_pods
from keyshift.model.errors import MigrationFailed, QueryDied
from keyshift.model.keys import Assignment, Move, Step
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.model.records import Measured
from keyshift.planner import Strategy, strategies
from keyshift.planner.orders import orders
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import parse
from keyshift.wire.nodes import CopiesClose

TAKEN_BACK = "a request for a migration was taken back before it had begun"


class Job:
    """Of one stage, which keeps what it is asked for. ``requests`` can be planned by whoever wants to."""

    name, late = "counter", False

    def __init__(self, spec):
        self.stages, self.ask = [self], self
        tasks = spec.slots_of if spec.point().restarts else spec.tasks
        self.config = SimpleNamespace(job="run", token="secret", slots=tasks[self.name])
        self.assignment, self.copied, self.requests, self.restarted, self.notes = spec.start(), [], [], [], []
        self.busy, self.dies, self.switches, self.measured = False, None, True, 0
        self.faults = SimpleNamespace(busy=False, done=[], struck=[])

    def stage(self, name):
        assert name == self.name
        return self

    def nothing(self, *_):
        pass

    check = say = cancel = nothing

    def note(self, text, kind=NoteKind.MIGRATION):
        self.notes.append(Note(text, kind=kind))

    def copy(self, *order):
        self.copied.append(order)

    @property
    def kept(self):
        return self.copied[-1][0] if self.copied else ()

    def copied_by_now(self):
        return self.await_copies() or {}

    def end_copies(self):
        self.copied.clear()

    def await_copies(self):
        return {0: CopiesClose(1_000_000, 3, 10, 1, 201, 3_000_000)} if self.copied else None

    def request(self, make_steps, replace=False, behind=0):
        self.requests.append((make_steps, replace))
        self.behind = behind

    def plan(self):
        """What was requested last, from where the units are."""
        make_steps, _ = self.requests[-1]
        return make_steps(self.assignment)

    def carry_out(self, steps):
        for step in steps:
            self.assignment = self.assignment.after(step)

    def restart(self, name, target, slots):
        assert name == self.name
        if self.switches:
            self.restarted.append((target, slots))
            self.assignment = Assignment(self.assignment.version + 1, target.owner)
            self.config.slots = max(slots, 1 + max(target.owner))
        if self.dies:
            raise self.dies

    def measure(self, *_):
        self.measured += 1
        records = tuple((unit, 100 if unit == 0 else 1) for unit in range(len(self.assignment.owner)))
        return {0: Measured(seconds=2.0, records=records)}


def system_of(**values):
    spec = make_spec(values)
    job = Job(spec)
    return SimpleNamespace(spec=spec, job=job, system=KeyshiftJob(spec, job))


def told(made):
    return [str(note) for note in made.job.notes if note]


def planned(made):
    """The first change is requested, and planned as the newest migration."""
    made.system.request(made.spec.changes[0])
    return made.job.plan()


def units(steps):
    return [move.unit for step in steps for move in step.moves]


@pytest.mark.parametrize(("given", "whole"), [({}, True), ({"handover": "delta", "replicate": 2}, False)])
def test_copies_of_a_later_phase_are_handed_over_as_that_phase_says(given, whole):
    made = system_of(strategy="spacker_dynamic", slots=6, to_slots=2, then="4,3", **given)
    for change in made.spec.changes[:2]:
        made.system.request(change)
    first, second = (make_steps for make_steps, _ in made.job.requests)
    target = made.spec.target(made.spec.start())
    first(made.spec.start())
    made.job.copied.clear()
    second(target)
    ((copies, every_s, lag_keys, asked_whole),) = made.job.copied
    assert copies
    assert (every_s, lag_keys) == (made.spec.job.copy_every_s, made.spec.job.copy_lag_keys)
    assert asked_whole is whole


def test_a_request_or_a_proposal_says_for_each_stage_behind_which_version_its_steps_come():
    made = system_of(strategy="fluid")
    plans = made.system.plans
    plans.request(ScaleTo(3), behind={"counter": 5})
    assert made.job.behind == 5
    plans.adopt(plans.propose("counter", ScaleTo(2)), {"counter": 7})
    assert made.job.behind == 7


def test_changes_of_several_kinds_are_migrations_one_behind_the_other_from_where_the_one_before_has_led():
    made = system_of(strategy="all_at_once", trigger="shuffle", affected=4, then="back,zipf:2", gap_s=2)
    begin, owners = made.spec.start(), []
    for change in made.spec.changes:
        made.system.request(change)
    for make_steps, _ in made.job.requests:
        made.job.carry_out(make_steps(made.job.assignment))
        owners.append(made.job.assignment.owner)
    assert owners[0] != owners[1] == begin.owner != owners[2]
    assert owners[2] == made.spec.target(begin, made.spec.changes[2]).owner


def test_copies_that_are_kept_all_the_time_go_where_the_announced_change_leads():
    made = system_of(strategy="replicated", copies="periodic")
    made.system.announce(made.spec.changes[0])
    ((copies, *_),) = made.job.copied
    moves = {(move.unit, move.destination) for move in made.spec.start().moves_to(made.spec.target(made.spec.start()))}
    assert {(copy.unit, copy.destination) for copy in copies} <= moves
    assert copies
    nothing = system_of(strategy="fluid")
    nothing.system.announce(nothing.spec.changes[0])
    assert not nothing.job.copied


@pytest.mark.parametrize("kept", ["periodic", "warm_up"])
def test_the_copies_of_all_migrations_are_counted(kept):
    made = system_of(strategy="replicated", copies=kept, slots=4, to_slots=1, then="3")
    assert made.system.plans.copied().bytes_copied is None
    for change in made.spec.changes:
        made.system.announce(change)
        made.system.request(change)
        made.job.carry_out(made.job.plan())
    assert len(made.job.copied) == 2
    assert made.system.plans.copied().bytes_copied == 2 * 10
    made.system.plans.end_copies()
    assert made.system.plans.copied() == NOTHING_COPIED, "those of the next lap count from the beginning"


def test_that_copies_were_ordered_is_known_when_they_have_ended_with_their_attempt_and_in_another_process():
    made, other = (system_of(strategy="replicated") for _ in range(2))
    made.system.announce(made.spec.changes[0])
    made.job.copied.clear()
    assert made.system.plans.copied() == CopiedAhead(None, None, ordered=True)
    assert other.system.plans.copied() == NOTHING_COPIED
    other.system.failover.take(made.system.failover.plans())
    assert other.system.plans.copied().ordered


@pytest.mark.parametrize(
    ("kept", "complete", "stay"), [("warm_up", False, False), ("warm_up", True, True), ("periodic", False, True)]
)
def test_copies_end_with_a_migration_that_has_left_units_where_they_were_unless_they_are_always_kept(
    kept, complete, stay
):
    made = system_of(strategy="replicated", copies=kept)
    made.job.busy = True
    steps = planned(made)
    made.job.carry_out(steps if complete else ())
    made.system.check()
    assert made.job.kept, "it is under way, and its planner may come to order them"
    made.job.busy = False
    made.system.check()
    assert bool(made.job.kept) is stay, "those of units that have moved have gone with them"
    assert made.system.plans.copied().bytes_copied == 10


WAITED = ["copies came no closer than 201 changed keys per round, copy_lag_keys = 200"]


def stopped(monkeypatch, **values):
    """A job at its end, and its system."""
    final = FinalState({}, None, [StageEnd("counter", None, [], {}, [])], (), ())
    monkeypatch.setattr("keyshift.lab.system.of_job", lambda job, left_behind, **told: replace(final, **told))
    made = system_of(**values)
    made.job.stop = made.job.savepoint = made.job.read_log = lambda: None
    made.job.left_behind = set
    made.system.stop()
    return made


def test_the_end_of_a_job_has_what_was_measured_and_planned_and_how_long_a_plan_took(monkeypatch):
    made = stopped(monkeypatch, strategy="fluid")
    steps, final = planned(made), made.system.final_state()
    (stage,) = final.stages
    assert stage.to_move == {each.unit for _, each in stage.decisions} == {*units(steps)} != set()
    assert final.planned_s > 0 and stage.measures
    assert made.job.measured == 1, "at its end: nothing goes by the load"
    assert [replaces for _, replaces in made.job.requests] == [False]


def test_the_end_of_a_job_tells_whether_units_are_where_the_last_plan_wants_them(monkeypatch):
    made = stopped(monkeypatch, strategy="fluid", slots=2, to_slots=4)
    steps = planned(made)
    for moved, incomplete in ((steps[:-1], True), (steps[-1:], False)):
        made.job.carry_out(moved)
        made.system.stop()
        assert made.system.final_state().stages[0].incomplete is incomplete
    made.job.late = True
    made.system.stop()
    assert made.system.final_state().stages[0].incomplete, "some are still to come"


def test_units_of_a_request_that_nobody_has_planned_were_to_move_and_without_a_request_none_were(monkeypatch):
    made = stopped(monkeypatch, strategy="fluid", slots=2, to_slots=4)
    assert made.system.final_state().stages[0].to_move == set()
    made.system.request(ScaleTo(3))
    final = made.system.final_state()
    assert final.planned_s is None, "nothing is planned before its turn"
    start = made.spec.start()
    wanted = {move.unit for move in start.moves_to(made.spec.target(start, ScaleTo(3)))}
    assert final.stages[0].to_move == wanted != set()


def moved_over_copies(made, steps):
    """Of the units that move, those whose copies were ordered last, at their destinations."""
    return {(move.unit, move.destination) for step in steps for move in step.moves} & {
        (copy.unit, copy.destination) for copy in made.job.kept
    }


@pytest.mark.parametrize(
    ("kept", "before"), [("warm_up", ""), ("periodic", ""), ("periodic", "announced"), ("periodic", "and died")]
)
def test_a_migration_waits_for_copies_that_were_not_announced_which_tell_if_they_came_no_closer(kept, before):
    made = system_of(strategy="replicated", copies=kept)
    if before:
        made.system.announce(made.spec.changes[0])
    if before == "and died":
        made.job.copied.clear()  # copies do not outlive an attempt
    assert moved_over_copies(made, planned(made))
    assert len(made.job.copied) == 1 and told(made) == ([] if before == "announced" else WAITED)


def test_copies_go_where_the_units_go_if_the_load_is_another_one_than_when_they_were_announced():
    made = system_of(strategy="replicated", replicate=1, trigger="balance", slots=2, key_groups=4)
    made.system.announce(made.spec.changes[0])  # unit 0 has most of the load
    made.job.measure = lambda: {0: Measured(seconds=4.0, records=((0, 101), (1, 1), (2, 1), (3, 500)))}
    steps = planned(made)
    assert len(moved_over_copies(made, steps)) == len(units(steps)) > 0
    assert len(made.job.copied) == 2 and told(made) == WAITED


@pytest.mark.parametrize(("slots", "then"), [(2, 4), (4, 2)])
def test_copies_along_a_ring_are_where_the_announced_units_go_when_a_job_is_scaled(slots, then):
    made = system_of(strategy="rhino", slots=slots, to_slots=then)
    made.system.announce(made.spec.changes[0])
    steps = planned(made)
    assert len(moved_over_copies(made, steps)) == len(units(steps)) > 0
    assert {copy.unit for copy in made.job.kept} == {*range(len(made.job.assignment.owner))}, "and of all that stay"
    assert len(made.job.copied) == 1 and not told(made)


def test_copies_of_a_migration_before_have_gone_with_their_units():
    made = system_of(strategy="replicated", slots=2, to_slots=4)
    planned(made)  # it leads there, and another strategy led back
    planned(made)
    assert len(made.job.copied) == 2


def test_copies_that_have_ended_with_their_attempt_are_not_waited_for(monkeypatch):
    made = system_of(strategy="replicated", copies="warm_up")
    monkeypatch.setattr(made.job, "await_copies", lambda: None)
    assert planned(made) and not told(made)


def test_a_restart_is_made_by_the_controlling_thread_and_only_if_nobody_has_cancelled_it():
    made = system_of(strategy="stop_restart", slots=2, to_slots=4)
    (change,) = made.spec.changes
    made.system.request(change)
    assert made.system.busy and not made.job.restarted
    made.system.cancel()
    assert told(made) == [TAKEN_BACK]
    made.system.check()
    assert not made.job.restarted and not made.system.busy
    made.system.request(change)
    made.system.check()
    made.system.check()
    ((target, slots),) = made.job.restarted
    assert slots == 0, "as many as the target has"
    assert target.owner == made.spec.target(made.spec.start()).owner
    assert not made.job.requests
    assert not made.system.busy


def with_a_restart_that_fails(failure, switches, **values):
    made = system_of(strategy="stop_restart", slots=2, **values)
    made.system.request(made.spec.changes[0])
    made.job.dies, made.job.switches = failure, switches
    with pytest.raises(type(failure)):
        made.system.check()
    return made


def test_units_of_a_late_step_have_not_come_where_routers_look_for_them_already():
    """Neither for whoever asks while they are to come, nor if the next migration is planned meanwhile."""
    made = system_of(strategy="all_at_once", slots=2, to_slots=4)
    plans = made.system.plans
    made.job.carry_out(planned(made))
    assert plans.ended("counter", 0) is True
    made.job.late = True
    assert plans.ended("counter", 0) is False
    made.system.request(ScaleTo(3))
    made.job.carry_out(made.job.plan())
    made.job.late = False
    assert plans.ended("counter", 0) is False and plans.ended("counter", 1) is True


def test_units_of_a_late_step_that_a_process_before_has_left_had_not_come_when_the_first_one_was_planned():
    made, other = (system_of(strategy="all_at_once") for _ in range(2))
    assert planned(other) and other.system.plans.owners_before("counter") == other.spec.start().owner
    assert made.system.plans.owners_before("counter") is None
    made.job.late = True
    assert made.system.plans.owners_before("counter") == ()
    assert planned(made)
    made.job.late = False
    assert made.system.plans.owners_before("counter") == ()


@pytest.mark.parametrize("switches", [False, True], ids=["savepoint", "new attempt"])
def test_a_restart_in_which_the_query_dies_is_made_once(switches):
    """In the next attempt, if this one has not switched to the target."""
    made = with_a_restart_that_fails(QueryDied("gone"), switches, to_slots=4)
    assert made.system.busy
    before = list(made.system.plans.of["counter"].past.decisions)
    made.job.dies, made.job.switches = None, True
    made.system.check()
    ((target, _),) = made.job.restarted
    assert target.owner == made.spec.target(made.spec.start()).owner
    assert made.system.plans.of["counter"].past.decisions == before and before
    assert made.system.plans.ended("counter", 0) and not made.system.busy


@pytest.mark.parametrize("switches", [False, True], ids=["savepoint", "new attempt"])
def test_a_restart_that_is_late_is_not_tried_again(switches):
    """If it has switched, the next attempt has it."""
    made = with_a_restart_that_fails(MigrationFailed("late"), switches, to_slots=4)
    made.job.dies = None
    made.system.check()
    assert not made.system.busy and bool(made.job.restarted) == switches == bool(made.system.plans.ended("counter", 0))
    assert told(made) == ([] if switches else ["a restart was late, and is not tried again"])


def test_a_balance_whose_restart_has_died_behind_the_switch_is_not_planned_from_new_measures(monkeypatch):
    made = with_a_restart_that_fails(QueryDied("gone"), switches=True, trigger="balance", key_groups=4)
    made.job.dies = None
    monkeypatch.setattr(made.job, "measure", lambda: {0: Measured(seconds=2.0, records=((2, 100), (3, 100)))})
    made.system.check()
    assert len(made.job.restarted) == 1 and made.system.plans.ended("counter", 0)


def test_a_restart_that_moves_nothing_is_made_only_for_another_number_of_slots():
    made = system_of(strategy="stop_restart", slots=2, to_slots=4)
    for slots in (4, 4):
        made.system.request(ScaleTo(slots))
        made.system.check()
    assert len(made.job.restarted) == 1 and made.system.plans.ended("counter", 1)
    made.system.plans.adopt(made.system.plans.propose("counter", ScaleTo(2), strategies.get("fluid")))
    made.job.carry_out(made.job.plan())
    made.system.request(ScaleTo(2))
    made.system.check()
    assert len(made.job.restarted) == 2 and made.job.config.slots == 2


def restarting(strategy):
    """A job and its system, of which a restart with four slots was asked."""
    made = system_of(strategy=strategy, slots=2, to_slots=4, key_groups=12)
    made.system.plans.adopt(made.system.plans.propose("counter", ScaleTo(4), strategies.get("stop_restart")))
    return made.job, made.system


def test_what_is_asked_for_behind_a_restart_comes_behind_it():
    job, system = restarting("fluid")
    job.busy = True  # a migration is under way
    number = system.plans.adopt(system.plans.propose("counter", ScaleTo(3)))
    system.check()
    assert not job.requests and not job.restarted
    job.busy = False
    assert system.plans.ended("counter", number) is None
    system.check()
    ((target, _),) = job.restarted
    assert len(set(target.owner)) == 4 and not job.requests and system.busy
    system.check()
    assert len(job.requests) == 1
    job.carry_out(job.plan())
    assert len(set(job.assignment.owner)) == 3 and not system.busy


@pytest.mark.parametrize(("strategy", "restarts"), [("stop_restart", [3]), ("fluid", [])])
def test_a_request_that_replaces_others_replaces_restarts_that_have_not_begun(strategy, restarts):
    job, system = restarting(strategy)
    system.request(ScaleTo(3), replace=True)
    system.check()
    system.check()
    assert [len(set(target.owner)) for target, _ in job.restarted] == restarts
    assert [replace for _, replace in job.requests] == [True] * (not restarts)
    assert TAKEN_BACK in map(str, job.notes)


def test_what_wants_slots_that_a_restart_has_taken_away_is_dropped():
    made = system_of(strategy="stop_restart", slots=4, to_slots=2)
    made.system.request(made.spec.changes[0])
    made.system.plans.adopt(made.system.plans.propose("counter", ScaleTo(3), strategies.get("fluid")))
    made.system.check()
    made.system.check()
    assert len(made.job.requests) == 1 and made.job.plan() == ()
    [note] = told(made)
    assert note.endswith("when its turn came: slot 2 is not provisioned any more, only slots 0 to 1 are")


def test_a_stop_waits_for_what_slots_have_measured_as_long_as_results_come(monkeypatch):
    made, seen = system_of(), []
    made.job.output, made.job.left_behind = SimpleNamespace(received=7), set
    made.job.savepoint = made.job.read_log = lambda: None
    monkeypatch.setattr(made.job, "measure", lambda within_s, progress: seen.append(progress()) or {})
    made.system.stop()
    assert seen == [7]


def test_the_status_says_which_slots_a_step_is_about_and_how_large_their_state_was_in_the_newest_snapshot():
    made = system_of(strategy="fluid", slots=2, to_slots=4, key_groups=4)
    made.job.log, made.job.doing = StepLog(made.job.assignment), Doing(Activity.MOVING)
    made.job.log.published(3, [(2, Step((Move(2, 1, 3),))), (3, Step((Move(0, 0, 2),)))], 1)
    made.job.log.ended(2, "complete", 2)
    plans = made.system.plans.of["counter"]
    of_slot = plans.status({0: 10, 1: 20, 2: 5})["of_slot"]
    assert [of_slot[slot]["moving"] for slot in range(4)] == [True, False, True, False]
    assert [of_slot[slot]["state_bytes"] for slot in range(4)] == [30, 5, 0, 0]
    assert [each["state_bytes"] for each in plans.status(None)["of_slot"].values()] == [None] * 4


def test_faults_that_did_not_happen_are_noted(monkeypatch):
    made = stopped(monkeypatch, fault="kill:slot@1,restart:kafka@2,cut:flight@transfer")
    made.job.faults.done += parse("restart:kafka@2")
    made.system.final_state()
    (line,) = told(made)
    assert line.endswith("cut:flight@transfer did not happen"), "it may have been refused"
    made.job.faults.busy = True
    assert made.system.busy and not made.system.migrating, "a service is away"


def test_what_a_pod_of_a_replica_used_is_told_behind_its_number():
    config = job_config(make_spec({}), "run", ENDPOINTS, None)

    def job(config):
        participant = SimpleNamespace(read_below=lambda folder: {0: f"what {config.job} used"})
        return SimpleNamespace(config=config, stages=[SimpleNamespace(participant=participant)])

    assert used_by_pods(lambda: [job(config)]) == [(None, "what run used")]
    replica = config.of_replica(1)
    assert used_by_pods(lambda: [job(replica)]) == [(1, f"what {replica.job} used")]


def test_a_balance_is_planned_from_what_was_measured():
    made = system_of(trigger="balance", slots=2, key_groups=4)
    assert made.spec.changes == [Balance()]
    assert units(planned(made)) == [1] and made.job.measured == 1


def test_an_order_by_heat_gets_what_was_measured(registered, monkeypatch):
    def coldest(moves, snapshot):
        return [(move, "as measured") for move in sorted(moves, key=lambda move: snapshot.heat[move.unit])]

    registered(orders, coldest=coldest)
    monkeypatch.setattr("keyshift.lab.plans.stage_plans.BY_HEAT", {"coldest"})
    made = system_of(strategy="fluid", order="coldest", slots=2, to_slots=4, key_groups=4)
    monkeypatch.setattr(made.job, "measure", lambda: {0: Measured(seconds=1.0, records=((1, 9), (3, 5)))})
    assert units(planned(made)) == [3, 1]


@pytest.mark.parametrize(("more", "heat"), [({}, (50.0, 0.5)), ({"ordering": "live_robin", "replicas": 2}, ())])
def test_a_strategy_of_ones_own_gets_what_was_measured_unless_replicas_have_to_plan_alike(more, heat, registered):
    seen = []

    def propose(strategy, view, log):
        seen.append(view.heat)
        yield Step(view.misplaced())

    registered(strategies, mine=Strategy("looks at heat", "this test", propose=propose))
    made = system_of(strategy="mine", slots=2, to_slots=1, key_groups=2, **more)
    (checked,) = seen
    assert len(checked) == len(heat), "a check has as much heat as the job will have"
    assert len(planned(made)) == 1 and seen[1:] == [heat]


def test_tasks_know_the_parameters_of_their_job_whose_defaults_stand_in_one_place():
    given = {"chunk_bytes": 2048, "queue_bytes": 1 << 17, "deadline_s": 7.0, "snapshot_s": 3.0, "session_ms": 700}
    given |= {"slots_per_process": 2, "ordering": "none"}
    config = job_config(make_spec(given), "run", ENDPOINTS, None)
    assert given.keys() == OF_TASKS and {name: getattr(config, name) for name in given} == given
    with pytest.raises(TypeError, match="missing 10 required keyword-only arguments"):
        JobConfig("run", 0, ENDPOINTS, "keycount", {}, "counter", 1, 1, 128)


def test_a_job_that_restarts_has_only_the_slots_it_needs_now():
    assert job_config(make_spec({"strategy": "fluid", "slots": 2, "to_slots": 4}), "run", ENDPOINTS, None).slots == 4
    config = job_config(make_spec({"strategy": "stop_restart", "slots": 2, "to_slots": 4}), "run", ENDPOINTS, None)
    assert config.slots == 2
    assert config.token and config.inputs == (("run-events", 0, 2),)
