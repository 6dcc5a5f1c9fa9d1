"""A job that lasts, over stand-ins: what it answers, refuses, survives, and how it ends."""

import json
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest
from pydantic import Field
from small_live import Stage, Traffic, live_job, outcomes, settled

from keyshift.control.metrics import Metrics
from keyshift.driver.completed import CompletedSnapshot
from keyshift.experiment.commands import Cancel, Double, MoveBy, Rate, Scale
from keyshift.experiment.live_spec import live_spec, parameters, wanted_slots
from keyshift.lab import run_loop
from keyshift.lab.live import run as live_run
from keyshift.lab.live.inbox import Inbox
from keyshift.lab.live.status import LEADS_TO, JobLife, JobState
from keyshift.lab.run_loop import WINDOW_S, pause_before
from keyshift.model.errors import (
    BadInput,
    Deposed,
    InputLost,
    MigrationFailed,
    NotThere,
    QueryDied,
    RunsElsewhere,
    ServiceUnavailable,
)
from keyshift.model.keys import Assignment, Step
from keyshift.model.notes import Note, NoteKind
from keyshift.model.records import Measured
from keyshift.waiting import wait_until
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount

SMALL = {"key_groups": 16, "slots": 2, "strategy": "fluid"}
CHAIN = SMALL | {"workload": "chain", "chain": "counter,map,counter"}
TWO = {"replicas": 2, "ordering": "live_robin"}


@pytest.fixture
def job(monkeypatch):
    with live_job(monkeypatch, live_spec(SMALL)) as job:
        yield job


def test_a_live_job_takes_snapshots_and_survives_deaths_unless_it_is_told_otherwise():
    spec = live_spec({})
    assert (spec.job.snapshot_s, spec.run.recoveries, spec.tasks) == (10.0, 5, {"counter": 4})
    spec = live_spec({"job.snapshot_s": 0, "recoveries": 1, "slots_max": 7})
    assert (spec.job.snapshot_s, spec.run.recoveries, spec.tasks) == (0.0, 1, {"counter": 7})
    assert wanted_slots(spec) == 16
    assert not {"trigger_s", "seconds", "fault"} & parameters(spec).keys()
    assert parameters(spec)["slots_max"] == 7


@pytest.mark.parametrize(("slots_max", "slots"), [(0, 4), (2, 2), ("2", 2), (2.0, 2)], ids=repr)
def test_a_live_job_has_room_for_as_many_slots_as_it_is_told_however_that_is_written(slots_max, slots):
    for name in ("slots_max", "job.slots_max"):
        assert live_spec({name: slots_max}).tasks == {"counter": slots}


OF_A_SCENARIO = "trigger_s", "scenario.trigger_s", "seconds", "fault", "rate_steps", "repetitions"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        *(({name: 1}, f"{name.rpartition('.')[2]} is of a run with a scenario") for name in OF_A_SCENARIO),
        ({"trigger": "balance"}, "trigger = balance: a job that lasts is scaled when it is asked, or by itself"),
        ({"trigger": "auto", "slots_min": 3}, "slots = 2 of counter: .* slots_min = 3 and slots_max = 4"),
        (SMALL | {"slots_max": 20}, "slots_max = 20: more slots than key groups"),
    ],
)
def test_what_is_not_possible_is_refused_before_anything_starts(values, words):
    with pytest.raises(BadInput, match=words):
        live_spec(values)


class Namesakes(KeyCount):
    """A workload with parameters that a scenario, a run or a live job has, too."""

    name: ClassVar[str] = "namesakes"
    moves: int = Field(default=3, description="of its own")
    seconds: int = Field(default=3, description="of its own")
    recoveries: int = Field(default=3, description="of its own")
    to_slots: int = Field(default=3, description="of its own")


def test_a_workload_of_ones_own_may_have_any_parameters(registered):
    registered(workloads, namesakes=Namesakes)
    own = {"workload.moves": 5, "workload.seconds": 6, "workload.recoveries": 7, "workload.to_slots": 8}
    spec = live_spec({"workload": "namesakes", "slots_max": 6} | own)
    assert spec.workload.model_dump().items() >= {"moves": 5, "seconds": 6, "recoveries": 7, "to_slots": 8}.items()
    assert (spec.run.recoveries, spec.tasks) == (5, {"counter": 6})
    told = parameters(spec)
    assert told.items() >= own.items()
    assert not {"moves", "scenario.moves", "run.seconds"} & told.keys()
    for name in ("moves", "scenario.moves", "run.seconds"):
        with pytest.raises(BadInput, match=f"^{name.rpartition('.')[2]} is of a run with a scenario"):
            live_spec({"workload": "namesakes", name: 5})


