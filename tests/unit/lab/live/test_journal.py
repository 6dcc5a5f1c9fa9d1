"""What is written down of a live job is read as it was."""

import json
from dataclasses import replace

from small_job import CONFIG

from keyshift.driver.job import Past
from keyshift.driver.snapshotter import Snapshot
from keyshift.driver.stage import StagePast
from keyshift.lab.live.journal import (
    config_from_json,
    decisions_from_json,
    decisions_to_json,
    past_from_json,
    past_to_json,
)
from keyshift.model.keys import Assignment, Assignments, Mode, Move, SlotId, Step, UnitId
from keyshift.model.notes import Note
from keyshift.model.records import Installed, Released, StepRecord, UnitCame, UnitLeft
from keyshift.planner import Decision
from keyshift.wire.savepoint import Savepoint

STEP = Step((Move(UnitId(3), SlotId(0), SlotId(1)),), Mode(gate="slots"))
SAVED = Savepoint("0-abc", {0: 7, 1: 8}, {"counter": {3: 12}, "second": {}})
INSTALLED = Installed((UnitCame(3, 4, 5),), 6)
COUNTER = StagePast(
    assignments=Assignments(
        [Assignment.contiguous(4, 2), Assignment(2, Assignment.contiguous(4, 2).owner), Assignment(5, (SlotId(1),) * 4)]
    ),
    begins=[0],
    records=[
        StepRecord(
            1,
            STEP,
            10,
            11,
            12,
            None,
            "late",
            {0: Released((UnitLeft(3, 5, 1, 2),))},
            {1: Installed((UnitCame(3, 4, 5),), 6)},
        ),
        StepRecord(2, STEP, 20),
    ],
)
PAST = Past(
    stages={"counter": COUNTER, "second": replace(COUNTER, records=[])},
    savepoints=[SAVED],
    snapshots=[Snapshot("snapshot-1", 2, {0: 3, 1: 4}, 9, {"counter": {0: 20, 3: 30}, "second": {0: 5}})],
    notes=[Note("one line", "counter")],
    revoked={2, 5},
    begun_from=SAVED,
    first_version=1,
)


def written(past):
    return json.loads(json.dumps(past_to_json(CONFIG, past)))


def test_the_way_of_a_job_is_read_as_it_was_written():
    assert past_from_json(written(PAST)) == PAST
    without = replace(PAST, begun_from=None, savepoints=[], snapshots=[])
    assert past_from_json(written(without)) == without


def test_the_configuration_goes_on_where_it_was_with_its_secret():
    config = replace(CONFIG, onward=(("second", 2),))
    before = replace(config, attempt=3, slots=5, onward=(("second", 3),), token="secret")
    raw = json.loads(json.dumps(past_to_json(before, PAST)))
    assert config_from_json(config, raw) == before


def test_decisions_are_read_as_they_were():
    decisions = [(0, Decision(UnitId(3), 1, "hot")), (1, Decision(UnitId(4), None, "put off"))]
    assert decisions_from_json(json.loads(json.dumps(decisions_to_json(decisions)))) == decisions
