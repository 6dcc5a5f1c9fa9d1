"""A live job with replicas, over stand-ins: what moves, who dies and comes back, what is told of each and refused."""

import json
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from small_live import live_job, outcomes

from keyshift.control.metrics import Metrics
from keyshift.experiment.commands import Cancel, InjectFault, MoveBy, Rate, Scale
from keyshift.experiment.live_spec import live_spec, parameters, partitions, wanted_slots
from keyshift.lab.judge.evaluation import NEVER_DIED
from keyshift.lab.live.journal import journal_from_json, journal_to_json
from keyshift.model.errors import BadInput, MigrationFailed, QueryDied
from keyshift.model.notes import Activity, Note, NoteKind
from keyshift.model.records import Measured
from keyshift.traffic.copies import Superseded
from keyshift.waiting import wait_until

TWO = {"replicas": 2, "ordering": "live_robin", "key_groups": 16, "slots": 2, "strategy": "fluid"}


@pytest.fixture
def job(monkeypatch):
    with live_job(monkeypatch, live_spec(TWO)) as job:
        yield job


def how(job):
    return {number: told["state"] for number, told in job.status()["replicas"].items()}


def slots(job):
    return [len(set(replica.job.stages[-1].assignment.owner)) for replica in job.replicas.all]


def stands(job, go=False):
    """No replica moves anything, or all do from now on."""
    for replica in job.replicas.all:
        replica.job.go.set() if go else replica.job.go.clear()


def dies(job):
    """The first one, for which the job has a way back."""
    job.do(InjectFault(fault="kill:replica"))
    assert wait_until(lambda: job.status()["deaths"] == 1, 60)


# -- what it may be ----------------------------------------------------------------------------------------------------


