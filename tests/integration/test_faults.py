"""On real Spark a deliberate fault of slots makes the verdict bad, and a job survives what fails around it."""

import json
from collections.abc import Callable, Iterator

import pytest

from keyshift.wire import protocol_logs
from shared_lab import SharedLab
from small_run import good, spec


@pytest.fixture
def fault(shared_lab: SharedLab) -> Iterator[Callable[[str], object]]:
    """Gives the slots of this test's runs a fault."""
    yield shared_lab.fault_file.write_text
    shared_lab.fault_file.unlink()


def test_a_destination_that_does_not_wait_for_the_state_makes_the_verdict_bad(lab, fault, monkeypatch):
    monkeypatch.setattr(protocol_logs, "ANSWER_S", 60.0)  # every place has something to say
    fault("install_early")
    # Other faults need the routers to switch in different frames, which is up to chance here and to a seed in the
    # simulation (tests/property).
    manifest = lab.run(spec(strategy="all_at_once", rate=6000.0, seconds=6.0, trigger_s=2.0))
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


FAULTS = "kill:daemon@1,restart:minio@snapshot:2s,kill:coordinator@prepare,restart:zookeeper@switch"
FAULTS += ",stop:coordinator@align:1s,cut:flight@transfer,slow:flight@transfer:0.05s,restart:kafka@7"


def test_a_job_survives_what_fails_around_it(lab, session_stack):
    """All in one run: services are away, a coordinator dies and its successor is stopped, connections are cut."""
    before = {status.service: status.pid for status in session_stack.status()}
    manifest = good(lab.run(spec(strategy="fluid", workload="windowcount", snapshot_s=1.0, fault=FAULTS)))
    assert manifest.summary.units_moved == 16, manifest.notes
    assert not [note for note in manifest.notes if "happen" in note or "died" in note]
    assert [note for note in manifest.notes if "does not answer" in note and "the one before counts" in note]
    after = {status.service: status.pid for status in session_stack.status()}
    assert not set(before.items()) & set(after.items()), "each of them was started anew"