def test_a_state_leads_to_those_of_the_table_alone():
    for before, after in product(JobState, JobState):
        life = JobLife()
        life.state, leads = before, after in LEADS_TO[before]
        refused = pytest.raises(ValueError, match=f"a job that is {before} cannot be {after} next")
        with nullcontext() if leads else refused:
            life.enter(after)
        assert life.state is (after if leads else before)


def test_it_scales_and_says_so(job):
    before = job.status()
    assert before["state"] == "running" and before["stages"]["counter"]["slots"] == 2 and "replicas" not in before
    done = job.do(Scale(slots=4, stage="counter"), wait=True)
    assert (done["outcome"], done["slots"], done["planned_moves"], done["planned_steps"]) == ("complete", 4, 8, 8)
    after = job.status()
    assert after["stages"]["counter"]["slots"] == 4
    assert [after["stages"]["counter"]["of_slot"][slot]["units"] for slot in range(4)] == [4] * 4
    (feed, rate, _), (begin, _, seconds) = job.traffic.told[:2]
    assert (feed, rate, begin, seconds) == ("feed", 2000.0, "begin", None)
    assert (job.traffic.for_ever, job.traffic.lasts_s) == (False, 7 * 24 * 3600), "if its process is killed"


def test_a_migration_whose_last_step_is_late_is_not_complete_and_the_next_one_is(monkeypatch):
    kept = []
    with live_job(monkeypatch, live_spec(SMALL), keep=kept.append) as job:
        job.counter.late = True
        job.inner.note("the step is late", NoteKind.MIGRATION)
        done = job.do(Scale(slots=4), wait=True)
        assert (done["outcome"], done["why"]) == ("incomplete", "the step is late")
        assert wait_until(lambda: kept[-1].migrations[0]["outcome"] == "incomplete", 60) and kept[-1].targets == {}
        told = job.status()
        assert told["stages"]["counter"]["slots"] == 4 and not told["migrating"], "as routers have switched"
        job.counter.late = False
        assert job.do(Scale(slots=4), wait=True)["outcome"] == "complete"
        assert outcomes(job) == ["incomplete", "complete"]


def test_what_all_sources_offer_is_told_together_and_a_rate_is_that_of_one(monkeypatch):
    with live_job(monkeypatch, live_spec({"workload": "saas", "rate": 100, "rates": "control:10"})) as job:
        assert job.status()["rate"] == 110
        assert job.do(Rate(rate=5, source="control")) == {"rate": 5}
        assert job.status()["rate"] == 105
        assert job.do(Double()) == {"rate": 200}
        assert job.status()["rate"] == 205


def test_nothing_is_offered_by_a_job_that_stops_and_its_rate_says_so(job):
    job.inner.go.clear()
    job.do(Scale(slots=4))
    assert job.status()["rate"] == 2000
    stop = threading.Thread(target=job.stop)
    stop.start()
    assert wait_until(lambda: job.status()["state"] == "stopping", 60)
    assert job.status()["rate"] == 0
    assert "keyshift_offered_rate 0.0" in generate_latest(Metrics(job)).decode()
    job.inner.go.set()
    stop.join(60)
    assert (job.status()["state"], job.status()["rate"]) == ("ended", 0)


@pytest.fixture
def chain(monkeypatch):
    with live_job(monkeypatch, live_spec(CHAIN | {"stage_slots": "map:6"})) as job:
        yield job


def test_every_stage_of_a_chain_has_tasks_for_as_many_slots_unless_it_begins_with_more():
    assert live_spec(CHAIN).tasks == {"counter-1": 4, "map": 4, "counter-2": 4}
    assert live_spec(CHAIN | {"stage_slots": "map:6"}).tasks == {"counter-1": 4, "map": 6, "counter-2": 4}
    scales_itself = live_spec(CHAIN | {"trigger": "auto", "slots_max": 5})
    assert scales_itself.tasks == dict.fromkeys(("counter-1", "map", "counter-2"), 5)
    assert (scales_itself.changes, parameters(scales_itself)["trigger"]) == ([], "auto")
    assert live_spec(CHAIN | {"slots_max": 3}).tasks == {"counter-1": 3, "map": 3, "counter-2": 3}


