from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.lab.judge.sequential import run_sequentially
from keyshift.model.keys import Assignment, units_of
from keyshift.results.verdict import judge
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads import workloads
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount import WindowCount
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW
from keyshift.workloads.windowcount.source import LATE_BY

MS = 1000
ASSIGNMENTS = [Assignment.contiguous(8, 2), Assignment.contiguous(8, 3, 2)]


def make(**changes) -> WindowCount:
    plain = {"key_groups": 8, "keys": 20, "skew": 0.5, "state_bytes": 21, "seed": 3}
    short = {"window_ms": 20, "delay_ms": 10, "late_share": 0.1, "idle_ms": 15}
    return WindowCount(**(plain | short | changes))


def offline(workload: WindowCount, **changes):
    run = run_sequentially(workload, ASSIGNMENTS, **({"frames": 12} | changes))
    return run.events, run.results, run.final, run.times


@cache
def _plain():
    return offline(make())


def plain() -> tuple[pd.DataFrame, pd.DataFrame, list[pd.DataFrame], Times]:
    """A copy of the run with the parameters of ``make()``, to be changed."""
    events, results, final, times = _plain()
    timers = Times(times.frames, [part.copy() for part in times.timers], ASSIGNMENTS)
    return events.copy(), results.copy(), [part.copy() for part in final], timers


def wrong(workload: WindowCount, events, results, final, times) -> list[str]:
    return list(workload.wrong(events, results, iter(final), times))


def answers(results: pd.DataFrame) -> pd.DataFrame:
    return results[results["kind"] == ANSWER]


class OneUnit:
    """An operator with one unit that holds keys 0 to 19. Times are in ms."""

    def __init__(self, **changes) -> None:
        workload = make(key_groups=1, **changes)
        self.operator = workload.stages[0].operator()
        self.state = MemoryState(self.operator.state_schema)
        self.operator.initial(0, self.state)

    def advance(self, watermark_ms: float, now_ms: float) -> list[tuple]:
        """(kind, key, start, count) of each timer that was due."""
        self.state.timers.reach(int(watermark_ms * MS), int(now_ms * MS))
        fired = self.operator.advance([self.state])
        rows = [] if fired is None else fired.to_pylist()
        return [(row["kind"], row["key"], row["start"] / MS, row["count"]) for row in rows]

    def process(self, watermark_ms: float, *events: tuple[int, float, float]) -> list[tuple]:
        """(start, late, count, sum) of each of the events (key, t, at)."""
        keys, times, ats = (np.array(column) for column in zip(*events, strict=True))
        columns = {"key": keys, "t": (times * MS).astype("i8"), "at": (ats * MS).astype("i8")}
        columns |= {"position": np.arange(len(keys), dtype="i4"), "unit": np.zeros(len(keys), "i4")}
        batch = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
        self.state.timers.reach(int(watermark_ms * MS))
        answer = self.operator.process(batch, lambda unit: self.state)
        return [(r["start"] / MS, r["late"], r["count"], r["sum"] / MS) for r in answer.to_pylist()]


# -- parameters and source -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"window_ms": 0}, {"delay_ms": -1}, {"late_share": 1.1}, {"late_share": -0.1}, {"idle_ms": -1}, {"keys": 0}],
    ids=str,
)
def test_an_impossible_parameter_is_named(change):
    with pytest.raises(ValidationError, match=next(iter(change))):
        make(**change)


def test_it_is_registered_and_needs_only_the_parameters_of_every_workload():
    assert workloads.get("windowcount") is WindowCount
    workload = WindowCount(key_groups=8, keys=20, skew=0, state_bytes=16, seed=1)
    assert (workload.window_us, workload.lag_us, workload.idle_us) == (500_000, 200_000, 1_000_000)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 3))
def test_events_do_not_depend_on_how_many_are_taken_at_once(chunks, router):
    times = np.arange(sum(chunks), dtype=np.int64) * MS
    source, begin, parts = make().sources[0].partition(router), 0, []
    for chunk in chunks:
        parts.append(source.take(times[begin : begin + chunk]))
        begin += chunk
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([make().sources[0].partition(router).take(times)])


