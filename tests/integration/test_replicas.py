"""Replicas of a job on real Spark: the first copy of each result counts, a death costs none, and the dead come back."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from keyshift.lab.run import Lab
from keyshift.services.jars import jars
from small_run import at_night, good, spec
from spark_workers import commands

# As little as shows all: two Sparks may share one core.
REPLICATED = {"replicas": 2, "ordering": "live_robin", "frame_ms": 100.0, "heartbeat_ms": 100.0, "rate": 200.0}
LED = {"ordering": "kazoo", "session_ms": 2000}  # leaders order the rows


@pytest.fixture(scope="module")
def lab(session_stack, tmp_path_factory):
    """One without a Spark of its own, whose services may be hit."""
    given = session_stack.endpoints(), jars("spark"), tmp_path_factory.mktemp("lab"), 0, lambda line: None
    with Lab(*given, stack=session_stack) as lab:
        yield lab


@pytest.fixture
def left(lab):
    """What runs below this process that did not before, and what is new where Spark has temporary files by default."""
    before, files = Counter(map(" ".join, commands())), {*temporary()}
    return lambda: [*(Counter(map(" ".join, commands())) - before), *({*temporary()} - files)]


def temporary():
    """Folders of Sparks; those of the executors of a cluster of Spark's own have others."""
    return Path(tempfile.gettempdir()).glob("artifacts-*")


def of_replicas(manifest):
    """What the run says of them."""
    return next(note for note in manifest.notes if "as if it had been alone" in note)


def leaders(manifest):
    """Of each slot the replicas that led it, one after the other."""
    (note,) = (note for note in manifest.notes if note.startswith("leaders"))
    return [replicas.strip(", ") for replicas in re.findall(r"slot \d: ([\d, ]+)", note)]


@pytest.mark.nightly("a minute; the harness has such batches without Spark, and below two replicas live until the end")
def test_two_replicas_give_each_result_once_over_batches_that_end_at_different_times(lab, left):
    manifest = good(lab.run(spec(batch_s=5.0, **REPLICATED)))
    assert (manifest.replicas, manifest.verdict.others["diverged"]) == (2, 0)
    latency = lab.store.get_table(manifest.run_id, "latency")
    assert len(latency) == manifest.summary.events and set(latency["replica"]) <= {0, 1}
    assert "2 replicas were judged, each as if it had been alone: 0 bad" in of_replicas(manifest)
    compared = int(of_replicas(manifest).split(" turns that two")[0].split()[-1])
    assert compared > 120, "of two slots, 10 turns a second"
    assert left() == []


@pytest.mark.nightly("a minute each; below one dies while state moves, and one comes back")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_a_replica_is_killed_and_every_result_comes_once_with_windows_and_timers(lab, left, ordering):
    """Of kazoo it is the one that begins first, so its slots lead."""
    values = REPLICATED | {"ordering": ordering, "session_ms": 2000}
    manifest = good(lab.run(spec(workload="windowcount", fault="kill:replica@steady", returns=False, **values)))
    latency = lab.store.get_table(manifest.run_id, "latency")
    assert len(latency) == manifest.summary.events
    metrics = lab.store.get_table(manifest.run_id, "metrics")
    assert metrics.query("metric == 'fault'")["instance"].tolist() == ["kill replica"]
    (alone_s,) = metrics.query("metric == 'replicas' and value == 1")["t_s"]
    arrived = latency["created_s"] + latency["latency_ms"] / 1000
    assert set(latency["replica"][arrived > alone_s]) == {1}, "the other one was dead"
    if ordering == "kazoo":
        assert len(led := leaders(manifest)) == 2
        assert all(replicas.startswith("0") and replicas.endswith("1") for replicas in led)
    assert any(note.startswith("replica 0 died") and "1 of 2 went on" in note for note in manifest.notes)
    assert "1 replica was judged" in of_replicas(manifest)
    assert left() == []


@pytest.mark.nightly("a minute each; below one dies when both have moved, and the harness has such deaths, too")
@pytest.mark.parametrize(
    ("phase", "returns", "more"),
    [
        *((phase, False, {}) for phase in ("", "prepare", "switch", "align", "transfer", "install", "drain")),
        ("install", True, {}),
        ("", False, LED),
        ("transfer", False, LED),
        *(("transfer", False, more | {"workload": "chain"}) for more in ({}, LED)),
    ],
)
def test_replicas_move_their_state_together_and_one_dies_meanwhile(lab, left, phase, returns, more):
    fault = phase and f"kill:replica@{phase}"
    moves = {"strategy": "fluid", "to_slots": 3, "workload": "windowcount", "fault": fault, "returns": returns}
    manifest = good(lab.run(spec(**(REPLICATED | moves | more))))
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events
    migration = lab.store.get_table(manifest.run_id, "migration")
    assert len(migration) and migration["drained_s"].notna().all()
    assert not any("did not happen" in note for note in manifest.notes), manifest.notes
    lives = "1 replica was" if fault and not returns else "2 replicas were"
    assert of_replicas(manifest).startswith(lives) and "and of all results, 0 differences" in of_replicas(manifest)
    assert left() == []