def test_each_stage_of_a_chain_is_scaled_as_far_as_it_has_slots_and_the_others_stay(chain):
    for number, (stage, slots) in enumerate([("map", 5), ("counter-1", 3), ("counter-2", 1), ("map", 2)]):
        done = chain.do(Scale(slots=slots, stage=stage), wait=True)
        assert (done["stage"], done["number"], done["outcome"]) == (stage, int(number == 3), "complete")
    with pytest.raises(BadInput, match="slots = 5: 4 are provisioned"):
        chain.do(Scale(slots=5, stage="counter-1"))
    assert settled(chain) == {"counter-1": 3, "map": 2, "counter-2": 1}
    assert [len(stage.assignments) for stage in chain.inner.stages] == [2, 3, 2]


def test_two_stages_migrate_at_the_same_time_and_the_one_is_over_while_the_other_goes_on(chain):
    slow = next(stage for stage in chain.inner.stages if stage.name == "map")
    move, slow.check = slow.check, lambda: None
    chain.do(Scale(slots=4, stage="map"))
    chain.do(Scale(slots=3, stage="counter-2"))
    assert chain.do(Scale(slots=4, stage="counter-1"), wait=True)["outcome"] == "complete"
    assert wait_until(lambda: outcomes(chain) == ["under way", "complete", "complete"], 60)
    told = chain.status()
    assert told["migrating"] and [of["migrating"] for of in told["stages"].values()] == [False, True, False]
    slow.check = move
    assert settled(chain) == {"counter-1": 4, "map": 4, "counter-2": 3}


def test_why_a_migration_is_not_complete_is_not_what_was_said_of_another_stage(chain):
    chain.inner.go.clear()
    chain.do(Scale(slots=4, stage="map"))
    chain.do(Scale(slots=3, stage="counter-1"))
    chain.do(Cancel())
    settled(chain)
    assert outcomes(chain) == ["incomplete"] * 2
    for migration in chain.status()["migrations"]:
        words = f"{migration['stage']}: 1 requests for a migration were taken back"
        assert migration["why"].startswith(words)


def test_why_a_migration_is_not_complete_is_not_what_was_noted_of_something_else_meanwhile(job):
    def taken_back_and_more(cancel=job.counter.cancel):
        job.inner.note("the query died", NoteKind.DEATH)
        cancel()
        job.inner.note("snapshot 7: MinIO is away; the job goes on, the one before counts")

    job.inner.go.clear()
    job.do(Scale(slots=4))
    job.counter.cancel = taken_back_and_more
    job.do(Cancel())
    settled(job)
    (migration,) = job.status()["migrations"]
    assert migration["why"] == "1 requests for a migration were taken back before they had begun"


def test_more_slots_than_are_provisioned_need_a_restart_which_is_made_when_asked(job):
    with pytest.raises(BadInput, match=r"slots = 6: 4 are provisioned.*slots_max=6.*strategy stop_restart"):
        job.do(Scale(slots=6), wait=True)
    assert job.do(MoveBy(strategy="stop_restart", target=6))["slots"] == 6
    assert settled(job) == {"counter": 6} and job.status()["stages"]["counter"]["provisioned"] == 6
    with pytest.raises(BadInput, match="slots = 17: 16 are provisioned in this job; start a job with"):
        job.do(MoveBy(strategy="stop_restart", target=17))


def test_a_plan_is_told_before_it_begins_and_those_that_wait_are_planned_from_where_the_state_is_by_then(job):
    job.inner.go.clear()
    [step] = job.do(MoveBy(strategy="all_at_once", target=4))["steps"]
    job.do(Scale(slots=3))
    job.do(MoveBy(strategy="all_at_once", target=2))
    assert outcomes(job) == ["under way"] * 3 and job.status()["stages"]["counter"]["slots"] == 2
    job.inner.go.set()
    assert settled(job) == {"counter": 2} and outcomes(job) == ["complete"] * 3
    _, first, *_ = job.counter.assignments
    assert step["moves"] and all(first.owner[move["unit"]] == move["destination"] for move in step["moves"])


