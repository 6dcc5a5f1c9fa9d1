from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.model.keys import Assignment, units_of
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount import LATE_BY, WindowCount
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW
from workload_runs import run, verdict, wrong

MS = 1000


def make(**changes) -> WindowCount:
    plain = {"key_groups": 8, "keys": 20, "skew": 0.5, "state_bytes": 21, "seed": 3}
    short = {"window_ms": 20, "delay_ms": 10, "late_share": 0.1, "idle_ms": 15}
    return WindowCount(**(plain | short | changes))


@cache
def _plain():
    return run(make(), frames=12)


def plain():
    """A copy of the run with the parameters of ``make()``, to be changed."""
    return deepcopy(_plain())


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


def test_it_needs_only_the_parameters_of_every_workload():
    workload = WindowCount(key_groups=8, keys=20, skew=0, state_bytes=16, seed=1)
    assert (workload.window_us, workload.lag_us, workload.idle_us) == (500_000, 200_000, 1_000_000)


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
    about=st.fixed_dictionaries(
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
def test_a_run_without_mistakes_has_nothing_wrong(about, parameters):
    workload = make(**parameters)
    assert wrong(workload, run(workload, **about)) == []


@settings(max_examples=30)
@given(st.data())
def test_lost_results_alone_are_not_wrong_as_they_are_counted_elsewhere(data):
    made = plain()
    lost = data.draw(st.sets(st.sampled_from(answers(made.results).index.tolist()), max_size=40))
    assert wrong(make(), made, results=made.results.drop(index=list(lost))) == []


def test_a_run_has_results_of_all_kinds_and_windows_left_so_that_what_follows_shows_something():
    made = plain()
    assert made.results.groupby(["kind", "late"]).size().min() > 20
    assert sum(part["starts"].str.len().sum() for part in made.final) > 10


def first(results: pd.DataFrame, kind: int) -> int:
    return results.index[results["kind"] == kind][0]


def told_wrong(change) -> list[str]:
    """What the oracle says after ``change(results, final)``, which returns the results if they are others."""
    made = plain()
    results = change(made.results, made.final)
    return wrong(make(), made, results=made.results if results is None else results)


ONCE, AMONG_OTHERS = [], []  # changes, and what one line tells of each, or a line beside others


def told(text, of=ONCE):
    """A decorator of a change of results and final state that is wrong."""

    def noted(change):
        of.append(pytest.param(change, text, id=change.__name__))
        return change

    return noted


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


@told("is wrong about being late")
def an_event_on_time_says_it_is_late(results, final):
    results.loc[answers(results).index[~answers(results)["late"]][3], "late"] = True


@told("is wrong about being late")
def a_late_event_says_it_is_on_time(results, final):
    results.loc[answers(results).index[answers(results)["late"]][3], "late"] = False


@told("is late, so counts nothing")
def a_late_event_counts(results, final):
    results.loc[answers(results).index[answers(results)["late"]][3], ["count", "sum"]] = [1, 5]


@told("lower than that of an earlier event", AMONG_OTHERS)
def counts_do_not_grow_along_a_routers_events(results, final):
    columns = ["count", "sum"]
    ontime = answers(results)[~answers(results)["late"]]
    _, rows = next(g for g in ontime.groupby(["key", "router", "start"]) if len(g[1]) > 1)
    results.loc[rows.index[:2], columns] = results.loc[rows.index[1::-1], columns].to_numpy()


@told("kind 1, expected 0", AMONG_OTHERS)
def an_answer_says_it_is_of_a_timer(results, final):
    results.loc[answers(results).index[0], "kind"] = WINDOW


@told("kind 7, expected 1 or 2", AMONG_OTHERS)
def a_timer_says_it_is_something_else(results, final):
    results.loc[results.index[results["position"] == -1][0], "kind"] = 7


@told("expected")
def a_window_fires_with_another_count(results, final):
    results.loc[first(results, WINDOW), "count"] += 1


@told("expected")
def a_window_fires_with_another_sum(results, final):
    results.loc[first(results, WINDOW), "sum"] += 1


@told("not earlier")
def a_window_fires_too_early(results, final):
    row = first(results, WINDOW)
    known = _plain().frames["watermark"]
    results.loc[row, "watermark"] = known[known < results.loc[row, "t"]].max()


@told("not earlier")
def a_key_is_told_idle_too_early(results, final):
    row = first(results, IDLE)
    results.loc[row, "clock"] = results.loc[row, "t"] - 1


@told("set to")
def a_window_had_another_timer(results, final):
    results.loc[first(results, WINDOW), "t"] -= 1


@told("set to")
def an_idle_key_had_another_timer(results, final):
    results.loc[first(results, IDLE), "t"] -= 1


@told("fired twice")
def a_window_fires_twice(results, final):
    return pd.concat([results, results.loc[[first(results, WINDOW)]]])


@told("fired twice", AMONG_OTHERS)
def a_window_fires_twice_with_its_events_divided(results, final):
    row = results.index[(results["kind"] == WINDOW) & (results["count"] > 1)][0]
    results.loc[row, ["count", "sum"]] -= 1
    return pd.concat([results, results.loc[[row]].assign(count=1, sum=1)])


@told("neither fired nor")
def a_window_never_fires(results, final):
    return results.drop(index=first(results, WINDOW))


@told("was never told")
def an_idle_key_is_never_told(results, final):
    return results.drop(index=first(results, IDLE))


@told("an open window has no timer")
def a_window_whose_timer_was_lost_stays(results, final):
    fired = results.loc[first(results, WINDOW)]
    part = next(part for part in final if (part["key"] == fired["key"]).any())
    row = part.index[part["key"] == fired["key"]][0]
    for column, value in (("starts", "start"), ("counts", "count"), ("sums", "sum")):
        part.at[row, column] = np.append(part.at[row, column], fired[value])
    return results.drop(index=fired.name)


@told("no event that was not late")
def a_window_of_no_event_fires(results, final):
    row = results.loc[[first(results, WINDOW)]]
    return pd.concat([results, row.assign(start=row["start"] - 10**6 * MS, t=row["t"] - 10**6 * MS)])


@told("more than once")
def a_key_is_told_idle_twice(results, final):
    return pd.concat([results, results.loc[[first(results, IDLE)]]])


@told("had no event then", AMONG_OTHERS)
def a_key_is_told_idle_without_an_event(results, final):
    row = results.loc[[first(results, IDLE)]]
    return pd.concat([results, row.assign(clock=row["start"] - 1, start=row["start"] - 15 * MS - 1, t=row["t"] * 0)])


@told("after its next event", AMONG_OTHERS)
def a_key_is_told_idle_after_its_next_event(results, final):
    results.loc[first(results, IDLE), "clock"] += 10**6


@told("in 2 places", AMONG_OTHERS)
def a_key_is_in_two_places(results, final):
    final.append(final[-1].iloc[:1].assign(slot=0))


@pytest.mark.parametrize("change, text", ONCE)
def test_what_is_wrong_is_told_in_one_line(change, text):
    assert [text in line for line in told_wrong(change)] == [True]


@pytest.mark.parametrize("change, text", AMONG_OTHERS)
def test_what_is_wrong_is_told_beside_what_follows_from_it(change, text):
    assert sum(text in line for line in told_wrong(change)) == 1


def test_a_timer_that_fires_at_the_very_moment_is_right():
    def change(results, final):
        row = first(results, IDLE)
        results.loc[row, "clock"] = results.loc[row, "t"]

    assert told_wrong(change) == []
    made = run(make(), frames=40, events_per_frame=1)  # all frames end at multiples of 10 ms, as windows do
    assert (made.results["watermark"] == made.results["t"])[made.results["kind"] == WINDOW].any()
    assert wrong(make(), made) == []


def test_a_key_that_is_told_idle_although_that_is_turned_off_is_wrong():
    made = plain()
    idle = (made.results["kind"] == IDLE).sum()
    off = make(idle_ms=0)
    assert sum("idle_ms is 0" in line for line in wrong(off, made)) == idle
    assert wrong(off, run(off, frames=12)) == []


LAST = {  # of a key's row in the final state
    "window count": lambda row: {"counts": row["counts"] + 1},
    "window sum": lambda row: {"sums": row["sums"] + 1},
    "window missing": lambda row: {column: row[column][1:] for column in ("starts", "counts", "sums")},
    "window of other lists": lambda row: {"counts": row["counts"][1:]},
    "last event": lambda row: {"last": row["last"] - 1},
    "payload": lambda row: {"payload": row["payload"][:-1] + b"?"},
    "other unit": lambda row: {"unit": row["unit"] + 1},
    "no such key": lambda row: {"key": 10**6},
    "key missing": None,
}


@pytest.mark.parametrize("change", LAST.values(), ids=LAST)
def test_a_mistake_in_the_final_state_of_a_key_is_wrong(change):
    made = plain()
    part = made.final[-1]
    row = part.index[part["starts"].str.len() > 0][-1]
    key = part.at[row, "key"]
    if change is None:
        part.drop(index=row, inplace=True)
    else:
        for column, value in change(part.loc[row]).items():
            part.at[row, column] = value
    assert any(f"key {key}" in line for line in wrong(make(), made))


def test_an_empty_final_state_and_no_results_at_all_do_not_go_unnoticed():
    made = plain()
    assert len(wrong(make(), made, final=[])) > 20
    assert verdict(make(), made, results=made.results.iloc[:0]).lost == len(made.events)


def test_a_run_without_any_event_has_nothing_wrong():
    workload = make()
    made = run(workload, routers=1, frames=1, events_per_frame=1)
    operator = workload.stages[0].operator()
    untouched = []
    times = Times(made.frames, [], made.assignments)
    for unit in {int(part["unit"].iloc[0]) for part in made.final}:  # one that was touched is exported in two parts
        state = MemoryState(operator.state_schema)
        operator.initial(unit, state)
        untouched += [batch.to_pandas().assign(unit=unit, slot=0) for batch in state.export(1 << 20)]
    nothing = {"events": made.events.iloc[:0], "results": made.results.iloc[:0], "final": untouched, "times": times}
    assert wrong(workload, made, **nothing) == []


def test_the_units_of_timers_are_those_of_their_keys():
    results = plain().results
    fired = results[results["position"] == -1]
    owner = Assignment.contiguous(8, 3).slot_of[units_of(fired["key"].to_numpy(), 8)]
    assert (owner == fired["slot"])[fired["version"] == 2].all()