def test_one_writes_its_state_down_every_few_seconds_and_there_are_slots_to_scale_to():
    spec = live_spec(TWO)
    assert (spec.job.snapshot_s, spec.job.returns, spec.scenario.trigger) == (10.0, True, "scale")
    assert not spec.job.takes_snapshots, "it does not go on from them by itself"
    assert (spec.tasks, wanted_slots(spec), partitions(spec)) == ({"counter": 4}, 4, 4)
    assert parameters(spec)["replicas"] == 2
    assert live_spec({"job.replicas": 2, "ordering": "time_merge", "slots_max": 7}).tasks == {"counter": 7}
    chain = live_spec(TWO | {"workload": "chain", "stage_slots": "counter-1:6"})
    assert (chain.tasks, partitions(chain)) == ({"counter-1": 6, "counter-2": 4}, 4), "of the last stage alone"
    assert partitions(live_spec(TWO | {"replicas": 1})) == 16


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trigger": "auto"}, "replicas = 2 with trigger = auto: replicas do not scale themselves yet"),
        ({"replicas_move": "one_by_one"}, "replicas = 2 with replicas_move = one_by_one: .*; set returns = false"),
        ({"strategy": "hot_first"}, "replicas = 2 with order = hottest: each replica would order its steps by what"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(more, words):
    with pytest.raises(BadInput, match=f"(?s)^(?!.*\n){words}"):
        live_spec(TWO | more)


# -- what moves --------------------------------------------------------------------------------------------------------


def test_all_replicas_move_by_the_same_plan(job):
    done = job.do(Scale(slots=4), wait=True)
    assert (done["number"], done["outcome"], done["planned_steps"]) == (0, "complete", 8)
    assert slots(job) == [4, 4]
    told = job.do(MoveBy(strategy="all_at_once", target={0: 3, 1: 2}), wait=True)
    assert (told["number"], told["outcome"], len(told["steps"])) == (1, "complete", 1)
    first, second = (replica.job.stages[-1].assignments for replica in job.replicas.all)
    assert [each.owner for each in first] == [each.owner for each in second] and first[-1].owner[:3] == (3, 2, 0)


def test_a_migration_is_over_when_all_that_live_have_moved(job):
    slow = job.replicas.all[1].job
    slow.go.clear()
    job.do(Scale(slots=4))
    assert wait_until(lambda: slots(job) == [4, 2], 60)
    told = job.status()
    assert outcomes(job) == ["under way"] and told["migrating"]
    assert told["stages"]["counter"]["slots"] == 2, "that is told of the one which moves"
    slow.go.set()
    assert wait_until(lambda: outcomes(job) == ["complete"], 60)
    stands(job)
    job.do(Scale(slots=3))
    dies(job)
    assert outcomes(job) == ["complete", "under way"]
    stands(job, go=True)
    assert wait_until(lambda: outcomes(job) == ["complete"] * 2, 60)
    assert slots(job)[1] == 3


def test_what_comes_while_a_replica_is_on_its_way_back_waits_and_is_done_by_all_unless_it_is_taken_back(job):
    dies(job)
    job.replicas.comes_back(job.replicas.all[0])  # it lives, and is not as far as the other
    job.do(Scale(slots=1))
    job.do(Cancel())
    assert how(job)[0] == "coming back", "its way goes on"
    job.do(Scale(slots=4))
    job.do(Scale(slots=3))
    assert not any(stage.requests for replica in job.replicas.all for stage in replica.job.stages)
    assert outcomes(job)[1:] == ["under way"] * 2 and job.status()["migrating"]
    job.ways[0].full()
    assert wait_until(lambda: outcomes(job) == ["incomplete", "complete", "complete"], 60)
    assert slots(job) == [3, 3] and how(job) == {0: "lives", 1: "lives"}


def test_only_what_no_replica_was_told_of_is_taken_back(job):
    stands(job)
    job.do(Scale(slots=4))
    with pytest.raises(BadInput, match="cancel: replicas do not take back what one of them may have begun"):
        job.do(Cancel())
    job.do(Scale(slots=3))
    assert job.do(Cancel()) == {"cancelled": True}
    assert wait_until(lambda: outcomes(job) == ["under way", "incomplete"], 60)
    words = "a request for a migration was taken back before any replica had begun it"
    assert job.status()["migrations"][1]["why"] == words and words in job.status()["notes"]
    stands(job, go=True)
    assert wait_until(lambda: outcomes(job)[0] == "complete", 60)
    assert slots(job) == [4, 4]
    assert job.do(Cancel()) == {"cancelled": True}, "there is nothing"


def test_stages_of_a_chain_move_at_the_same_time(monkeypatch):
    with live_job(monkeypatch, live_spec(TWO | {"workload": "chain"})) as job:
        for replica in job.replicas.all:
            replica.job.stages[0].check = lambda: None
        job.do(Scale(slots=4, stage="counter-1"))
        assert job.do(Scale(slots=3, stage="counter-2"), wait=True)["outcome"] == "complete"
        assert outcomes(job) == ["under way", "complete"] and slots(job) == [3, 3]


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("hot_first", "replicas = 2 with order = hottest: each replica would order"),
        ("stop_restart", "ordering = live_robin with strategy = stop_restart"),
    ],
)
def test_a_plan_that_replicas_would_not_make_alike_is_refused(job, strategy, words):
    with pytest.raises(BadInput, match=words):
        job.do(MoveBy(strategy=strategy, target=3))
    assert job.status()["migrations"] == []


# -- who dies ----------------------------------------------------------------------------------------------------------


def test_a_replica_that_is_killed_is_told_of_and_comes_back(job):
    assert how(job) == {0: "lives", 1: "lives"}
    dies(job)
    assert how(job) == {0: "coming back", 1: "lives"} and job.status()["state"] == "running"
    assert [each["deaths"] for each in job.status()["replicas"].values()] == [1, 0]
    job.replicas.comes_back(job.replicas.all[0])
    assert how(job)[0] == "coming back", "it lives, and is not as far as the other"
    assert job.do(Rate(rate=300)) == {"rate": 300.0}, "meanwhile the job answers"
    job.ways[0].full()
    assert wait_until(lambda: how(job) == {0: "lives", 1: "lives"}, 60)
    assert (job.status()["replicas"][0]["deaths"], job.status()["deaths"]) == (1, 1)
    assert "replica 0 was full again" in job.status()["notes"]
    assert job.replicas.activities == [Activity.RECOVERED], "the fault is no news any more"
    job.do(InjectFault(fault="kill:slot"))
    assert wait_until(lambda: how(job) == {0: "lives", 1: "coming back"}, 60), "it has lived for longest"
    assert any("replica 1 died (killed); 1 of 2 went on" in note for note in job.status()["notes"])
    job.ways[1].full()
    assert job.stop().run_id == job.run_id


def test_one_that_is_not_to_come_back_is_gone(monkeypatch):
    with live_job(monkeypatch, live_spec(TWO | {"returns": False})) as job:
        dies(job)
        assert how(job) == {0: "gone", 1: "lives"}