def test_a_plan_that_cannot_be_made_any_more_is_dropped_and_the_job_goes_on(job, monkeypatch):
    job.inner.go.clear()
    job.do(MoveBy(strategy="hot_first", target=4))
    job.do(MoveBy(strategy="hot_first", target=3))
    monkeypatch.setattr(job.counter, "measure", Mock(side_effect=MigrationFailed("measure: 1 did not answer")))
    job.inner.go.set()
    settled(job)
    first, second = job.status()["migrations"]
    assert (first["outcome"], first["why"], second["outcome"]) == ("complete", None, "incomplete")
    assert second["why"].startswith("migration 1 was dropped, no plan could be made when its turn came: measure")
    assert job.do(Scale(slots=2), wait=True)["outcome"] == "complete"


@pytest.fixture
def scaling(monkeypatch):
    """A chain that scales itself: the first stage is at work all the time, the second one hardly ever."""
    seen = {"counter-1": 0.0, "counter-2": 0.0}

    def measured(stage, *_):
        seen[stage.name] += 1.0
        slots = range(stage.config.slots)
        share = 1.0 if stage.name == "counter-1" else 0.01
        records, busy_s = 100 * seen[stage.name], share * seen[stage.name]
        return {n: Measured(seconds=1.0, records=((n, records),), busy_s=busy_s) for n in slots}

    monkeypatch.setattr(Stage, "measure", measured)
    values = SMALL | {"workload": "chain", "trigger": "auto", "autoscale_s": 1, "slots_max": 4}
    with live_job(monkeypatch, live_spec(values)) as job:
        yield job


def test_a_job_that_scales_itself_tells_what_it_decides_and_asks_for_it_like_anybody(scaling):
    assert wait_until(lambda: scaling.status()["migrations"], 60)
    migration = scaling.status()["migrations"][0]
    assert (migration["stage"], migration["slots"]) == ("counter-1", 4)
    assert wait_until(lambda: scaling.status()["stages"]["counter-1"]["slots"] == 4, 60)
    told = scaling.status()
    (moved,) = [each for each in told["autoscaler"]["decisions"] if each["moves"]]
    assert (moved["stages"]["counter-1"]["slots"], moved["stages"]["counter-1"]["target"]) == (2, 4)
    assert moved["stages"]["counter-1"]["true_per_s"] == pytest.approx(100)
    assert "counter-1 2 → 4 slots" in moved["words"]
    assert any(moved["words"] in line for line in scaling.said)
    assert told["autoscaler"]["moves"] == 1 and told["autoscaler"]["looks"] >= 2
    assert json.loads(json.dumps(told, allow_nan=False))["autoscaler"]
    found = generate_latest(Metrics(scaling)).decode()
    assert 'keyshift_target_slots{stage="counter-1"} 4.0' in found
    assert "keyshift_autoscaler_moves_total 1.0" in found
    scaling.stop()
    assert len(scaling.loop.scalings) >= 2, "all of them are stored with the run"


def test_a_job_that_scales_itself_is_scaled_by_hand_as_well(scaling):
    scaling.inner.go.clear()
    scaling.do(Scale(slots=1, stage="counter-2"))
    looks = scaling.status()["autoscaler"]["looks"]
    assert wait_until(lambda: scaling.status()["autoscaler"]["looks"] >= looks + 3, 60)
    newest = scaling.status()["autoscaler"]["decisions"][-2:]
    assert {each["reason"] for each in newest} == {"a migration is under way"}
    assert len(scaling.status()["migrations"]) == 1, "it waits for that"
    scaling.inner.go.set()
    assert settled(scaling)["counter-2"] == 1


