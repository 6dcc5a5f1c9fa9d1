"""Whole runs whose processes are killed, on real Spark, Kafka, ZooKeeper and MinIO: nothing is lost."""

import contextlib
import re

import psutil
import pytest

from keyshift.driver.job import Job
from keyshift.experiment.commands import InjectFault
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.spec import make_spec
from keyshift.lab.reporter import Reporter
from keyshift.model.errors import QueryDied
from keyshift.model.notes import Activity
from keyshift.objects import Bucket
from keyshift.waiting import wait_until
from small_run import SMALL, SMALL_LIVE, at_night, good, spec
from spark_workers import workers_of


def kill_workers():
    killed = workers_of()
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return killed


def kill_in(phase, monkeypatch):
    """Kill the workers the first time that a run enters the phase; what it has then entered is in the list."""
    when, enter = [], Reporter.enter

    def entered(display, doing):
        enter(display, doing)
        if doing.activity is phase and not when:
            when.append(doing)
            kill_workers()

    monkeypatch.setattr(Reporter, "enter", entered)
    return when


@pytest.mark.parametrize(
    "strategy, fault",
    [
        at_night("fluid", "kill:source@transfer"),
        at_night("meces", "kill:destination@install"),
        at_night("lazy", "kill:slot@3.5,kill:slot@7.5"),
        ("fluid", "kill:slot@batch"),
    ],
)
def test_a_job_with_snapshots_goes_on_from_the_newest_one(lab, strategy, fault):
    """At rest, and in a migration; once more behind a death; the batch of Spark ends in between. Where the machine is
    so slow that there is no snapshot yet, it begins anew.
    """
    timed = {"seconds": 13.0, "batch_s": 8.0} if fault.endswith("batch") else {"seconds": 20.0, "batch_s": 12.0}
    timed, before = timed | {"workload": "windowcount", "rate": 1000.0}, {*workers_of()}
    made = spec(strategy=strategy, snapshot_s=1.0, verify="snapshots", fault=fault, recoveries=3, **timed)
    manifest = good(lab.run(made))
    # Where the load ends as a batch does, tasks have ended by themselves: Spark closes idle workers behind a minute.
    assert wait_until(lambda: len({*workers_of()} - before) < 2, 90), "those that waited for a dead one, too"
    snapshots = lab.store.get_table(manifest.run_id, "snapshots")
    assert set(snapshots["verdict"]) == {"ok"}
    words = "snapshots were judged, each as if the job had ended there: 0 bad"
    (note,) = [note for note in manifest.notes if note.endswith(words)]
    assert int(note.split()[0]) >= len(snapshots)
    deaths = [note for note in manifest.notes if "the query died" in note]
    assert len(deaths) == fault.count("kill")
    assert all(re.search("since its (snapshot|beginning) was done again", note) for note in deaths), manifest.notes


@pytest.mark.nightly("half a minute; the harness has chains that die while they move without Spark")
def test_both_stages_of_a_chain_move_their_state_at_once_and_survive_a_death(lab):
    """The death comes in the migration, and after a snapshot of all stages unless the machine is very slow."""
    run = spec(
        workload="chain", chain="counter,counter", stage="counter-1,counter-2", slots=1, to_slots=2, strategy="fluid",
        snapshot_s=1.0, verify="snapshots", fault="kill:slot@3.3", rate=1000.0,
    )  # fmt: skip
    manifest = good(lab.run(run))
    (death,) = [note for note in manifest.notes if "the query died" in note]
    assert "was done again" in death
    assert any("latency at each stage" in note and "counter-2 " in note for note in manifest.notes)
    migration = lab.store.get_table(manifest.run_id, "migration")
    half = {move.unit for move in run.start().moves_to(run.target(run.start()))}
    assert [set(migration.loc[migration["stage"] == stage, "unit"]) <= half for stage in (0, 1)] == [True, True]
    metrics = lab.store.get_table(manifest.run_id, "metrics")
    assert set(metrics.loc[metrics["metric"] == "latency_p50_ms", "stage"]) == {0, 1}


