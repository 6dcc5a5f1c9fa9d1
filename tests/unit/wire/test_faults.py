"""Deliberate faults: what a text says, and when a slot is hit."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.model.keys import Move, SlotId, Step, UnitId
from keyshift.runtime.protocol_log import LogEvent
from keyshift.waiting import wait_until
from keyshift.wire.faults import Fault, FaultPoints, parse, parse_now

STEP = Step(tuple(Move(UnitId(u), SlotId(s), SlotId(d)) for u, s, d in ((0, 2, 1), (1, 0, 3), (2, 2, 3))))


def test_a_text_has_several_faults():
    assert parse("kill:source@transfer, stop:slot@batch:1.5s,kill:slot@12.5,cut:zookeeper@4:3s") == [
        Fault("kill", "source", "transfer", None),
        Fault("stop", "slot", "batch", None, 1.5),
        Fault("kill", "slot", "", 12.5),
        Fault("cut", "zookeeper", "", 4.0, 3.0),
    ]
    assert parse("") == []


def test_a_fault_that_is_asked_for_has_no_phase():
    assert parse_now("stop:coordinator:1.5s") == Fault("stop", "coordinator", "", None, 1.5)
    for text in ("kill:slot", "kill:replica", "kill:daemon", "restart:kafka", "restart:minio:3s"):
        assert str(parse_now(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is none of kill, stop, restart, cut, slow"),
        ("kill", "'' is none of source, destination, slot"),
        ("kill:slot@batch", "happens now, without @"),
        ("kill:destination", "destination is hit in a phase only; now can be hit slot, coordinator, daemon"),
        ("cut:flight", "flight is hit in a phase only"),
        ("slow:flight:1s", "flight is hit in a phase only"),
        ("cut:kafka:3s", "nobody is cut off unless a run begins with that"),
        ("kill:minio", "what can happen to minio is stop, restart"),
        ("stop:slot", "stop needs how long it is stopped"),
        ("kill:slot:3s", "kill needs no duration"),
        ("stop:coordinator:1e12s", "a duration is at most 3600 s"),
    ],
)
def test_a_fault_that_cannot_be_asked_for_is_refused_in_one_line(text, words):
    with pytest.raises(BadInput, match=f"(?s)^(?!.*\n).*{words}"):
        parse_now(text)


def test_a_fault_happens_once_in_its_phase_and_the_same_may_be_there_twice_at_a_time_and_in_two_phases():
    for fault in ("kill:coordinator@switch", "stop:source@align:3s"):
        with pytest.raises(BadInput, match=f"{fault} happens once in its phase"):
            parse(f"{fault}, kill:slot@4, {fault}")
    for who, *when in (("replica", "4", "4"), ("replica", "steady", "steady"), ("coordinator", "switch", "drain")):
        assert len(parse(",".join(f"kill:{who}@{each}" for each in when))) == 2


@pytest.fixture
def hit(monkeypatch):
    """The processes and signals."""
    found = []
    monkeypatch.setattr(os, "kill", lambda pid, how: found.append(how))
    return found


@pytest.mark.parametrize(
    ("fault", "slot", "event", "hits"),
    [
        ("kill:source@prepare", 0, "prepared", True),
        ("kill:source@align", 0, "barrier", True),
        ("kill:source@align", 0, "send", False),
        *(("kill:source@transfer", 0, event, True) for event in ("send", "lend", "return")),
        ("kill:source@transfer", 2, "send", False),  # not the first source
        ("kill:destination@install", 1, "arrived", True),
        ("kill:destination@install", 3, "arrived", False),
        ("kill:destination@drain", 1, "arrived", True),
        ("kill:slot@snapshot", 0, "capture", True),
        ("kill:slot@snapshot", 0, "send", False),
    ],
)
def test_the_first_slot_of_its_kind_is_hit_once_when_its_log_has_the_event_of_the_phase(hit, fault, slot, event, hits):
    points = FaultPoints(parse(fault), slot, 0)
    points.published([(5, STEP), (6, Step((), snapshot="s"))])
    points.heard(LogEvent(0, "slot", name, (), 5) for name in ("published", "acknowledged", "installed", "released"))
    assert not hit
    points.heard(LogEvent(0, "slot", event, (), version) for version in (6, 5, 5))
    assert hit == [signal.SIGKILL] * hits


def test_a_fault_of_no_step_hits_the_first_slot_of_the_first_stage_in_the_first_attempt(hit):
    for slot, attempt, first in ((0, 0, True), (1, 0, True), (0, 1, True), (0, 0, False)):
        FaultPoints(parse("kill:slot@batch"), slot, attempt, first=first).reached("batch")
        assert hit == [signal.SIGKILL]


@pytest.mark.parametrize(
    ("slot", "told"),
    [(0, ["align 0", "transfer 3", "snapshot 1"]), (1, ["install 2"]), (2, []), (3, [])],
)
def test_of_other_faults_the_first_slot_that_comes_to_their_phase_tells_once(hit, slot, told):
    faults = parse(
        "restart:kafka@align, restart:minio@snapshot, stop:zookeeper@install:2s, stop:source@transfer:1s, "
        "restart:zookeeper@prepare, restart:zookeeper@switch, restart:kafka@4"
    )
    heard = []
    points = FaultPoints(faults, slot, 0, lambda number: heard.append(number) or True)
    points.published([(5, STEP), (6, Step((), snapshot="s"))])
    for phase in ("prepare", "switch", "align", "transfer", "install", "drain", "align"):
        points.reached(phase, 5)
    points.reached("snapshot")
    assert [f"{faults[number].phase} {number}" for number in heard] == told
    assert hit == [signal.SIGSTOP] * (slot == 0), "only the source hits itself"


OF_FLIGHT = "cut:flight@transfer,slow:flight@transfer:0.2s"


def test_state_on_its_way_is_cut_off_once_and_slow_from_then_on(hit, monkeypatch):
    slept, cuts, told = [], [], []
    monkeypatch.setattr("keyshift.wire.faults.time", SimpleNamespace(sleep=slept.append))  # not for other threads
    points = FaultPoints(parse(OF_FLIGHT), 0, 0, lambda number: told.append(number) or True)
    points.published([(5, STEP)])
    points.sending(lambda: cuts.append("too early"))
    points.reached("transfer", 5)
    for unit in range(3):
        points.sending(lambda unit=unit: cuts.append(unit))
    assert (cuts, slept, told) == ([0], [0.2] * 3, [0, 1])
    assert not hit, "the process goes on"


def test_who_is_not_the_first_to_tell_is_not_hit(hit):
    points = FaultPoints(parse(f"stop:source@transfer:1s,{OF_FLIGHT}"), 0, 0, lambda number: False)
    points.published([(5, STEP)])
    points.reached("transfer", 5)
    points.sending(lambda: pytest.fail("it was cut off"))
    assert not hit


def test_in_a_later_batch_nothing_happens_again_but_what_was_slow_stays_slow(hit, monkeypatch):
    slept = []
    monkeypatch.setattr("keyshift.wire.faults.time", SimpleNamespace(sleep=slept.append))
    points = FaultPoints(parse(f"{OF_FLIGHT},stop:source@transfer:1s"), 0, 0, told={0, 1, 2})
    points.published([(5, STEP)])
    points.reached("transfer", 5)
    points.sending(lambda: pytest.fail("it was cut off"))
    assert (slept, hit) == ([0.2], [])


def test_without_faults_to_come_no_steps_are_kept():
    points, kept = FaultPoints([], 0, 0), sys.getrefcount(STEP)
    points.published([(5, STEP)])
    assert sys.getrefcount(STEP) == kept


@pytest.mark.parametrize(("who", "hits"), [("slot", 10), ("daemon", 20), ("executor", 30)])
def test_a_fault_hits_the_process_of_the_slot_or_one_above_it(monkeypatch, who, hits):
    java = SimpleNamespace(pid=30, cmdline=lambda: ["java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"])
    forking = SimpleNamespace(pid=20, cmdline=lambda: ["python", "-m", "keyshift.worker.daemon"], parent=lambda: java)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(pid=10, parent=lambda: forking))
    found = []
    monkeypatch.setattr(os, "kill", lambda *what: found.append(what))
    Fault("kill", who, "", 4.0).strike()
    assert found == [(hits, signal.SIGKILL)]


def test_a_process_that_is_not_there_any_more_is_not_mistaken_for_another(hit, monkeypatch):
    init = SimpleNamespace(pid=1, cmdline=lambda: ["init"])
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(pid=10, parent=lambda: init))
    Fault("kill", "daemon", "", 4.0).strike()
    with pytest.raises(KeyshiftError, match="has no executor above it"):
        Fault("kill", "executor", "", 4.0).strike()
    assert not hit


def test_a_process_that_is_stopped_goes_on_after_its_time():
    code = "from keyshift.wire.faults import parse; [fault] = parse('stop:slot@1:1.5s'); fault.strike(); print('on')"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    seen = psutil.Process(process.pid)
    assert wait_until(lambda: seen.status() == psutil.STATUS_STOPPED, 60, 0.01)
    assert process.communicate()[0] == "on\n"