def test_most_delays_are_regular_and_the_given_share_is_longer():
    times = np.arange(50_000, dtype=np.int64) * MS
    batch = make().sources[0].partition(0).take(times)
    delay = times - batch["at"].to_numpy()
    late = delay > 10 * MS
    assert late.mean() == pytest.approx(0.1, rel=0.1)
    assert delay.min() >= 0
    assert delay.max() <= 10 * MS + LATE_BY * 20 * MS + 1
    assert delay[~late].mean() == pytest.approx(5 * MS, rel=0.05)


def test_without_delay_and_late_events_the_event_time_is_the_time_of_creation():
    times = np.arange(100, dtype=np.int64)
    assert (
        make(delay_ms=0, late_share=0).sources[0].partition(0).take(times)["at"].to_numpy().tolist() == times.tolist()
    )


# -- operator --------------------------------------------------------------------------------------------------------


def test_a_window_counts_its_events_and_fires_once_when_the_watermark_passes_its_end_by_the_lag():
    unit = OneUnit(idle_ms=0)
    assert unit.process(100, (1, 105, 104), (2, 105, 104), (1, 106, 99), (1, 106, 100)) == [
        (100, False, 1, 1),
        (100, False, 1, 1),
        (80, False, 1, 7),
        (100, False, 2, 7),
    ]
    assert unit.advance(109.999, 0) == []
    assert unit.advance(110, 0) == [(WINDOW, 1, 80, 1)]
    assert unit.advance(129.999, 0) == []
    assert unit.advance(130, 0) == [(WINDOW, 1, 100, 2), (WINDOW, 2, 100, 1)]
    assert unit.advance(1000, 0) == []
    assert unit.state.values[1][:3] == ([], [], [])


def test_an_event_behind_the_watermark_less_the_lag_is_late_and_changes_nothing():
    unit = OneUnit(idle_ms=0)
    assert unit.process(112, (1, 112, 102)) == [(100, False, 1, 10)]
    assert unit.process(112, (1, 112, 101.999)) == [(100, True, 0, 0)]  # although its window is still open
    assert unit.process(112, (2, 112, 50)) == [(40, True, 0, 0)]
    assert unit.advance(130, 0) == [(WINDOW, 1, 100, 1)]


def test_a_unit_keeps_the_watermark_it_had_when_its_new_slot_lags_behind():
    unit = OneUnit(idle_ms=0)
    unit.advance(150, 0)
    assert unit.process(100, (1, 151, 139)) == [(120, True, 0, 0)]
    assert unit.process(100, (1, 151, 140)) == [(140, False, 1, 11)]
    assert unit.advance(90, 0) == []
    assert unit.state.timers.watermark == 150 * MS


def test_a_queued_record_meets_the_watermark_of_its_place_in_the_queue():
    # The slot is at 200, but the record was queued when it was at 110: the window is not closed before the record.
    unit = OneUnit(idle_ms=0)
    assert unit.advance(110, 500) == []
    assert unit.process(110, (1, 111, 101)) == [(100, False, 1, 10)]
    assert unit.advance(200, 500) == [(WINDOW, 1, 100, 1)]


def test_windows_begin_at_multiples_of_their_length_also_before_the_epoch():
    assert OneUnit().process(0, (1, 0, -1), (1, 0, 0)) == [(-20, False, 1, 1), (0, False, 1, 0)]


def test_a_key_without_events_for_so_long_falls_idle_once_until_its_next_event():
    unit = OneUnit()
    assert unit.advance(0, 100) == []
    unit.process(0, (1, 100, 100), (2, 100, 100))
    unit.advance(0, 110)
    unit.process(0, (1, 110, 110))
    assert unit.advance(0, 114.999) == []
    assert unit.advance(0, 115) == [(IDLE, 2, 100, 0)]
    assert unit.advance(0, 124.999) == []
    assert unit.advance(0, 126) == [(IDLE, 1, 110, 0)]
    assert unit.advance(0, 500) == []
    unit.process(0, (2, 500, 500))
    assert unit.advance(0, 600) == [(IDLE, 2, 500, 0)]


def test_a_late_event_keeps_its_key_from_falling_idle():
    unit = OneUnit()
    unit.advance(500, 100)
    assert unit.process(500, (1, 500, 0)) == [(0, True, 0, 0)]
    assert unit.advance(500, 115) == [(IDLE, 1, 100, 0)]


