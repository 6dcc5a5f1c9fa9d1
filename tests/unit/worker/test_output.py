"""What a slot sends on to the next stage, without Spark and ZooKeeper: whose router it is, and in which order."""

from dataclasses import replace

import pyarrow as pa
import pytest
from small_job import CONFIG

from keyshift.model.keys import Assignment
from keyshift.model.markers import SlotMarker, TurnTold
from keyshift.model.messages import decode
from keyshift.ordering import Position
from keyshift.ordering.model import ChannelPlace
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, DATA, KINDS, MOVED, SAVEPOINT, SNAPSHOT, TICK
from keyshift.runtime.slot import Cut, Moved
from keyshift.runtime.succession import UnitsMoved
from keyshift.runtime.turns import TurnEnd
from keyshift.wire import nodes
from keyshift.wire.config import result_schema
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ASSIGNMENT
from keyshift.wire.spark_rows import MARKER, received
from keyshift.worker import output as outputs
from keyshift.worker import router as routing
from keyshift.worker.output import NextStage
from keyshift.worker.turn_output import NextTurns, make_output
from keyshift.workloads import workloads

CHAIN = workloads.get("chain")(**CONFIG.parameters, chain="counter,counter")
FIRST = replace(
    CONFIG, workload="chain", parameters=CHAIN.model_dump(), stage="counter-1", onward=(("counter-2", 2),), hop_us=1000
)
SAID = (DATA, BARRIER, SNAPSHOT, SAVEPOINT, MOVED)


def published(version, snapshot="", paused=()):
    assignment = replace(Assignment.contiguous(4, 2), version=version)
    return PublishAssignment(assignment, frozenset(paused), snapshot)


@pytest.fixture
def onward(monkeypatch):
    """That of slot 0, which has given a result; ``publish`` is what the next stage's routers are told."""
    memory = Memory()
    monkeypatch.setattr(routing, "Coordination", lambda _, root, secret: MemoryCoordination(memory, root))
    driver = MemoryCoordination(memory, FIRST.next.root)
    driver.begin()
    driver.publish(ASSIGNMENT, published(1))
    made = make_output(FIRST, 0, None)
    assert isinstance(made, NextStage)
    made.driver, made.publish = driver, lambda *said: driver.publish(ASSIGNMENT, published(*said))
    given(made, [result(1)], 100)  # the first row of a router has a barrier
    return made