def test_what_another_process_needs_is_written_down_when_it_changes_and_not_otherwise(monkeypatch):
    kept = []
    with live_job(monkeypatch, live_spec(SMALL), keep=kept.append) as job:
        job.do(Rate(rate=300))
        assert wait_until(lambda: kept and kept[-1].rates == {"events": 300}, 60)
        job.do(Scale(slots=4), wait=True)
        assert wait_until(lambda: kept[-1].migrations[0]["outcome"] == "complete", 60)
        assert len(set(kept[-1].past.stages["counter"].assignments[-1].owner)) == 4
        assert kept[-1].targets == {}, "those of migrations under way"
        number = len(kept)
        job.counter.measured = 0
        assert wait_until(lambda: job.counter.measured >= 2, 60), "it looks"
        assert len(kept) == number <= len(job.inner.in_journal), "it is said when it is written down"
        assert kept[-1].run_id == job.run_id and kept[-1].plans["counter"].requested == 1
        assert kept[-1].trigger > 0 and kept[-1].token == "secret"


@pytest.fixture
def under_way(monkeypatch):
    """The journal of a job whose process is gone while its second migration goes on, and where that leads."""
    journals = []
    with live_job(monkeypatch, live_spec(SMALL), keep=journals.append) as job:
        assert journals, "it can be resumed as soon as it is ready"
        job.do(Scale(slots=4), wait=True)
        job.inner.go.clear()
        job.do(Scale(slots=3))
        assert wait_until(lambda: len(journals[-1].migrations) == 2, 60)
        journal = journals[-1]
    (target,) = journal.targets.values()
    return journal, target


def test_a_migration_that_was_under_way_when_the_process_died_is_told_of_by_the_next_one(monkeypatch, under_way):
    journal, _ = under_way
    with live_job(monkeypatch, live_spec(SMALL), resumed=lambda: journal) as job:
        assert wait_until(lambda: outcomes(job) == ["complete", "incomplete"], 60)
        _, second = job.status()["migrations"]
        assert second["number"] == 1 and second["why"].startswith("the job's process was gone")
        assert not job.status()["migrating"]
        assert (job.run_id, job.inner.calls) == (journal.run_id, ["claim", "resume"])
        assert job.do(Scale(slots=2), wait=True)["number"] == 2


@pytest.mark.parametrize("late", [False, True], ids=["at its end", "a step is late"])
def test_a_migration_that_the_next_process_has_brought_to_its_end_is_complete_unless_its_last_step_is_late(
    monkeypatch, under_way, late
):
    journal, target = under_way

    def switched(inner):
        stage = inner.stages[0]
        stage.assignments.append(Assignment(stage.assignment.version + 1, tuple(target)))
        stage.late = late

    with live_job(monkeypatch, live_spec(SMALL), resumed=lambda: journal, resume=switched) as job:
        assert wait_until(lambda: outcomes(job) == ["complete", "incomplete" if late else "complete"], 60)
        assert job.status()["migrations"][1]["took_s"] > 0


@pytest.mark.parametrize(("whole", "next_slots"), [(True, 4), (False, 3)], ids=["all of it", "none of it"])
def test_a_migration_that_went_on_in_the_next_process_ended_where_the_first_one_of_that_began(
    monkeypatch, under_way, whole, next_slots
):
    """Nothing is seen between the two."""
    journal, target = under_way

    def goes_on(inner):
        inner.go.clear()
        moves = inner.stages[0].assignment.moves_to(Assignment(0, tuple(target)))
        inner.stages[0].requests.append(lambda current: (Step(tuple(moves)),) if whole else ())

    with live_job(monkeypatch, live_spec(SMALL), resumed=lambda: journal, resume=goes_on) as job:
        job.do(Scale(slots=next_slots))
        assert outcomes(job) == ["complete", "under way", "under way"]
        job.inner.go.set()
        assert wait_until(lambda: "under way" not in outcomes(job), 60)
        assert outcomes(job) == ["complete", "complete" if whole else "incomplete", "complete"]


@pytest.fixture
def journal(monkeypatch):
    """Of a job that has begun, and whose process is gone."""
    journals = []
    with live_job(monkeypatch, live_spec(SMALL), keep=journals.append):
        pass
    return journals[-1]


def test_a_resumed_job_whose_snapshot_cannot_be_read_goes_on_from_the_one_before(monkeypatch, journal):
    def dies(inner):
        inner.calls.append("dies")
        raise QueryDied("the snapshot has gone")

    with live_job(monkeypatch, live_spec(SMALL), resumed=lambda: journal, resume=dies) as job:
        assert (job.inner.calls, job.status()["deaths"]) == (["claim", "dies", "recover"], 1)
        assert job.do(Scale(slots=3), wait=True)["outcome"] == "complete"