def test_no_key_falls_idle_if_that_is_turned_off():
    unit = OneUnit(idle_ms=0)
    unit.advance(0, 100)
    unit.process(0, (1, 100, 100))
    assert unit.state.timers.next(PROCESSING) is None
    assert unit.advance(0, 10**6) == []


def test_the_clock_of_a_unit_does_not_go_back_when_it_moves_to_a_slot_whose_clock_does():
    unit = OneUnit()
    unit.advance(0, 100)
    unit.advance(0, 90)
    unit.process(0, (1, 100, 100))
    assert unit.advance(0, 114) == []
    assert unit.advance(0, 115) == [(IDLE, 1, 100, 0)]


def test_a_key_has_one_timer_per_window_and_one_for_idleness():
    unit = OneUnit()
    for now in range(100, 140):
        unit.advance(0, now)
        unit.process(0, (1, now, now))
    assert len(unit.state.timers) == 3
    assert unit.state.timers.next(EVENT) == 130 * MS


def test_a_key_whose_state_is_missing_begins_anew_and_its_timers_are_no_trouble():
    unit = OneUnit()
    unit.advance(0, 100)
    unit.process(0, (1, 105, 104))
    unit.state.delete(1)
    assert unit.advance(130, 1000) == [(IDLE, 1, 100, 0)]
    assert unit.process(130, (1, 130, 130)) == [(120, False, 1, 0)]
    assert unit.state.values[1][4] == make(key_groups=1).payloads(np.array([1]), np.array([0])).tobytes()


# -- oracle ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    run=st.fixed_dictionaries(
        {"routers": st.integers(1, 3), "frames": st.integers(1, 15), "events_per_frame": st.integers(1, 25)}
    ),
    parameters=st.fixed_dictionaries(
        {
            "keys": st.integers(1, 40),
            "window_ms": st.integers(1, 40),
            "delay_ms": st.integers(0, 20),
            "late_share": st.floats(0, 1),
            "idle_ms": st.integers(0, 40),
            "skew": st.floats(0, 2),
        }
    ),
)
def test_a_run_without_mistakes_has_nothing_wrong(run, parameters):
    workload = make(**parameters)
    assert wrong(workload, *offline(workload, **run)) == []


@settings(max_examples=30)
@given(st.data())
def test_lost_results_alone_are_not_wrong_as_they_are_counted_elsewhere(data):
    workload = make()
    events, results, final, times = plain()
    lost = data.draw(st.sets(st.sampled_from(answers(results).index.tolist()), max_size=40))
    assert wrong(workload, events, results.drop(index=list(lost)), final, times) == []


def test_a_run_has_results_of_all_kinds_and_windows_left_so_that_what_follows_shows_something():
    _, results, final, _ = plain()
    assert results.groupby(["kind", "late"]).size().min() > 20
    assert sum(part["starts"].str.len().sum() for part in final) > 10


def told_wrong(change) -> list[str]:
    """What the oracle says after ``change(results, final)``, which returns the results it leaves."""
    workload = make()
    events, results, final, times = plain()
    changed = change(results, final)
    return wrong(workload, events, results if changed is None else changed, final, times)


@pytest.mark.parametrize(
    "column, by",
    [("start", 20 * MS), ("count", 1), ("count", -1), ("sum", 1), ("watermark", -(10**9)), ("clock", -(10**9))],
)
def test_an_answer_with_another_value_is_wrong(column, by):
    def change(results, final):
        # A later event of a key and router, in a window of several, so that no time can shrink unnoticed.
        late_on = answers(results)[~answers(results)["late"] & (answers(results)["count"] > 2)].index[-1]
        results.loc[late_on, column] += by

    assert any("position" in line for line in told_wrong(change))


@pytest.mark.parametrize("late", [True, False])
def test_an_answer_that_is_wrong_about_being_late_is_noticed(late):
    def change(results, final):
        results.loc[answers(results).index[answers(results)["late"] == late][3], "late"] = not late

    lines = told_wrong(change)
    assert len(lines) == 1
    assert "is wrong about being late" in lines[0]


def test_a_late_event_that_counted_is_wrong():
    def change(results, final):
        results.loc[answers(results).index[answers(results)["late"]][3], ["count", "sum"]] = [1, 5]

    assert ["is late, so counts nothing" in line for line in told_wrong(change)] == [True]


