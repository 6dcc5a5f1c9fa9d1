"""Whole runs on real Spark, Kafka, ZooKeeper and MinIO: small ones, judged by the oracle, read back from the store."""

import contextlib

import psutil
import pytest

from keyshift.errors import QueryDied
from keyshift.executor.job import Job
from keyshift.executor.savepoint import SavepointStore
from keyshift.lab.live_spec import live_spec
from keyshift.lab.spec import make_spec
from keyshift.planner import strategies
from keyshift.waiting import wait_until

SMALL = {
    "rate": 2000.0,
    "seconds": 10.0,
    "warmup_s": 1.0,
    "trigger_s": 3.0,
    "keys": 4000,
    "state_bytes": 256,
    "key_groups": 32,
}
SMALL_LIVE = {name: value for name, value in SMALL.items() if name not in ("seconds", "trigger_s")}


def spec(**values):
    return make_spec(SMALL | values)


@pytest.mark.parametrize("strategy", ["fluid", "stop_restart"])
def test_state_moves_while_the_job_runs_and_the_oracle_agrees(lab, strategy):
    run = spec(strategy=strategy)
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples
    assert manifest.summary.events == round(run.run.rate * (run.run.seconds + run.run.warmup_s))
    stored = lab.store.get_manifest(manifest.run_id)
    assert stored.summary == manifest.summary
    migration = lab.store.get_table(manifest.run_id, "migration")
    moved = {move.unit for move in run.start().moves_to(run.target(run.start()))}
    assert moved <= set(migration["unit"])
    assert migration["installed_s"].notna().all()
    assert manifest.summary.bytes_moved > 0
    assert manifest.summary.bytes_minimum > 0
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events


LIVE = [name for name, strategy in strategies.items() if not strategy.restarts]
COPIES = [name for name, strategy in strategies.items() if strategy.phase(0).replicate]  # kept all the time
TOGETHER = [name for name in LIVE if strategies.get(name).bins == 1 and name not in COPIES]


def test_presets_move_state_timers_and_windows_there_and_back_one_after_the_other(lab):
    """In one job, out and to one slot: what comes back has been elsewhere, and the next preset finds it as it is."""
    job = lab.start(live_spec(SMALL_LIVE | {"workload": "windowcount", "keys": 2000, "slots_max": 4, "snapshot_s": 0}))
    for strategy in TOGETHER:
        for slots in (4, 1):
            job.plan(strategy, slots)
            assert wait_until(lambda: not job.status()["migrating"], 120, 0.02), (strategy, slots, job.status())
    manifest = job.stop()
    assert manifest.status == "ok", manifest.verdict.examples
    assert [each["outcome"] for each in job.status()["migrations"]] == ["complete"] * 2 * len(TOGETHER)
    check_migrations(lab, manifest, 2 * len(TOGETHER))


def _param(name):
    return pytest.param(name, marks=pytest.mark.nightly("a quarter of a minute each")) if name in TOGETHER else name


@pytest.mark.parametrize("strategy", [_param(name) for name in LIVE])
def test_every_preset_moves_state_timers_and_windows_there_and_back(lab, strategy):
    """Out, to one slot, and out again in one job: what comes back has been elsewhere, and partly still is."""
    run = spec(
        strategy=strategy, workload="windowcount", seconds=10.0, trigger_s=1.5, then_slots="1,3", gap_s=2.5, keys=2000
    )
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples
    check_migrations(lab, manifest, 3)


def check_migrations(lab, manifest, number):
    assert not [note for note in manifest.notes if "backlog" not in note], "but for a machine that was busy"
    assert lab.store.get_table(manifest.run_id, "migration")["installed_s"].notna().all()
    decisions = lab.store.get_table(manifest.run_id, "decisions")
    assert set(decisions["migration"]) == set(range(number))
    assert decisions["reason"].str.len().min() > 0


@pytest.mark.parametrize("strategy", ["chunked", "lazy", "meces"])
def test_requests_that_overlap_replace_what_has_not_begun(lab, strategy):
    run = spec(strategy=strategy, seconds=8.0, then_slots="1,4", gap_s=0.05, on_overlap="replace", size=None)
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples


def test_a_cancelled_migration_leaves_a_consistent_assignment(lab):
    job = lab.start(live_spec(SMALL_LIVE | {"key_groups": 256, "slots": 2, "slots_max": 4, "strategy": "fluid"}))
    job.scale(slots=4, wait=False)
    assert wait_until(lambda: {2, 3} & set(job.status()["stages"]["counter"]["owners"]), 120, 0.02)
    job.cancel()
    manifest = job.stop()
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("taken back" in note for note in manifest.notes)
    assert 0 < manifest.summary.units_moved < 128


def test_little_room_for_records_that_wait_holds_frames_back_in_kafka_and_loses_none(lab):
    run = spec(strategy="pause_resume", queue_bytes=1 << 16, rate=8000.0, state_bytes=4096)
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples


def test_a_shuffle_moves_just_the_affected_groups(lab):
    manifest = lab.run(spec(strategy="all_at_once", trigger="shuffle", affected=6, slots=3))
    assert manifest.status == "ok", manifest.verdict.examples
    assert manifest.summary.units_moved == 6


@pytest.mark.parametrize("strategy", ["fluid", "meces", "hybrid", "replicated", "stop_restart"])
def test_batch_boundaries_hand_the_state_over_and_lose_nothing(lab, strategy):
    manifest = lab.run(spec(strategy=strategy, batch_s=5.0, seconds=14.0))
    assert manifest.status == "ok", manifest.verdict.examples
    assert manifest.summary.bytes_moved > 0, "also if the batch in which they moved is over"