def test_the_last_replica_is_not_killed_and_the_line_says_when_one_may_be(job):
    for fault in ("kill:replica", "kill:slot"):
        dies(job) if not job.ways else None
        with pytest.raises(BadInput, match=f"fault = {fault}: 1 of replicas = 2 lives, and none would be left; wait"):
            job.do(InjectFault(fault=fault))
    assert job.do(InjectFault(fault="stop:replica:3s")) == {"fault": "stop:replica:3s"}
    assert job.replicas.all[1].application.paused_s == 3.0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill:executor", "no executor"),
        ("kill:coordinator", "not possible yet; what is: replica, slot"),
        ("kill:daemon", "not possible yet; what is: replica, slot"),
        ("kill:follower", "with ordering = live_robin nobody leads, so nobody follows"),
    ],
)
def test_a_fault_that_cannot_happen_here_is_refused(job, fault, words):
    with pytest.raises(BadInput, match=f"fault = {fault}: {words}"):
        job.do(InjectFault(fault=fault))


def test_one_that_hangs_or_dies_while_it_is_measured_is_not_said_to_be_dead_for_that(job):
    job.counter.measure = Mock(side_effect=MigrationFailed("measure: 1 did not answer"))
    assert wait_until(lambda: any("not measured: measure: 1 did not answer" in line for line in job.said), 60)
    job.counter.measure = gone = Mock(side_effect=QueryDied("a worker is gone"))
    assert wait_until(
        lambda: gone.call_count > 1 and "busy_s" not in job.status()["stages"]["counter"]["of_slot"][0], 60
    )
    job.counter.measure = lambda *_: {}
    assert job.state == "running" and how(job) == {0: "lives", 1: "lives"}


# -- what is told ------------------------------------------------------------------------------------------------------


def test_how_far_each_is_behind_is_told_with_units_also_to_prometheus_and_of_the_dead_nothing(job):
    job.replicas.behind = {0: 0, 1: 3}
    assert [each["lag_ms"] for each in job.status()["replicas"].values()] == [0.0, 60.0]
    dies(job)
    families = text_string_to_metric_families(generate_latest(Metrics(job)).decode())
    found = {(each.name, *sorted(each.labels.values())): each.value for family in families for each in family.samples}
    assert found["keyshift_replica_state", "0", "coming_back"] == 1.0
    assert found["keyshift_replica_state", "0", "lives"] == found["keyshift_replica_state", "1", "gone"] == 0.0
    assert found["keyshift_replica_state", "1", "lives"] == 1.0
    assert found["keyshift_replica_lag_seconds", "1"] == 0.06
    assert ("keyshift_replica_lag_seconds", "0") not in found
    assert [found["keyshift_replica_deaths_total", number] for number in "01"] == [1.0, 0.0]
    assert found["keyshift_deaths_total",] == 1.0
    job.replicas.behind = {}
    told = json.loads(json.dumps(job.status(), allow_nan=False))
    assert told["replicas"]["0"] == {"state": "coming back", "lag_ms": None, "deaths": 1}
    assert told["replicas"]["1"] == {"state": "lives", "lag_ms": None, "deaths": 0}


def test_what_prometheus_counts_never_falls_when_another_replica_is_measured_in_place_of_a_dead_one(job):
    """It would take that for a counter which began anew: the whole past of the other one at once."""

    def measured(seconds):
        return lambda *_: {slot: Measured(busy_s=seconds, records=((slot, seconds),)) for slot in range(4)}

    def counters():
        families = text_string_to_metric_families(generate_latest(Metrics(job)).decode())
        samples = [each for family in families for each in family.samples if family.type in ("counter", "histogram")]
        return {(each.name, *sorted(each.labels.items())): each.value for each in samples}

    def busy_s():
        return [value for (name, *_), value in counters().items() if name == "keyshift_busy_seconds_total"]

    for replica, seconds in zip(job.replicas.all, (600, 540), strict=True):
        replica.job.stages[-1].measure = measured(seconds)
    assert wait_until(lambda: busy_s() == [600] * 4, 60)
    before = counters()
    dies(job)
    assert wait_until(lambda: busy_s() == [540] * 4, 60)
    after = counters()
    assert {sample: value for sample, value in before.items() if after.get(sample, value) < value} == {}
    assert {dict(labels).get("replica") for name, *labels in after if name == "keyshift_records_total"} == {"1"}


# -- how another process goes on with it -------------------------------------------------------------------------------

OFTEN = TWO | {"snapshot_s": 0.02}