def test_counts_that_do_not_grow_along_a_routers_events_are_wrong():
    def change(results, final):
        columns = ["count", "sum"]
        ontime = answers(results)[~answers(results)["late"]]
        _, rows = next(g for g in ontime.groupby(["key", "router", "start"]) if len(g[1]) > 1)
        results.loc[rows.index[:2], columns] = results.loc[rows.index[1::-1], columns].to_numpy()

    assert any("lower than that of an earlier event" in line for line in told_wrong(change))


def test_an_answer_that_says_it_is_of_a_timer_and_a_timer_that_says_it_is_an_answer_are_wrong():
    def change(results, final):
        results.loc[answers(results).index[0], "kind"] = WINDOW
        results.loc[results.index[results["position"] == -1][0], "kind"] = 7

    lines = told_wrong(change)
    assert any("kind 1, expected 0" in line for line in lines)
    assert any("kind 7, expected 1 or 2" in line for line in lines)


def watermarks() -> list[int]:
    """Those that frames of the run have."""
    return _plain()[3].frames["watermark"].tolist()


def first(results: pd.DataFrame, kind: int) -> int:
    return results.index[results["kind"] == kind][0]


@pytest.mark.parametrize("column", ["count", "sum"])
def test_a_window_that_fires_with_another_count_or_sum_is_wrong(column):
    def change(results, final):
        results.loc[first(results, WINDOW), column] += 1

    assert ["expected" in line for line in told_wrong(change)] == [True]


@pytest.mark.parametrize("kind, column", [(WINDOW, "watermark"), (IDLE, "clock")])
def test_a_timer_that_fires_too_early_is_wrong(kind, column):
    def change(results, final):
        row = first(results, kind)
        known = {"watermark": watermarks(), "clock": [results.loc[row, "t"] - 1]}[column]
        results.loc[row, column] = max(moment for moment in known if moment < results.loc[row, "t"])

    assert ["not earlier" in line for line in told_wrong(change)] == [True]


def test_a_timer_that_fires_at_the_very_moment_is_right():
    def change(results, final):
        row = first(results, IDLE)
        results.loc[row, "clock"] = results.loc[row, "t"]

    assert told_wrong(change) == []
    run = offline(make(), events_per_frame=1, frames=40)  # all frames end at multiples of 10 ms, as windows do
    _, results, *_ = run
    assert (results["watermark"] == results["t"])[results["kind"] == WINDOW].any()
    assert wrong(make(), *run) == []


@pytest.mark.parametrize("kind", [WINDOW, IDLE])
def test_a_timer_of_another_time_than_it_should_have_been_set_to_is_wrong(kind):
    def change(results, final):
        results.loc[first(results, kind), "t"] -= 1

    assert ["set to" in line for line in told_wrong(change)] == [True]


def test_a_window_that_fires_twice_is_wrong_also_with_its_events_divided():
    def again(results, final):
        return pd.concat([results, results.loc[[first(results, WINDOW)]]])

    def divided(results, final):
        row = results.index[(results["kind"] == WINDOW) & (results["count"] > 1)][0]
        results.loc[row, ["count", "sum"]] -= 1
        return pd.concat([results, results.loc[[row]].assign(count=1, sum=1)])

    assert ["fired twice" in line for line in told_wrong(again)] == [True]
    assert any("fired twice" in line for line in told_wrong(divided))


@pytest.mark.parametrize("kind, told", [(WINDOW, "neither fired nor"), (IDLE, "was never told")])
def test_a_timer_that_never_fired_is_wrong(kind, told):
    def change(results, final):
        return results.drop(index=first(results, kind))

    assert [told in line for line in told_wrong(change)] == [True]


def test_a_window_whose_timer_was_lost_stays_in_the_final_state_without_one_and_is_wrong():
    def change(results, final):
        fired = results.loc[first(results, WINDOW)]
        part = next(part for part in final if (part["key"] == fired["key"]).any())
        row = part.index[part["key"] == fired["key"]][0]
        for column, value in (("starts", "start"), ("counts", "count"), ("sums", "sum")):
            part.at[row, column] = np.append(part.at[row, column], fired[value])
        return results.drop(index=fired.name)

    assert ["an open window has no timer" in line for line in told_wrong(change)] == [True]


def test_a_window_of_no_event_is_wrong():
    def change(results, final):
        row = results.loc[[first(results, WINDOW)]]
        return pd.concat([results, row.assign(start=row["start"] - 10**6 * MS, t=row["t"] - 10**6 * MS)])

    assert ["no event that was not late" in line for line in told_wrong(change)] == [True]