@pytest.mark.nightly("a minute each; order protocols are deposed in simulation")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_a_replica_that_stood_for_longer_than_its_session_does_no_harm_when_it_goes_on(lab, left, ordering):
    values = REPLICATED | {"ordering": ordering, "session_ms": 2000}
    manifest = good(lab.run(spec(workload="windowcount", seconds=14.0, fault="stop:replica@steady:4s", **values)))
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events
    assert of_replicas(manifest).startswith("2 replicas were") and not any(" died " in note for note in manifest.notes)
    if ordering == "kazoo":
        assert any("1" in replicas for replicas in leaders(manifest)), "another one has led meanwhile"
    assert left() == []


@pytest.mark.nightly("a minute each; below one is cut off before it dies")
@pytest.mark.parametrize("fault", ["cut:kafka@3:3s", "cut:zookeeper@3:3s", "cut:kafka@3:1s,cut:zookeeper@5:3s"])
def test_a_replica_that_was_cut_off_for_longer_than_its_session_does_no_harm_when_it_is_back(lab, left, fault):
    values = REPLICATED | {"ordering": "kazoo", "session_ms": 2000}
    manifest = good(lab.run(spec(workload="windowcount", seconds=9.0, trigger="none", fault=fault, **values)))
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events
    assert of_replicas(manifest).startswith("2 replicas were") and not any(" died " in note for note in manifest.notes)
    assert not any("did not happen" in note for note in manifest.notes), manifest.notes
    led = leaders(manifest)
    assert led and all("1" in replicas for replicas in led), f"another one has led all slots meanwhile: {led}"
    assert left() == []


@pytest.mark.nightly("a minute each; the harness has replicas that move one after the other without Spark")
@pytest.mark.parametrize("fault", ["", "kill:replica@transfer"])
def test_one_moves_its_state_after_the_other_and_one_dies_meanwhile(lab, left, fault):
    moves = {"strategy": "fluid", "to_slots": 3, "workload": "windowcount", "replicas_move": "one_by_one"}
    manifest = good(lab.run(spec(fault=fault, returns=False, **moves, **REPLICATED)))
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events
    assert lab.store.get_table(manifest.run_id, "migration")["drained_s"].notna().all()
    moved = [note for note in manifest.notes if " moved in " in note]
    assert [note.split()[1] for note in moved] == (["1"] if fault else ["0", "1"])
    assert "and of all results, 0 differences" in of_replicas(manifest)
    assert left() == []


def full(lab, manifest):
    """How many replicas were full, one after the other."""
    metrics = lab.store.get_table(manifest.run_id, "metrics")
    return metrics[metrics["metric"] == "replicas"].sort_values("t_s")["value"].astype(int).tolist()


@pytest.mark.parametrize(
    ("ordering", "workload", "fault"),
    [
        at_night("live_robin", "keycount", "kill:replica@steady"),
        ("kazoo", "windowcount", "cut:kafka@0:1s,cut:zookeeper@1:3s,kill:replica@5"),
        at_night("kazoo", "windowcount", "kill:replica@steady"),
        at_night("live_robin", "windowcount", "kill:replica@steady"),
        at_night("live_robin", "keycount", "kill:slot@3"),
        at_night("kazoo", "keycount", "kill:slot@3"),
    ],
)
def test_a_replica_that_was_killed_comes_back_and_is_full_again(lab, left, ordering, workload, fault):
    values = REPLICATED | {"ordering": ordering, "session_ms": 2000}
    manifest = good(lab.run(spec(workload=workload, fault=fault, seconds=12.0, **values)))
    assert manifest.verdict.others["diverged"] == 0
    assert not any("did not happen" in note for note in manifest.notes), manifest.notes
    assert any(note.startswith("replica 0 was full again") for note in manifest.notes), manifest.notes
    assert full(lab, manifest) == [2, 1, 2] and manifest.summary.fewer_replicas_s > 0
    assert "2 replicas were judged, each as if it had been alone: 0 bad" in of_replicas(manifest)
    assert left() == []


@pytest.mark.nightly("two minutes each; above one dies and comes back")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_two_replicas_die_one_after_the_other_and_both_come_back(lab, left, ordering):
    """The second one dies when the first is full. Of kazoo it is the leader twice in a row. The first one takes a spare
    Spark, and so does the second, unless the next spare is not there yet.
    """
    faults = "kill:replica@3, kill:replica@4"
    values = REPLICATED | {"ordering": ordering, "session_ms": 2000}
    manifest = good(lab.run(spec(seconds=100.0, trigger_s=1.0, fault=faults, spares=1, **values)))
    for number in (0, 1):
        assert any(note.startswith(f"replica {number} was full again") for note in manifest.notes), manifest.notes
    assert any("replica 0 was full again" in note and "its Spark took 0.0 s" in note for note in manifest.notes)
    assert full(lab, manifest) == [2, 1, 2, 1, 2]
    if ordering == "kazoo":
        assert all(re.match("0.*1.*0", replicas) for replicas in leaders(manifest)), manifest.notes
    assert left() == []