@pytest.mark.parametrize("take_over", [False, True])
def test_who_goes_on_with_a_job_reads_what_there_is_of_it_when_nobody_else_can_change_it_any_more(
    monkeypatch, journal, take_over
):
    """Behind the claim the journal, and behind the first frames of its own generator the events. The system goes on
    when the generator is behind those, and ticks again.
    """
    read = []
    given = {
        "resumed": lambda: read.append(len(read)) or replace(journal, rates={"events": 100.0 + len(read)}),
        "take_over": take_over,
        "resume": lambda inner: inner.traffic.told.append(("resume",)),
    }
    with live_job(monkeypatch, live_spec(SMALL), **given) as job:
        told = job.traffic.told
        known = ("feed", 103.0, 2), ("await_ready",), ("skip", [20, 10]), ("await_skipped",), ("resume",)
        assert told[0 if take_over else 1 :][:5] == list(known)
        assert "the generator goes past 30 events that were offered before" in job.said
        assert job.traffic.feed_.before.rate_changed, "in the process before"
        assert (("await_silence",) in told) is not take_over
        assert [name for name, *_ in job.presence.method_calls] == ["await_none", "begin"][take_over:]
        assert (job.status()["rate"], len(read)) == (103.0, 3), "for the run's id, for the claim, and behind it"
        assert job.inner.config.epochs == (((5, 1),), ((7, 1), (8, 2)))
    assert wait_until(lambda: job.presence.end.called, 60), "all of it has ended"


def test_that_a_rate_was_changed_is_known_to_the_next_process_though_it_is_what_it_was_again(monkeypatch):
    kept = []
    with live_job(monkeypatch, live_spec(SMALL), keep=kept.append) as job:
        assert not kept[-1].rate_changed
        job.traffic.feed_.rate_changed = True
        assert wait_until(lambda: kept[-1].rate_changed, 60), "whatever it is by then"
    assert kept[-1].rates == kept[0].rates
    with live_job(monkeypatch, live_spec(SMALL), resumed=lambda: kept[-1]) as job:
        assert job.traffic.feed_.before.rate_changed


@pytest.mark.parametrize(
    ("asked", "refusal", "more", "remedy"),
    [
        ("await_silence", RunsElsewhere("it runs elsewhere"), {}, "; `keyshift resume NAME --take-over` goes on"),
        ("await_silence", RunsElsewhere("it runs elsewhere"), TWO, "; end that process first$"),
        ("open", NotThere("Kafka has removed what is before"), {}, "$"),
        ("require_input", NotThere("Kafka has removed what is before"), {}, "$"),
    ],
)
def test_a_job_that_runs_elsewhere_or_of_which_kafka_has_not_kept_all_is_not_resumed(
    monkeypatch, journal, asked, refusal, more, remedy
):
    """What it was offered could not be counted, so events would come once more, and it could not be judged."""
    monkeypatch.setattr(Traffic, asked, Mock(side_effect=refusal))
    monkeypatch.setattr(Traffic, "feed", lambda *_: pytest.fail("events were offered"))
    with (
        pytest.raises(type(refusal), match=f"^{refusal}{remedy}"),
        live_job(monkeypatch, live_spec(SMALL | more), resumed=lambda: journal),
    ):
        raise AssertionError("it was resumed")


@pytest.mark.parametrize("full", [False, True], ids=["kept", "the disk is full"])
def test_what_has_read_events_that_kafka_has_lost_is_in_no_journal_when_others_come_in_their_place(
    monkeypatch, journal, full
):
    """Else the next process, if this one dies before it is ready, could go on from there: Kafka is as long again."""
    kept, feed = [], Traffic.feed

    def lost(traffic, offsets):
        if offsets:
            raise InputLost("it ends at offset 5")

    def keep(journal):
        if full:
            raise OSError("no space left")
        kept.append(journal.past.snapshots)

    def offers(*given):
        assert kept == [[]]
        return feed(*given)

    monkeypatch.setattr(Traffic, "require_input", lost)
    monkeypatch.setattr(Traffic, "feed", offers)
    past = replace(journal.past, snapshots=[CompletedSnapshot("snapshot-1", 3, {0: 9}, 1, {})])
    given = {"resumed": lambda: replace(journal, past=past), "keep": keep}
    refused = pytest.raises(ServiceUnavailable, match=r"^the journal cannot be written \(no space left")
    with refused if full else nullcontext(), live_job(monkeypatch, live_spec(SMALL), **given) as job:
        assert job.inner.calls == ["claim", "resume"]