def test_a_key_that_is_told_idle_twice_or_without_an_event_or_after_its_next_event_is_wrong():
    def twice(results, final):
        return pd.concat([results, results.loc[[first(results, IDLE)]]])

    def without(results, final):
        row = results.loc[[first(results, IDLE)]]
        return pd.concat(
            [results, row.assign(clock=row["start"] - 1, start=row["start"] - 15 * MS - 1, t=row["t"] * 0)]
        )

    def after(results, final):
        results.loc[first(results, IDLE), "clock"] += 10**6

    assert ["more than once" in line for line in told_wrong(twice)] == [True]
    assert any("had no event then" in line for line in told_wrong(without))
    assert sum("after its next event" in line for line in told_wrong(after)) == 1


def test_a_key_that_is_told_idle_although_that_is_turned_off_is_wrong():
    run = plain()
    idle = (run[1]["kind"] == IDLE).sum()
    off = make(idle_ms=0)
    assert sum("idle_ms is 0" in line for line in wrong(off, *run)) == idle
    assert wrong(off, *offline(off)) == []


def change_state(part: pd.DataFrame, kind: str) -> None:
    row = part.index[part["starts"].str.len() > 0][-1]
    if kind == "window count":
        part.at[row, "counts"] = part.at[row, "counts"] + 1
    elif kind == "window sum":
        part.at[row, "sums"] = part.at[row, "sums"] + 1
    elif kind == "window missing":
        for column in ("starts", "counts", "sums"):
            part.at[row, column] = part.at[row, column][1:]
    elif kind == "window of other lists":
        part.at[row, "counts"] = part.at[row, "counts"][1:]
    elif kind == "last event":
        part.at[row, "last"] -= 1
    elif kind == "payload":
        part.at[row, "payload"] = part.at[row, "payload"][:-1] + b"?"
    elif kind == "other unit":
        part.at[row, "unit"] += 1
    elif kind == "no such key":
        part.at[row, "key"] = 10**6
    elif kind == "key missing":
        part.drop(index=row, inplace=True)


@pytest.mark.parametrize(
    "kind",
    [
        "window count",
        "window sum",
        "window missing",
        "window of other lists",
        "last event",
        "payload",
        "other unit",
        "no such key",
        "key missing",
    ],
)
def test_a_mistake_in_the_final_state_of_a_key_is_wrong(kind):
    keys = []

    def change(results, final):
        open_windows = final[-1][final[-1]["starts"].str.len() > 0]
        keys.append(open_windows["key"].iloc[-1])
        change_state(final[-1], kind)

    lines = told_wrong(change)
    assert lines
    assert any(f"key {keys[0]}" in line for line in lines)


def test_a_key_in_two_places_is_wrong():
    def change(results, final):
        final.append(final[-1].iloc[:1].assign(slot=0))

    assert any("in 2 places" in line for line in told_wrong(change))


def test_an_empty_final_state_and_no_results_at_all_do_not_go_unnoticed():
    workload = make()
    events, results, final, times = plain()
    assert len(wrong(workload, events, results, [], times)) > 20
    found = judge(workload, events, results.iloc[:0], final, ASSIGNMENTS, times=times)
    assert found.lost == len(events)


def test_a_run_without_any_event_has_nothing_wrong():
    workload = make()
    events, results, final, times = offline(workload, frames=1, events_per_frame=1, routers=1)
    operator = workload.stages[0].operator()
    untouched = []
    times = Times(times.frames, [], ASSIGNMENTS)
    for unit in {int(part["unit"].iloc[0]) for part in final}:  # one that was touched is exported in two parts
        state = MemoryState(operator.state_schema)
        operator.initial(unit, state)
        untouched += [batch.to_pandas().assign(unit=unit, slot=0) for batch in state.export(1 << 20)]
    assert wrong(workload, events.iloc[:0], results.iloc[:0], untouched, times) == []


def test_the_units_of_timers_are_those_of_their_keys():
    _, results, *_ = plain()
    fired = results[results["position"] == -1]
    owner = ASSIGNMENTS[1].slot_of[units_of(fired["key"].to_numpy(), 8)]
    assert (owner == fired["slot"])[fired["version"] == 2].all()
