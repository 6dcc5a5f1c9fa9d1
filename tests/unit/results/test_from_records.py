import math
import re
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from small_steps import step

from keyshift.histogram import class_of
from keyshift.model.keys import UnitId
from keyshift.model.records import (
    Instance,
    Measured,
    Sample,
    Second,
    SnapshotRecord,
    StepRecord,
    UnitCame,
    UnitLeft,
    UnitsCame,
    UnitsLeft,
)
from keyshift.planner import Decision
from keyshift.results.from_records import (
    OF_A_SLOT,
    bytes_minimum,
    decisions_table,
    fired,
    hosts,
    latency_table,
    metrics_table,
    migration_table,
    nothing_moved,
    snapshots_table,
    stage_latencies,
)

TRIGGER_US = 10_000_000


def migration(*rows):
    return pd.DataFrame(rows, columns=["source", "destination", "installed_s"]).assign(switched_s=math.nan)


def test_each_snapshot_is_told_of_stage_by_stage():
    first = SnapshotRecord(9_000_000, 9_500_000, {"map": 3, "counter": 100}, {"map": 3, "counter": 100}, "a")
    second = SnapshotRecord(11_000_000, 11_250_000, {"counter": 7, "map": 0}, {"map": 3, "counter": 104}, "b")
    table = snapshots_table([first, second], ["map", "counter"], TRIGGER_US, {"b": False}).to_pandas()
    names = ["snapshot", "stage", "begun_s", "completed_s", "bytes_written", "bytes_state", "verdict"]
    assert table[names].to_numpy().tolist() == [
        [0, 0, -1, -0.5, 3, 3, "not judged"],
        [0, 1, -1, -0.5, 100, 100, "not judged"],
        [1, 0, 1, 1.25, 0, 3, "bad"],
        [1, 1, 1, 1.25, 7, 104, "bad"],
    ]
    assert len(snapshots_table([], ["counter"], TRIGGER_US, {})) == 0
    judged = snapshots_table([first], ["map"], TRIGGER_US, {"a": True})
    assert judged["verdict"].to_pylist() == ["ok"]


def test_notes_say_where_slots_were_that_nothing_moved_though_it_should_have_and_latency_stage_by_stage():
    assert hosts({0: Measured(host="a"), 1: Measured(host="a")}) == []
    assert hosts({1: Measured(host="b"), 0: Measured(host="a"), 2: Measured(host="a")}) == [
        "slots 0, 2 on host-1; slots 1 on host-2"
    ]
    assert nothing_moved(2, migration((0, 1, 0.5), (0, 1, math.nan))) == []
    assert nothing_moved(0, migration((1, 1, 0.5))) == []
    assert nothing_moved(2, migration((0, 1, math.nan)).assign(switched_s=0.4)) == [], "a death came behind the switch"
    for nothing in (migration((0, 1, math.nan)), migration((1, 1, 0.5)), migration()):
        (line,) = nothing_moved(2, nothing)
        assert line.startswith("nothing moved: 2 units were to move")
    near, far = ({slot: Measured(latency=((class_of(ms), 5),)) for slot in range(2)} for ms in (10.0, 25.0))
    assert stage_latencies({"counter": near}) == []
    (line,) = stage_latencies({"counter": near, "second": far})
    assert re.search(r"counter (\d+\.\d) and \1 ms, second (\d+\.\d) and \2 ms$", line)


