"""Whole runs on real Spark, Kafka, ZooKeeper and MinIO: small ones, judged by the oracle, read back from the store."""

import json

import pytest
from pyspark import SparkContext

from keyshift.experiment.commands import Cancel, MoveBy, Scale
from keyshift.experiment.live_spec import live_spec
from keyshift.planner import strategies
from keyshift.waiting import wait_until
from small_run import SMALL_LIVE, at_night, good, spec
from spark_workers import workers_of


@pytest.mark.parametrize("strategy", ["replicated", at_night("fluid"), at_night("stop_restart")])
def test_state_moves_while_the_job_runs_and_the_oracle_agrees(lab, strategy):
    run, before = spec(strategy=strategy, seconds=7.0, trigger_s=2.0), {*workers_of()}
    manifest = good(lab.run(run))
    assert wait_until(lambda: len({*workers_of()} - before) < 2, 60), "all but the one that forks them end with the run"
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
    producers = {name for name in java_threads() if name.startswith("kafka-producer")}
    assert f"kafka-producer-network-thread | {manifest.run_id}" in producers  # else it waits for topics of other runs


def java_threads():
    """Names of the threads of this process's Spark."""
    return [thread.getName() for thread in SparkContext._active_spark_context._jvm.Thread.getAllStackTraces().keySet()]


LIVE = [name for name, strategy in strategies.items() if not strategy.restarts]
COPIES = [name for name, strategy in strategies.items() if strategy.of_migration(0).replicate]  # kept all the time
TOGETHER = [name for name in LIVE if strategies.get(name).bins == 1 and name not in COPIES]
ALONE = {"meces"}  # of the others, one with bins; one with copies is above


def test_presets_move_state_timers_and_windows_there_and_back_one_after_the_other(lab):
    """In one job, out and to one slot: what comes back has been elsewhere, and the next preset finds it as it is."""
    job = lab.start(live_spec(SMALL_LIVE | {"workload": "windowcount", "keys": 2000, "slots_max": 4, "snapshot_s": 0}))
    try:
        for strategy in TOGETHER:
            for slots in (4, 1):
                job.do(MoveBy(strategy=strategy, target=slots))
                done = wait_until(lambda: not job.status()["migrating"], 600, 0.02)
                assert done, json.dumps([strategy, slots, job.status()], indent=1, default=str)
    finally:
        manifest = job.stop()
    assert manifest.status == "ok", manifest.verdict.examples
    assert [each["outcome"] for each in job.status()["migrations"]] == ["complete"] * 2 * len(TOGETHER)
    check_migrations(lab, manifest, 2 * len(TOGETHER))


@pytest.mark.parametrize("strategy", [name if name in ALONE else at_night(name) for name in LIVE])
def test_every_preset_moves_state_timers_and_windows_there_and_back(lab, strategy):
    """Out, to one slot, and out again in one job: what comes back has been elsewhere, and partly still is."""
    timed = {"seconds": 8.0, "trigger_s": 1.5, "then": "1,3", "gap_s": 2.5}
    run = spec(strategy=strategy, workload="windowcount", keys=2000, **timed)
    manifest = good(lab.run(run))
    check_migrations(lab, manifest, 3)


def check_migrations(lab, manifest, number):
    of_busy_machines = ("backlog", "the processors", "the generator made", "the clock was set", "Kafka's clock")
    said = [note for note in manifest.notes if not any(words in note for words in of_busy_machines)]
    assert not said, "\n".join(said)
    assert lab.store.get_table(manifest.run_id, "migration")["installed_s"].notna().all()
    decisions = lab.store.get_table(manifest.run_id, "decisions")
    assert set(decisions["migration"]) == set(range(number))
    assert decisions["reason"].str.len().min() > 0


def test_a_cancelled_migration_leaves_a_consistent_assignment(lab):
    job = lab.start(live_spec(SMALL_LIVE | {"key_groups": 256, "slots": 2, "slots_max": 4, "strategy": "fluid"}))
    job.do(Scale(slots=4))
    assert wait_until(lambda: {2, 3} & set(job.status()["stages"]["counter"]["owners"]), 120, 0.02)
    job.do(Cancel())
    manifest = job.stop()
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("taken back" in note for note in manifest.notes)
    assert 0 < manifest.summary.units_moved < 128


def test_each_stage_has_slots_of_its_own_that_share_processes_and_one_of_them_is_scaled_in(lab):
    chain = {"workload": "chain", "chain": "map,counter", "routers": 1, "rate": 1000.0}
    chain |= {"seconds": 7.0, "trigger_s": 2.0}
    run = spec(**chain, stage_slots="map:1,counter:3", to_slots=2, strategy="fluid", slots_per_process=2)
    manifest = good(lab.run(run))
    migration, start = lab.store.get_table(manifest.run_id, "migration"), run.start("counter")
    assert {move.unit for move in start.moves_to(run.target(start))} == set(migration["unit"])
    assert (set(migration["source"]), set(migration["destination"]), set(migration["stage"])) == ({2}, {0, 1}, {1})


def test_slots_that_work_in_turns_hand_over_what_waits_and_every_snapshot_is_right(lab):
    timed = {"batch_s": 5.0, "seconds": 10.0, "snapshot_s": 2.0, "verify": "snapshots"}
    manifest = good(lab.run(spec(ordering="live_robin", heartbeat_ms=40.0, workload="windowcount", **timed)))
    assert manifest.summary.units_moved > 0


@pytest.mark.nightly("half a minute each; test_deaths has batches that end, and so have slots in turns above")
@pytest.mark.parametrize("strategy", ["fluid", "meces", "hybrid", "replicated", "stop_restart"])
def test_batch_boundaries_hand_the_state_over_and_lose_nothing(lab, strategy):
    manifest = good(lab.run(spec(strategy=strategy, batch_s=5.0, seconds=14.0)))
    assert manifest.summary.bytes_moved > 0, "also if the batch in which they moved is over"