def written(job):
    """One more state than by now."""
    number = job.status()["snapshots"]
    assert wait_until(lambda: job.status()["snapshots"] > number, 60)


def test_another_process_goes_on_from_what_one_writes_again_and_again_and_all_else_counts_for_nothing(monkeypatch):
    expected, journals = [], []
    kept = {"expect": lambda *known: expected.append(known), "keep": journals.append}
    with live_job(monkeypatch, live_spec(OFTEN), **kept) as job:
        assert expected == [("run", "secret")]
        assert journals[0].past.begun_from is None
        assert journals[0].of_replicas.began == dict.fromkeys(range(2), NEVER_DIED)
        job.do(Scale(slots=4), wait=True)
        written(job)
        written(job)
        assert wait_until(lambda: len(set(journals[-1].past.stages["counter"].assignments[-1].owner)) == 4, 60)
        journal = journal_from_json(json.loads(json.dumps(journal_to_json(journals[-1]))))
        begin = journal.past.begun_from
        assert begin.name == "capture-0" and journal.of_replicas.of == "run-r0"
        assert journal.of_replicas.requested == {"counter": 1} == {"counter": journal.plans["counter"].requested}
        assert journal.snapshots == ("run-r0", [begin.name])
        assert job.status()["snapshot_bytes"] == 160
        assert job.traffic.for_ever, "what is in its topics stays until it is deleted"
    journals.clear()
    resumed = {"resumed": lambda: journal, "keep": journals.append}
    with live_job(monkeypatch, live_spec(TWO), **resumed) as job:
        epochs = (((5, 1),), ((7, 1), (8, 2)))
        assert job.replicas.went_on == [(0, journal, epochs), (1, journal, epochs)]
        assert ("feed", 2000.0, 2) in job.traffic.told, "no frame of the generator before counts any more"
        assert job.traffic.superseded == [Superseded(({0: 9}, {0: 9}), begin.turns)]
        assert how(job) == {0: "lives", 1: "lives"} and job.status()["deaths"] == 0
        assert any("everything since its snapshot was done again" in note for note in job.status()["notes"])
        assert job.do(Scale(slots=3), wait=True)["number"] == 1
        assert wait_until(lambda: journals[-1].of_replicas.requested == {"counter": 2}, 60)
        assert journals[-1].past.begun_from == begin, "nothing was written since"
        assert journals[-1].of_replicas.superseded == job.traffic.superseded
        assert {each.config.token for each in (replica.job for replica in job.replicas.all)} == {"secret"}


def test_nothing_is_written_while_something_moves_and_nothing_begins_to_move_while_something_is_written(monkeypatch):
    with live_job(monkeypatch, live_spec(OFTEN)) as job:
        stands(job)
        job.do(Scale(slots=4))
        assert wait_until(lambda: all(replica.job.stages[-1].requests for replica in job.replicas.all), 60)
        number = job.status()["snapshots"]
        assert not wait_until(lambda: job.status()["snapshots"] > number + 1, 0.3), "one may have been under way"
        stands(job, go=True)
        job.replicas.writing.clear()
        assert wait_until(lambda: job.replicas.is_writing, 60)
        job.do(Scale(slots=3))
        assert not wait_until(lambda: any(replica.job.stages[-1].requests for replica in job.replicas.all), 0.1)
        assert outcomes(job) == ["complete", "under way"]
        job.replicas.writing.set()
        assert wait_until(lambda: outcomes(job) == ["complete"] * 2, 60)


def test_without_anything_written_another_process_begins_at_the_beginning_of_the_input_and_knows_the_notes(monkeypatch):
    journals, died = [], Note("replica 0 died", kind=NoteKind.DEATH)
    with live_job(monkeypatch, live_spec(TWO | {"snapshot_s": 0}), keep=journals.append) as job:
        job.do(Scale(slots=4), wait=True)
        job.loop.system.note(died.text, died.kind)
        assert wait_until(lambda: journals[-1].of_replicas.requested and journals[-1].past.notes == [died], 60)
    with live_job(monkeypatch, live_spec(TWO), resumed=lambda: journals[-1]) as job:
        assert job.loop.system.notes[0] == died, "with what it is about"
        assert "migrations of counter that the beginning does not have are lost: 1" in job.status()["notes"]
        assert job.traffic.superseded == [Superseded(({0: 9}, {0: 9}), {})]
        assert any("everything since its beginning was done again" in note for note in job.status()["notes"])