def test_what_had_to_move_is_what_units_had_when_they_moved():
    columns = ["stage", "step", "unit", "source", "destination", "bytes"]
    rows = [(0, 0, 1, 0, 1, 40), (0, 1, 1, 1, 2, 60), (0, 1, 2, 0, 1, 0), (0, 1, 3, 0, 0, 99)]
    moves, at_the_end = pd.DataFrame(rows, columns=columns), {0: {1: 100, 2: 30, 3: 99}}
    planned = pd.DataFrame([(0, 0, 1, 0), (0, 0, 1, 1), (0, 0, 2, 1)], columns=["stage", "migration", "unit", "step"])
    assert bytes_minimum(moves, planned, at_the_end, whole=True) == 60 + 30
    assert bytes_minimum(moves, planned, at_the_end, whole=False) == 100 + 30
    assert bytes_minimum(moves.iloc[:0], planned, at_the_end, whole=True) == 0
    back = pd.concat([moves, pd.DataFrame([(0, 2, 1, 2, 0, 70), (1, 0, 1, 0, 1, 5)], columns=columns)])
    again = pd.concat([planned, pd.DataFrame([(0, 1, 1, 0), (1, 0, 1, 0)], columns=planned.columns)])
    assert bytes_minimum(back, again, at_the_end | {1: {1: 8}}, whole=True) == 60 + 30 + 70 + 5, "in each migration"


def test_a_step_becomes_a_row_for_each_of_its_moves_and_those_of_several_stages_are_numbered_as_they_were_begun():
    complete = StepRecord(2, step((3, 0, 1), (1, 0, 2)), 0, TRIGGER_US + 100_000, TRIGGER_US + 200_000)
    sent = UnitLeft(1, 70, TRIGGER_US + 300_000, TRIGGER_US + 400_000), UnitLeft(3, 50, None, None)
    came = UnitCame(1, TRIGGER_US + 500_000, TRIGGER_US + 600_000)
    complete.released, complete.installed = {0: UnitsLeft(sent)}, {2: UnitsCame((came,), TRIGGER_US + 700_000)}
    table = migration_table([[complete, StepRecord(3, step((0, 1, 0)), 0)]], TRIGGER_US).to_pandas()
    moves = table[["step", "unit", "source", "destination", "bytes"]].to_numpy().tolist()
    assert moves == [[0, 3, 0, 1, 50], [0, 1, 0, 2, 70], [1, 0, 1, 0, 0]]
    times = ["prepared_s", "switched_s", "aligned_s", "sent_s", "received_s", "installed_s", "drained_s"]
    assert table.loc[1, times].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert table.loc[0, times[:2]].tolist() == pytest.approx([0.1, 0.2])
    assert table.loc[0, times[2:]].isna().all()
    assert table.loc[2, times].isna().all()
    assert len(migration_table([], TRIGGER_US)) == 0
    first = [StepRecord(2, step((3, 0, 1)), 5), StepRecord(3, step((4, 0, 1)), 9)]
    table = migration_table([first, [StepRecord(2, step((3, 1, 0)), 7)]], TRIGGER_US, 2).to_pandas()
    found = table[["step", "unit", "stage", "replica"]].to_numpy().tolist()
    assert found == [[0, 3, 0, 2], [1, 3, 1, 2], [2, 4, 0, 2]]


def test_latency_is_of_events_and_after_a_death_of_the_first_result_of_each():
    results = pd.DataFrame(
        {
            "router": [0, 0, 0, -1, 0],
            "offset": [5, 5, 6, -1, 5],
            "position": [0, 0, 1, -1, 0],
            "t": [TRIGGER_US + us for us in (-1_000_000, -1_000_000, 500_000, 0, 600_000)],
            "arrived_us": [TRIGGER_US + us for us in (9_000, 0, 502_500, 0, 604_000)],
            "slot": [1, 0, 1, 0, 0],
            "replica": [0, 1, 0, 0, 0],
        }
    )
    every = latency_table([results], TRIGGER_US, first_only=False).to_pandas()
    assert every["created_s"].tolist() == [-1.0, -1.0, 0.5, 0.6]
    assert every["latency_ms"].tolist() == pytest.approx([1009.0, 1000.0, 2.5, 4.0])
    first = latency_table([results], TRIGGER_US, first_only=True).to_pandas()
    assert first[["created_s", "latency_ms", "slot", "replica"]].to_numpy().tolist() == [
        [-1.0, 1000.0, 0, 1],
        [0.5, 2.5, 1, 0],
        [0.6, 4.0, 0, 0],  # in the place of one that Kafka has lost
    ]