@pytest.mark.nightly("half a minute; the harness has such jobs without Spark")
def test_a_job_of_two_sources_goes_on_where_it_was_in_each_of_them(lab):
    """The second one is silent when the query dies, after a snapshot unless the machine is very slow."""
    timed = {name: value for name, value in SMALL.items() if name not in ("keys", "state_bytes")}
    of_saas = {"workload": "saas", "stage": "qualifier", "rate": 400.0, "rate_steps": "control=1:20,2:0,6:20"}
    given = {"strategy": "fluid", "routers": 1, "slots": 1, "to_slots": 2, "snapshot_s": 1.0, "fault": "kill:slot@4"}
    given = make_spec(timed | of_saas | given)
    manifest = good(lab.run(given))
    assert any(re.search("everything since its (snapshot|beginning) was done again", note) for note in manifest.notes)
    results = lab.store.get_tables(manifest.run_id)["latency"]
    assert manifest.summary.events > 1000 and len(results) == manifest.summary.results_due


@pytest.mark.nightly("half a minute; tests/unit/driver has one that cannot be read")
def test_a_snapshot_that_cannot_be_read_gives_way_to_the_one_before(lab, monkeypatch):
    """Every part of the newest one is damaged before it is read."""
    damaged, recover = [], Job.recover

    def spoil(job):
        if not damaged:
            before, newest = job.snapshots.newest
            damaged.append((newest, before))
            bucket = Bucket(job.config.endpoints, f"savepoints/{job.config.job}/")
            for name in bucket.names(f"{newest.name}/"):
                if not name.endswith("manifest.json"):
                    bucket.put(name, bytes(len(bucket.get(name))))
        try:
            recover(job)
        finally:  # the attempt may have died by then
            damaged.append(job.config.restore)

    monkeypatch.setattr(Job, "recover", spoil)
    job = lab.start(live_spec(SMALL_LIVE | {"snapshot_s": 1.0, "recoveries": 3}))
    try:
        assert wait_until(lambda: job.status()["snapshots"] >= 2, 300)
        job.do(InjectFault(fault="kill:slot"))
        assert wait_until(lambda: len(damaged) == 3, 300)
    finally:
        manifest = job.stop()
    assert manifest.status == "ok", manifest.verdict.examples
    (newest, before), *restored = damaged
    assert restored == [newest.name, before.name]
    assert any("checksum" in note for note in manifest.notes), manifest.notes


@pytest.mark.nightly("half a minute each; `make test` has a death at the end of a batch, with snapshots")
@pytest.mark.parametrize("strategy, moment", [("fluid", Activity.MOVING), ("stop_restart", Activity.RESTORED)])
def test_a_worker_that_is_killed_costs_time_and_nothing_else(lab, monkeypatch, strategy, moment):
    run = spec(strategy=strategy, workload="windowcount", key_groups=128, seconds=16.0, rate=1000.0)
    when = kill_in(moment, monkeypatch)
    manifest = lab.run(run)
    assert when, manifest.notes
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("the query died" in note for note in manifest.notes)
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events


@pytest.mark.nightly("half a minute; `make test` has deaths in other moments")
def test_a_worker_that_is_killed_when_all_seems_over_does_no_harm_either(lab, monkeypatch):
    killed, savepoint = [], Job.savepoint

    def kill_first(job, *told):
        if not killed:
            killed.extend(kill_workers())
        return savepoint(job, *told)

    monkeypatch.setattr(Job, "savepoint", kill_first)
    manifest = lab.run(spec(strategy="fluid"))
    assert killed
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("the query died" in note for note in manifest.notes)


def test_a_query_that_dies_too_often_ends_the_run_and_the_store_says_why(lab, monkeypatch):
    kill_in(Activity.STEADY, monkeypatch)
    with pytest.raises(QueryDied, match="the Spark query has ended"):
        lab.run(spec(recoveries=0))
    latest = lab.store.list_runs(limit=1).iloc[0]
    assert latest["status"] == "died"
    assert "QueryDied" in latest["error"]