def result(key):
    schema = result_schema(FIRST.make_stage())
    columns = [pa.array([key if field.name == "key" else 0], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def given(onward, results, at_ms):
    """Kind and version of what goes out, for one of the slots; ticks are left out."""
    slots = onward.give(results, [], at_ms * 1000)
    rows = [(row.kind, row.version) for batch in slots for row in received(batch.select(["value"])) if row.kind in SAID]
    return [row for row in rows if row[0] == DATA] + sorted({row for row in rows if row[0] != DATA})


def received_by(batches):
    """Slots, each with a row that goes out to it."""
    found = []
    for batch in batches:
        found += zip(batch["task"].to_pylist(), received(batch.select(["value"])), strict=True)
    return found


def test_results_are_gathered_for_a_while_and_go_on_together(onward):
    assert given(onward, [result(1)], 100) == []
    assert given(onward, [result(2)], 100) == []
    assert len(given(onward, [result(3)], 101)) == 2, "three results for two slots"


def test_results_go_on_and_a_slot_without_any_hears_the_time_though_the_clock_is_set_back(onward):
    def kinds(at_s):
        batches = onward.give([result(1)], [], round(at_s * 1e6))
        return {row.kind for batch in batches for row in received(batch.select(["value"]))} & {DATA, TICK}

    assert [kinds(at_s) for at_s in (10.0, 10.002, 5.0)] == [{DATA, TICK}, {DATA}, {DATA, TICK}]


def test_what_a_unit_leaves_behind_goes_on_under_the_version_that_was_promised(onward):
    assert onward.promise([Moved(0, 7, 0, True)]) == 1
    onward.publish(2)
    rows = given(onward, [result(1), Moved(0, 7, 0, True)], 100)
    assert {version for _, version in rows} == {1}
    assert (BARRIER, 2) in given(onward, [result(1)], 102)


def test_what_a_unit_brings_along_waits_for_the_version_that_its_old_slot_has_used(onward):
    assert given(onward, [Moved(0, 7, 0, False, 2), result(1)], 102) == []
    assert onward.holds
    onward.publish(2)
    rows = given(onward, [], 104)
    assert (BARRIER, 2) in rows and (MOVED, 2) in rows and (DATA, 2) in rows
    assert not onward.holds


def test_slots_that_exchange_units_do_not_wait_for_each_other(onward):
    """One has left under version 1, and another one came whose old slot knew version 2 already."""
    assert onward.promise([Moved(0, 7, 0, True)]) == 1
    onward.publish(2)
    rows = given(onward, [result(1), Moved(0, 7, 0, True), Moved(3, 7, 0, False, 2), result(1)], 102)
    assert (DATA, 1) in rows and (DATA, 2) in rows and not onward.holds


def test_a_unit_that_comes_and_leaves_promises_what_it_has_brought_along(onward):
    assert onward.promise([Moved(3, 7, 0, False, 2), Moved(3, 8, 0, True)]) == 2
    onward.publish(2)
    rows = given(onward, [Moved(3, 7, 0, False, 2), result(1), Moved(3, 8, 0, True)], 102)
    assert (DATA, 2) in rows and not onward.holds


def test_a_unit_that_comes_and_leaves_with_nothing_between_is_said_in_two_rows(onward):
    """The next stage would hear the end at once, before the unit's results have come from where it was before."""
    ends, comes, beside = Moved(3, 7, 0, True), Moved(3, 8, 0, False, 1), Moved(2, 8, 0, False, 1)
    leaves, follows = Moved(3, 9, 0, True), Moved(2, 9, 0, True)
    batches = onward.give([ends, comes, beside, leaves, follows], [], 0)
    found = [row for slot, row in received_by(batches) if slot == 0 and row.kind == MOVED]
    said = [decode(UnitsMoved, bytes(row.payload)) for row in found]
    assert said == [UnitsMoved(((3, 8, 0), (2, 8, 0)), ((3, 7, 0),)), UnitsMoved((), ((3, 9, 0), (2, 9, 0)))]


def test_no_slot_is_paused_until_a_snapshot_begins(onward):
    """That the step before is complete was published just before, and what is published replaces what was."""
    onward.publish(2, "", [0, 1])
    assert given(onward, [result(1)], 102) == [(BARRIER, 2)]
    onward.publish(3, "snapshot-1")
    onward.request_savepoint("savepoint-1")
    assert given(onward, [], 104) == [(DATA, 2), (SAVEPOINT, 2)]


def test_a_snapshot_begins_where_the_results_of_the_slot_are_cut(onward):
    onward.publish(2, "snapshot-1")
    assert {version for _, version in given(onward, [result(1)], 102)} == {1}
    rows = given(onward, [result(1), Cut("snapshot-1", True), result(1)], 104)
    assert [kind_version for kind_version in rows if kind_version[0] == DATA] == [(DATA, 1), (DATA, 2)]
    assert (SNAPSHOT, 2) in rows


def test_a_snapshot_that_the_slot_hears_of_behind_its_cut_is_a_plain_switch(onward, monkeypatch):
    """It was given up here, and other slots of the stage may have come to it."""
    monkeypatch.setattr(outputs, "CUT_S", -1.0)
    given(onward, [result(1), Cut("snapshot-1", True)], 102)
    onward.publish(2, "snapshot-1")
    assert (BARRIER, 2) in given(onward, [result(1)], 104)
    onward.publish(3, "snapshot-2")
    assert {version for _, version in given(onward, [result(1)], 106)} == {2}
    assert (SNAPSHOT, 3) in given(onward, [Cut("snapshot-2", True)], 108)


def test_a_unit_whose_old_slot_has_come_to_a_snapshot_waits_for_no_cut_that_never_comes_here(onward):
    onward.publish(2, "snapshot-1")
    rows = given(onward, [Moved(0, 7, 0, False, 2), result(1)], 102)
    assert (BARRIER, 2) in rows and (DATA, 2) in rows and not onward.holds


H = 20_000


@pytest.fixture
def turns(onward):
    """``onward`` of a slot that works in turns, at the turn and epoch that it has come to."""
    config = replace(FIRST, ordering="live_robin", heartbeat_us=H)

    def begin(turn, **changes):
        made = make_output(
            replace(config, **changes), 0, Position((ChannelPlace(0, turn * H, 1),), turn) if turn else None
        )
        assert isinstance(made, NextTurns)
        return made

    begin.driver = onward.driver
    return begin


def rows_of(batches):
    """Kind, version, offset and chain of what one of the slots gets, without primers."""
    rows = [row for slot, row in received_by(batches) if slot == 0 and row.kind in KINDS]
    return [(row.kind, row.version, row.offset, row.chain) for row in rows]


def test_a_slot_that_works_in_turns_says_each_of_them_and_none_is_gathered(turns):
    output = turns(4)
    assert rows_of(output.give([TurnEnd(5, 5 * H, 9)], [], 0)) == [(TICK, 1, 5, 9), (BARRIER, 1, 5, 9)]
    assert rows_of(output.give([result(1), result(1)], [], 0)) == []
    assert [row[2:] for row in rows_of(output.give([TurnEnd(6, 6 * H, 8)], [], 0))] == [(6, 8)]
    assert output.rest() == [] and turns.driver.read(nodes.ROUTERS[0]) == 6 * H
    assert rows_of(turns(6).give([Cut("s", False)], [], 0)) == [(BARRIER, 1, 6, 0), (SAVEPOINT, 1, 6, 0)]
    assert turns.driver.read(nodes.ROUTERS[0]) is None, "it answers for itself"


def test_it_confirms_what_is_appointed_in_the_next_stage_and_its_turns_wait_for_the_outcome(turns):
    output, second = turns(0), replace(Assignment.contiguous(4, 2), version=2)
    output.give([TurnEnd(1, H, 9)], [], 0)

    def appoint(epoch, holds=False):
        told = PublishAssignment(second, appointment=Appointment(epoch, holds), before=Assignment.contiguous(4, 2))
        turns.driver.publish(ASSIGNMENT, told)

    appoint(1)
    appoint(3)
    said = turns.driver.read_below(nodes.confirmed("2"))
    assert {nodes.epoch_and_router(name): answer for name, answer in said.items()} == {(1, 0): False, (3, 0): True}
    assert rows_of(output.give([TurnEnd(2, 4 * H, 8)], [], 0)) == [] and output.holds
    appoint(3, holds=True)
    assert rows_of(output.give([], [], 0)) == [(TICK, 1, 2, 8), (BARRIER, 2, 2, 8)] and not output.holds
    output.rest()
    appoint(5)
    assert nodes.of_epoch(5, 0) not in turns.driver.read_below(nodes.confirmed("2"))


@pytest.mark.parametrize("replicated", [False, True])
def test_one_of_ten_turns_of_a_stage_before_the_last_one_is_told_to_be_compared(turns, replicated):
    output = turns(18, **({"input_of": "all"} if replicated else {}))
    ends = [TurnEnd(number, number * H, number + 100) for number in range(19, 32)]
    batches = output.give([*ends, TurnEnd(40, 40 * H, None)], [], 0)
    rows = [row for batch in batches for row in received(batch.select(["value"])) if row.kind == MARKER]
    said = [decode(SlotMarker, bytes(row.payload)) for row in rows]
    wanted = [SlotMarker(0, TurnTold("counter-1", number, number, number + 100)) for number in (20, 30)]
    assert said == (wanted if replicated else [])