def workers():
    """The Python workers of Spark: each runs one router or one slot."""
    daemons = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # or it has ended and nobody asked how: a zombie
            if "keyshift.executor.daemon" in process.cmdline():
                daemons.append((process, process.ppid()))
    forking = {parent for _, parent in daemons}
    return [process for process, _ in daemons if process.pid not in forking]


def killer(line, when):
    """What a lab says; the first time it says ``line``, kill a worker."""

    def say(text):
        if line in text and not when:
            when.append(text)
            workers()[0].kill()

    return say


def test_a_scenario_in_which_a_slot_is_killed_ends_with_the_same_results(lab):
    manifest = lab.run(spec(strategy="lazy", workload="windowcount", fault="kill:slot@2.5", seconds=8.0, rate=1000.0))
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("the query died" in note for note in manifest.notes)


@pytest.mark.parametrize(
    "strategy, fault",
    [
        ("fluid", "kill:source@transfer"),
        ("meces", "kill:destination@install"),
        ("lazy", "kill:slot@3.5,kill:slot@7.5"),
        ("fluid", "kill:slot@batch"),
    ],
)
def test_a_job_with_snapshots_goes_on_from_the_newest_one(lab, strategy, fault):
    """At rest, and in a migration; once more behind a death; the batch of Spark ends in between."""
    timed = {"workload": "windowcount", "rate": 1000.0, "seconds": 12.0, "batch_s": 6.0}
    manifest = lab.run(spec(strategy=strategy, snapshot_s=1.0, fault=fault, recoveries=3, **timed))
    assert manifest.status == "ok", manifest.verdict.examples
    deaths = [note for note in manifest.notes if "the query died" in note]
    assert len(deaths) == fault.count("kill")
    assert all("since its snapshot was done again" in note for note in deaths), manifest.notes


def test_both_stages_of_a_chain_move_their_state_at_once_and_survive_a_death(lab):
    """The death comes in the migration, after snapshots of all stages."""
    run = spec(
        workload="chain", chain="counter,counter", stage="counter-1,counter-2", slots=1, to_slots=2, strategy="fluid",
        snapshot_s=1.0, fault="kill:slot@3.3", rate=1000.0,
    )  # fmt: skip
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples
    (death,) = [note for note in manifest.notes if "the query died" in note]
    assert "since its snapshot was done again" in death
    assert any("latency at each stage" in note and "counter-2 " in note for note in manifest.notes)
    migration = lab.store.get_table(manifest.run_id, "migration")
    half = {move.unit for move in run.start().moves_to(run.target(run.start()))}
    assert [set(migration.loc[migration["stage"] == stage, "unit"]) <= half for stage in (0, 1)] == [True, True]
    metrics = lab.store.get_table(manifest.run_id, "metrics")
    assert set(metrics.loc[metrics["metric"] == "latency_p50_ms", "stage"]) == {0, 1}


def test_a_snapshot_that_cannot_be_read_gives_way_to_the_one_before(lab, monkeypatch):
    """Every part of the newest one is damaged before it is read."""
    damaged, recover = [], Job.recover

    def spoil(job):
        if not damaged:
            newest, before = job.snapshots[-1], job.snapshots[-2]
            damaged.append((newest, before))
            bucket = SavepointStore(job.config.endpoints, job.config.job)._bucket
            for name in bucket.names(f"{newest.name}/"):
                if not name.endswith("manifest.json"):
                    bucket.put(name, bytes(len(bucket.get(name))))
        recover(job)
        damaged.append(job.config.restore)

    monkeypatch.setattr(Job, "recover", spoil)
    manifest = lab.run(spec(strategy="fluid", snapshot_s=1.0, fault="kill:slot@6.5", recoveries=3, seconds=14.0))
    assert manifest.status == "ok", manifest.verdict.examples
    (newest, before), *restored = damaged
    assert restored == [newest.name, before.name]
    assert any("checksum" in note for note in manifest.notes), manifest.notes


@pytest.mark.parametrize("strategy, moment", [("fluid", "moving"), ("stop_restart", "restored")])
def test_a_worker_that_is_killed_costs_time_and_nothing_else(lab, monkeypatch, strategy, moment):
    run = spec(strategy=strategy, workload="windowcount", key_groups=128, seconds=16.0, rate=1000.0)
    when = []
    monkeypatch.setattr(lab, "say", killer(moment, when))
    manifest = lab.run(run)
    assert when
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("the query died" in note for note in manifest.notes)
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events


def test_a_worker_that_is_killed_when_all_seems_over_does_no_harm_either(lab, monkeypatch):
    killed, savepoint = [], Job.savepoint

    def kill_first(job, *told):
        if not killed:
            killed.append(workers()[0])
            killed[0].kill()
        return savepoint(job, *told)

    monkeypatch.setattr(Job, "savepoint", kill_first)
    manifest = lab.run(spec(strategy="fluid"))
    assert killed
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("the query died" in note for note in manifest.notes)


def test_a_query_that_dies_too_often_ends_the_run_and_the_store_says_why(lab, monkeypatch):
    monkeypatch.setattr(lab, "say", killer("steady", []))
    with pytest.raises(QueryDied, match="the Spark query has ended"):
        lab.run(spec(recoveries=0))
    latest = lab.store.list_runs(limit=1).iloc[0]
    assert latest["status"] == "died"
    assert "QueryDied" in latest["error"]
