"""Slots with a deliberate fault on real Spark: the job goes on, or the verdict is bad."""

import json
from collections.abc import Callable, Iterator

import pytest

from shared_lab import SharedLab
from small_run import spec


@pytest.fixture
def fault(shared_lab: SharedLab) -> Iterator[Callable[[str], object]]:
    """Gives the slots of this test's runs a fault."""
    yield shared_lab.fault_file.write_text
    shared_lab.fault_file.unlink()


@pytest.mark.nightly("a minute; tests/unit/driver has steps that are rolled back without Spark")
def test_a_step_that_is_not_prepared_in_time_is_rolled_back_and_the_job_goes_on(lab, fault):
    fault("never_prepared")
    manifest = lab.run(spec(strategy="fluid", deadline_s=4.0))  # of the last savepoint, too
    assert manifest.status == "ok", manifest.verdict.examples
    assert any("rolled back" in note for note in manifest.notes)
    assert "protocol.jsonl" not in manifest.files
    assert manifest.summary.units_moved == 0


@pytest.mark.nightly("half a minute; tests/unit/driver has steps that are late without Spark")
def test_a_step_that_does_not_end_in_time_goes_forward_and_the_job_goes_on(lab, fault):
    fault("never_installed")
    run = spec(strategy="fluid", deadline_s=3.0, then_slots="1", gap_s=3.0)  # slots must be prepared within that
    manifest = lab.run(run)
    assert manifest.status == "ok", manifest.verdict.examples
    assert [note for note in manifest.notes if "goes forward" in note], manifest.notes
    assert manifest.summary.steps == 1


@pytest.mark.nightly("half a minute; tests/unit/driver has steps that are late, the harness routers that are paused")
def test_a_step_that_is_late_lets_paused_routers_go_and_the_job_comes_to_its_savepoint(lab, fault):
    fault("never_installed")
    manifest = lab.run(spec(strategy="pause_resume", deadline_s=3.0))
    assert manifest.status == "ok", manifest.verdict.examples
    assert [note for note in manifest.notes if "goes forward" in note], manifest.notes


def test_a_destination_that_does_not_wait_for_the_state_makes_the_verdict_bad(lab, fault):
    fault("install_early")
    # Other faults need the routers to switch in different frames, which is up to chance here and to a seed in the
    # simulation (tests/property).
    manifest = lab.run(spec(strategy="all_at_once", rate=6000.0))
    assert manifest.status == "bad"
    assert manifest.verdict.wrong > 0
    assert manifest.verdict.examples
    assert lab.store.get_manifest(manifest.run_id) == manifest
    lines = lab.store.get_file(manifest.run_id, "protocol.jsonl").splitlines()
    events = [json.loads(line) for line in lines]
    places = {"coordinator", *(f"slot-{n}" for n in range(4)), *(f"router-{n}" for n in range(2))}
    assert {event["place"] for event in events} == places
    order = {(event["event"], *event["units"]): number for number, event in reversed(list(enumerate(events)))}
    (publish,) = (event for event in events if event["event"] == "publish")
    for unit in publish["units"]:
        assert order["send", unit] < order["arrived", unit] < order["acknowledged", unit]


FAULTS = (
    "kill:daemon@1",
    "restart:minio@snapshot:1s",
    "kill:coordinator@prepare",
    "restart:zookeeper@switch",
    "stop:coordinator@align:1s",
    "cut:flight@transfer",
    "slow:flight@transfer:0.05s",
    "restart:kafka@7",
)


def test_a_job_survives_what_fails_around_it(lab, session_stack):
    """All in one run: services are away, a coordinator dies and its successor is stopped, connections are cut."""
    before = {status.service: status.pid for status in session_stack.status()}
    manifest = lab.run(spec(strategy="fluid", workload="windowcount", snapshot_s=1.0, fault=",".join(FAULTS)))
    assert manifest.status == "ok", manifest.verdict.examples
    assert manifest.summary.units_moved == 16, manifest.notes
    assert not [note for note in manifest.notes if "happen" in note or "died" in note]
    assert [note for note in manifest.notes if "does not answer" in note and "the one before counts" in note]
    after = {status.service: status.pid for status in session_stack.status()}
    assert not set(before.items()) & set(after.items()), "each of them was started anew"