def test_a_job_that_another_process_has_claimed_offers_nothing_keeps_nothing_and_ends_with_that(monkeypatch):
    kept = []
    with live_job(monkeypatch, live_spec(SMALL), keep=kept.append) as job:
        told = len(kept)
        job.inner.deposed = True
        job.inner.note("something to be kept")
        assert job.ended.wait(60)
        assert (job.state, job.why, len(kept)) == ("failed", "another one drives", told)
    given = {"resumed": lambda: kept[-1], "resume": depose}
    with pytest.raises(Deposed), live_job(monkeypatch, live_spec(SMALL), **given):
        pass


def depose(inner):
    inner.deposed = True


def test_what_another_process_needs_is_kept_while_the_last_results_come(monkeypatch):
    journals = []
    with live_job(monkeypatch, live_spec(SMALL), keep=journals.append) as job:
        done = threading.Event()
        job.traffic.await_results = lambda over, quiet_s: wait_until(lambda: over() and done.is_set(), 60)
        stopping = threading.Thread(target=job.stop)
        stopping.start()
        assert wait_until(lambda: job.state == "stopping", 60)
        job.inner.note("something new")
        assert wait_until(lambda: journals[-1].past.notes == [Note("something new")], 60)
        done.set()
        stopping.join()


def test_a_slot_that_does_not_answer_is_no_reason_to_end(job):
    def hang(within_s, progress):
        raise MigrationFailed(f"measure: 3 did not answer within {within_s:g} s")

    job.counter.measure = hang
    assert wait_until(lambda: "not measured: measure: 3 did not answer within 10 s" in job.said, 60)
    assert job.do(Scale(slots=3), wait=True)["outcome"] == "complete"


def test_a_job_is_looked_at_and_hears_what_it_is_told_though_the_clock_is_set_back(job, monkeypatch):
    clocks = {name: getattr(time, name) for name in ("monotonic", "perf_counter", "sleep")}
    for module in (run_loop, live_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: time.time() - 3600, **clocks))
    job.counter.measured = 0
    assert wait_until(lambda: job.counter.measured, 60)
    assert job.do(Rate(rate=300)) == {"rate": 300}


def test_a_job_that_cannot_recover_says_why_in_one_line(job, monkeypatch):
    monkeypatch.setattr(run_loop, "LONGEST_PAUSE_S", 0.0)
    job.inner.dies += ["worker gone\nand a trace"] * 6
    assert job.ended.wait(60)
    told = job.status()
    assert told["state"] == "failed"
    assert told["why"] == "worker gone and a trace; it died 6 times within 600 s (recoveries = 5)"
    with pytest.raises(BadInput, match="is failed, not running"):
        job.do(Scale(slots=3), wait=True)
    with pytest.raises(QueryDied, match="it died 6 times within 600 s"):
        job.stop()


def test_pauses_between_attempts_grow_and_old_deaths_are_forgotten():
    deaths = [1000.0]
    pauses = []
    while (pause := pause_before(deaths, 9)) is not None:
        pauses.append(pause)
        deaths.append(deaths[-1] + 1)
    assert pauses == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert pause_before([*deaths, deaths[-1] + WINDOW_S + 10], 9) == 0.0
    assert pause_before([5.0], 0) is None


def test_whoever_stops_a_job_does_not_wait_for_the_end_of_a_fault_that_lasts_and_nothing_is_asked_then(
    job, monkeypatch
):
    faults, ask = job.inner.faults, Inbox.ask
    faults.busy, job.loop.cut_faults_short = True, lambda: setattr(faults, "busy", False)

    def asks_late(inbox, act):
        job.begin_stop()
        assert job.ended.wait(60) and job.status()["state"] == "ended"
        return ask(inbox, act)

    monkeypatch.setattr(Inbox, "ask", asks_late)
    with pytest.raises(BadInput, match="it is ended"):
        job.do(Cancel())
