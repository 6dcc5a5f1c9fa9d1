"""What is written into ZooKeeper comes back as it was, and every path is there once."""

import json
from dataclasses import replace

import pytest

from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, UnitId
from keyshift.model.messages import codec
from keyshift.model.records import Measured, StepRecord, UnitCame, UnitLeft, UnitsCame, UnitsLeft
from keyshift.ordering import ChannelPlace, LogPlace, Position
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.protocol_log import LogEvent
from keyshift.wire import nodes
from keyshift.wire.faults import parse

FIRST = Step((Move(UnitId(1), SlotId(0), SlotId(2)),), Mode(gate="slots"))
SECOND = Step((), snapshot="one")
EVENTS = (LogEvent(5, "slot-1", "send", (3, 4), 2, 1, "slot-0"), LogEvent(6, "slot-1", "end of input"))
PLACES = (nodes.Location(3, "one/counter-0-ab-0", 0, 10, 77), nodes.Location(3, "two/counter-0-cd-0", 10, 5, 78, 2, 1))
MEASURED = Measured(1.5, 0.5, ((0, 7),), ((12, 7),), 1, 2, 3, 4, 5)
POSITION = Position((ChannelPlace(-1, 0, 3), ChannelPlace(17, 40_000, 3)), 2, 20_000, 2**64 - 1, LogPlace(4, 2, 1))
[FAULT] = parse("stop:slot@4:3s")
MESSAGES = {
    "assignment": (nodes.ASSIGNMENT, PublishAssignment(Assignment.contiguous(4, 2), frozenset({1, 0}), "one")),
    "steps": (nodes.STEPS, nodes.PublishedSteps(9, ((7, FIRST), (8, SECOND)), 3, "ab")),
    "no steps": (nodes.STEPS, nodes.PublishedSteps(9, (), 0, "")),
    "plan": (nodes.PLAN, nodes.WrittenPlan("ab", (FIRST, SECOND))),
    "restart": (nodes.RESTART, StepRecord(9, FIRST, 5, 6, 7, released={0: UnitsLeft((UnitLeft(1, 100, 5, 6),))})),
    "prepared": (nodes.ack(7, "prepared", 1), nodes.PhaseDone(5)),
    "captured": (nodes.ack(7, "captured", 1), nodes.PhaseDone(5)),
    "released": (nodes.ack(7, "released", 1), UnitsLeft((UnitLeft(1, 100, 5, 6), UnitLeft(2, 0, 5, 7)), 8)),
    "installed": (nodes.ack(7, "installed", 1), UnitsCame((UnitCame(1, 5, 6),), 7, 8)),
    "appointed": (
        nodes.ASSIGNMENT,
        PublishAssignment(
            Assignment.contiguous(4, 2), appointment=Appointment(9, holds=True), before=Assignment.contiguous(4, 1)
        ),
    ),
    "savepoint": (nodes.SAVEPOINT, nodes.SavepointCalled("0-ab")),
    "savepoint appointed": (nodes.SAVEPOINT, nodes.SavepointCalled("0-ab", Appointment(9))),
    "confirmed": (nodes.confirmed("0-ab")[nodes.of_epoch(9, 1)], False),
    "router between two batches": (nodes.ROUTERS[1], 7),
    "of a slot": (nodes.saved("0-ab")[nodes.of_slot(1)], nodes.SlotSaved(PLACES, 15)),
    "failed": (nodes.saved("0-ab")[nodes.of_slot(1)], nodes.SlotSaved(failed="away")),
    "of a router": (nodes.saved("0-ab")[nodes.of_router(1)], nodes.RouterSaved(17)),
    "writing": (nodes.WRITING[1], nodes.Writing("0-ab", 7)),
    "unreadable": (nodes.UNREADABLE[1], nodes.Unreadable("0-ab", "no checksum")),
    "restored": (nodes.RESTORED[1], nodes.Restored((UnitCame(1, 5, 6),))),
    "address": (nodes.ADDRESSES[1], "grpc://here:1"),
    "waiting": (nodes.WAITING[1], "grpc://here:1"),
    "handover": (nodes.HANDOVERS[1], nodes.Handover("here:1", (0, 1), 3, MEASURED, (7, 8), "0-ab", EVENTS)),
    "handover in turns": (
        nodes.HANDOVERS[1],
        nodes.Handover("here:1", (0, 1), 3, MEASURED, (7, 8), "", EVENTS, POSITION),
    ),
    "measure": (nodes.MEASURE, "ab"),
    "measured": (nodes.measured("ab")[1], replace(MEASURED, host="here", left_behind=(3,))),
    "copies": (nodes.COPIES, nodes.CopiesWanted("ab", FIRST.moves, 0.5, 10, whole=True)),
    "copying": (nodes.COPYING[1], 7),
    "copied": (nodes.copied("ab")[1], nodes.CopiesClose(1, 2, 3, 4, 5, 6)),
    "log": (nodes.LOG, "ab"),
    "logs": (nodes.logs("ab")["slot-1"], EVENTS),
    "fault": (nodes.FAULT, nodes.FaultNow(0, FAULT, 5)),
    "phase of a fault": (nodes.FAULTS[0], nodes.of_slot(1)),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_value_comes_back_as_it_was(message):
    node, value = MESSAGES[message]
    data = node.encode(value)
    assert node.decode(data) == value
    assert data, "what is empty counts as not there"
    json.loads(data)


def test_of_what_there_may_be_much_only_the_values_travel():
    assert json.loads(nodes.PLAN.encode(nodes.WrittenPlan("ab", (FIRST,))))["steps"][0]["moves"] == [[1, 0, 2]]
    places = json.loads(nodes.saved("ab")["slot-1"].encode(nodes.SlotSaved(PLACES)))["places"]
    assert places == [list(place) for place in PLACES]


@pytest.mark.parametrize("data", [b"{}", b"7", b'{"version": "new"}', b"no JSON"])
def test_a_value_of_another_kind_is_refused(data):
    with pytest.raises(ValueError, match="validation error"):
        nodes.STEPS.decode(data)


def test_a_step_has_one_of_a_few_outcomes():
    node, record = MESSAGES["restart"]
    with pytest.raises(ValueError, match="outcome"):
        node.decode(node.encode(record).replace(b"under way", b"gone"))


def test_a_process_may_make_all_codecs_ahead():
    nodes.make_codecs()
    before = codec.cache_info().misses
    for node, value in MESSAGES.values():
        node.encode(value)
    assert codec.cache_info().misses == before


def test_no_two_nodes_have_one_path():
    alike = {"no steps", "failed", "appointed", "savepoint appointed", "handover in turns"}
    paths = [node.path for message, (node, _) in MESSAGES.items() if message not in alike]
    assert len(set(paths)) == len(paths)


def test_a_node_is_found_from_the_root_of_its_job():
    there = nodes.of_stage(3, "counter")
    assert nodes.STEPS.below(there) == nodes.Node("3/counter/steps", nodes.PublishedSteps)
    acks = nodes.acks(7).below(there)
    assert acks["installed-1"].kind is UnitsCame and acks["installed-1"].path == "3/counter/acks/7/installed-1"


def test_whoever_hears_a_name_among_the_acknowledgements_knows_who_says_what():
    for phase in ("prepared", "captured", "released", "installed"):
        name = nodes.ack(7, phase, 12).path.rsplit("/", 1)[1]
        assert nodes.phase_and_slot(name) == (phase, 12)
