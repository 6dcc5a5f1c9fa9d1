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


@pytest.fixture(autouse=True)
def nothing_left(lab):
    """No process below this one, and nothing where Spark has temporary files by default."""
    before, files = Counter(map(" ".join, commands())), {*temporary()}
    yield
    assert [*(Counter(map(" ".join, commands())) - before), *({*temporary()} - files)] == []


def temporary():
    """Folders of Sparks; those of the executors of a cluster of Spark's own have others."""
    return Path(tempfile.gettempdir()).glob("artifacts-*")


def judged(lab, **values):
    """A run that is judged ok, has each result once, and in which what was to fail did."""
    manifest = good(lab.run(spec(**(REPLICATED | values))))
    assert len(lab.store.get_table(manifest.run_id, "latency")) == manifest.summary.events
    assert not any("did not happen" in note for note in manifest.notes), manifest.notes
    return manifest


def of_replicas(manifest):
    """What the run says of them."""
    return next(note for note in manifest.notes if "as if it had been alone" in note)


def leaders(manifest):
    """Of each slot the replicas that led it, one after the other."""
    (note,) = (note for note in manifest.notes if note.startswith("leaders"))
    return [replicas.strip(", ") for replicas in re.findall(r"slot \d: ([\d, ]+)", note)]


@pytest.mark.nightly("a minute; the harness has such batches without Spark, and below two replicas live until the end")
def test_two_replicas_give_each_result_once_over_batches_that_end_at_different_times(lab):
    manifest = judged(lab, batch_s=5.0)
    assert (manifest.replicas, manifest.verdict.others["diverged"]) == (2, 0)
    assert set(lab.store.get_table(manifest.run_id, "latency")["replica"]) <= {0, 1}
    assert "2 replicas were judged, each as if it had been alone: 0 bad" in of_replicas(manifest)
    compared = int(of_replicas(manifest).split(" turns that two")[0].split()[-1])
    assert compared > 120, "of two slots, 10 turns a second"


@pytest.mark.nightly("a minute each; below one dies while state moves, and one comes back")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_a_replica_is_killed_and_every_result_comes_once_with_windows_and_timers(lab, ordering):
    """Of kazoo it is the one that begins first, so its slots lead."""
    values = LED | {"ordering": ordering, "workload": "windowcount"}
    manifest = judged(lab, fault="kill:replica@steady", returns=False, **values)
    latency = lab.store.get_table(manifest.run_id, "latency")
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
def test_replicas_move_their_state_together_and_one_dies_meanwhile(lab, phase, returns, more):
    fault = phase and f"kill:replica@{phase}"
    moves = {"strategy": "fluid", "to_slots": 3, "workload": "windowcount", "fault": fault, "returns": returns}
    manifest = judged(lab, **(moves | more))
    migration = lab.store.get_table(manifest.run_id, "migration")
    assert len(migration) and migration["drained_s"].notna().all()
    lives = "1 replica was" if fault and not returns else "2 replicas were"
    assert of_replicas(manifest).startswith(lives) and "and of all results, 0 differences" in of_replicas(manifest)


@pytest.mark.nightly("a minute each; order protocols are deposed in simulation")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_a_replica_that_stood_for_longer_than_its_session_does_no_harm_when_it_goes_on(lab, ordering):
    values = LED | {"ordering": ordering, "workload": "windowcount"}
    manifest = judged(lab, seconds=14.0, fault="stop:replica@steady:4s", **values)
    assert of_replicas(manifest).startswith("2 replicas were") and not any(" died " in note for note in manifest.notes)
    if ordering == "kazoo":
        assert any("1" in replicas for replicas in leaders(manifest)), "another one has led meanwhile"


@pytest.mark.nightly("a minute each; below one is cut off before it dies")
@pytest.mark.parametrize("fault", ["cut:kafka@3:3s", "cut:zookeeper@3:3s", "cut:kafka@3:1s,cut:zookeeper@5:3s"])
def test_a_replica_that_was_cut_off_for_longer_than_its_session_does_no_harm_when_it_is_back(lab, fault):
    manifest = judged(lab, workload="windowcount", seconds=9.0, trigger="none", fault=fault, **LED)
    assert of_replicas(manifest).startswith("2 replicas were") and not any(" died " in note for note in manifest.notes)
    led = leaders(manifest)
    assert led and all("1" in replicas for replicas in led), f"another one has led all slots meanwhile: {led}"


@pytest.mark.nightly("a minute each; the harness has replicas that move one after the other without Spark")
@pytest.mark.parametrize("fault", ["", "kill:replica@transfer"])
def test_one_moves_its_state_after_the_other_and_one_dies_meanwhile(lab, fault):
    moves = {"strategy": "fluid", "to_slots": 3, "workload": "windowcount", "replicas_move": "one_by_one"}
    manifest = judged(lab, fault=fault, returns=False, **moves)
    assert lab.store.get_table(manifest.run_id, "migration")["drained_s"].notna().all()
    moved = [note for note in manifest.notes if " moved in " in note]
    assert [note.split()[1] for note in moved] == (["1"] if fault else ["0", "1"])
    assert "and of all results, 0 differences" in of_replicas(manifest)


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
def test_a_replica_that_was_killed_comes_back_and_is_full_again(lab, ordering, workload, fault):
    """Of kazoo it is the leader: the other one, if the first was cut off before."""
    values = LED | {"ordering": ordering, "workload": workload}
    manifest = judged(lab, fault=fault, seconds=12.0, **values)
    assert manifest.verdict.others["diverged"] == 0
    number = 1 if "cut:" in fault else 0
    assert any(note.startswith(f"replica {number} was full again") for note in manifest.notes), manifest.notes
    assert full(lab, manifest) == [2, 1, 2] and manifest.summary.fewer_replicas_s > 0
    assert "2 replicas were judged, each as if it had been alone: 0 bad" in of_replicas(manifest)


@pytest.mark.nightly("two minutes each; above one dies and comes back")
@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_two_replicas_die_one_after_the_other_and_both_come_back(lab, ordering):
    """The second one dies when the first is full. Of kazoo it is the leader twice in a row. The first one takes a spare
    Spark, and so does the second, unless the next spare is not there yet.
    """
    values = LED | {"ordering": ordering, "fault": "kill:replica@3, kill:replica@4", "spares": 1}
    manifest = judged(lab, seconds=100.0, trigger_s=1.0, **values)
    for number in (0, 1):
        assert any(note.startswith(f"replica {number} was full again") for note in manifest.notes), manifest.notes
    assert any("replica 0 was full again" in note and "its Spark took 0.0 s" in note for note in manifest.notes)
    assert full(lab, manifest) == [2, 1, 2, 1, 2]
    if ordering == "kazoo":
        assert all(re.match("0.*1.*0", replicas) for replicas in leaders(manifest)), manifest.notes