def test_latency_of_very_many_results_takes_little_more_memory_than_its_table():
    rows = 50_000
    types = dict.fromkeys(("t", "arrived_us", "position"), "i8") | {"slot": "i4", "replica": "i2"}
    types |= {f"other {number}": "i8" for number in range(20)}
    results = pd.DataFrame({name: np.arange(rows) % 100 for name in types}).astype(types)
    tracemalloc.start()
    try:
        latency_table([results], TRIGGER_US, first_only=False)
        assert tracemalloc.get_traced_memory()[1] / rows < 80
    finally:
        tracemalloc.stop()


def test_what_timers_gave_is_counted_by_when_they_were_due():
    due = [1_700_000_000_000_000 + us for us in (50_000, 50_000, 80_000, 450_000, 460_000)]
    results = pd.DataFrame({"position": [-1, -1, -1, -1, 3], "t": due})
    rows = fired(results)
    timers = Instance("timers")
    assert [(round(at - 1_700_000_000, 3), *row) for at, *row in rows] == [
        (0.0, "timer_results", timers, 3.0),
        (0.0, "timer_moments", timers, 2.0),
        (0.4, "timer_results", timers, 1.0),
        (0.4, "timer_moments", timers, 1.0),
    ]
    assert fired(results[4:]) == []
    table = metrics_table(rows, [], 0.0, [], 1_700_000_000_000_000).to_pandas()
    assert table["t_s"].tolist() == pytest.approx([0.0, 0.0, 0.4, 0.4], abs=1e-5)


def test_metrics_are_those_of_processes_of_slots_and_of_the_collector_and_say_of_which_replica_they_are():
    measured = dict.fromkeys(OF_A_SLOT, 7)
    samples = [Sample(9.0, "rss_mib", Instance("spark_jvm"), 100.0)]
    slots = {3: Measured(latency=((class_of(8.0), 99), (class_of(30.0), 1)), **measured)}
    table = metrics_table(samples, [slots], 12.5, [Second(11, 40)], TRIGGER_US).to_pandas()
    of_stage = table[table["instance"] == "slots"].set_index("metric")["value"]
    assert of_stage.to_dict() == pytest.approx({"latency_p50_ms": 8.0, "latency_p99_ms": 8.0}, rel=0.03)
    assert table.iloc[0].tolist()[:4] == [-1.0, "rss_mib", "spark_jvm", 100.0]
    of_slot = table[table["instance"] == "slot-3"]
    assert set(of_slot["metric"]) == set(measured) and set(of_slot["value"]) == {7.0}
    assert set(of_slot["t_s"]) == {2.5} and set(of_slot["stage"]) == {0}
    assert table.iloc[-1].tolist()[:4] == [1.0, "throughput_per_s", "collector", 40.0]
    assert table.iloc[-1]["stage"] == -1
    assert len(metrics_table([], [], 0.0, [], TRIGGER_US)) == 0
    of_job = [Instance(replica=0), Instance(replica=1), Instance("pod 3", 1), Instance("pod 4")]
    samples = [
        *(Sample(9.0, "cpu_cores", instance, 0.5) for instance in of_job),
        Sample(9.0, "harness_cores", Instance("driver"), 0.5),
        Sample(9.0, "fault", Instance("kill replica"), 1.0),
    ]
    table = metrics_table(samples, [{3: Measured()}], 12.5, [Second(11, 40)], TRIGGER_US, 2).to_pandas()
    names = ["replica 0", "replica 1", "replica 1, pod 3", "pod 4", "driver", "kill replica"]
    assert table["instance"].tolist()[:6] == names
    assert table["replica"].tolist() == [0, 1, 1, 0, 0, 0, *[2] * (len(OF_A_SLOT) + 2), 0]


def test_decisions_keep_their_order_and_have_no_step_if_they_put_something_off():
    decisions = [(0, Decision(UnitId(4), 2, "first")), (1, Decision(UnitId(3), None, "put off"))]
    found = decisions_table([decisions]).to_pandas()[["migration", "unit", "step", "reason"]]
    assert found.to_numpy().tolist() == [[0, 4, 2, "first"], [1, 3, -1, "put off"]]
    assert len(decisions_table([])) == 0
