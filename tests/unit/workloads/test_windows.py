from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads.keyed import MOST_DELAY_MS, MOST_MS
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount import EVENTS, LATE_BY, WindowCount
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW
from workload_runs import run, slot_events, wrong

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
        rows = [(key, int(t * MS), int(at * MS)) for key, t, at in events]
        self.state.timers.reach(int(watermark_ms * MS))
        answer = self.operator.process(slot_events(EVENTS, rows), lambda unit: self.state)
        return [(r["start"] / MS, r["late"], r["count"], r["sum"] / MS) for r in answer.to_pylist()]


# -- parameters and source -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({"window_ms": 0}, {"delay_ms": -1}, {"late_share": 1.1}, {"late_share": -0.1}, {"idle_ms": -1}, {"keys": 0}),
        *({"window_ms": MOST_MS + 1}, {"delay_ms": MOST_DELAY_MS + 1}, {"idle_ms": MOST_MS + 1}),
    ],
    ids=str,
)
def test_an_impossible_parameter_is_named(change):
    with pytest.raises(ValidationError, match=next(iter(change))):
        make(**change)


def test_the_longest_times_fit_into_what_timers_have():
    unit, now_ms = OneUnit(window_ms=MOST_MS, delay_ms=MOST_DELAY_MS, idle_ms=MOST_MS), 1.8e12
    unit.advance(now_ms, now_ms)
    unit.process(now_ms, (1, now_ms, now_ms))
    timers = unit.state.timers.export().to_pydict()
    due = [time for kind, time in zip(timers["kind"], timers["time"], strict=True) if kind in (EVENT, PROCESSING)]
    assert len(due) == 2 and min(due) > now_ms * MS


def test_most_delays_are_regular_and_the_given_share_is_longer():
    times = np.arange(50_000, dtype=np.int64) * MS
    batch = make().sources[0].partition(0).take(times)
    delay = times - batch["at"].to_numpy()
    late = delay > 10 * MS
    assert late.mean() == pytest.approx(0.1, rel=0.1)
    assert delay.min() >= 0
    assert delay.max() <= 10 * MS + LATE_BY * 20 * MS + 1
    assert delay[~late].mean() == pytest.approx(5 * MS, rel=0.05)
    prompt = make(delay_ms=0, late_share=0).sources[0].partition(0).take(times)
    assert prompt["at"].to_numpy().tolist() == times.tolist()


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
    before_the_epoch = OneUnit().process(0, (1, 0, -1), (1, 0, 0))
    assert before_the_epoch == [(-20, False, 1, 1), (0, False, 1, 0)]


def test_an_event_behind_the_watermark_of_its_place_less_the_lag_is_late_and_changes_nothing():
    unit = OneUnit(idle_ms=0)
    assert unit.process(112, (1, 112, 102)) == [(100, False, 1, 10)]
    assert unit.process(112, (1, 112, 101.999)) == [(100, True, 0, 0)]  # although its window is still open
    assert unit.process(112, (2, 112, 50)) == [(40, True, 0, 0)]
    assert unit.advance(130, 0) == [(WINDOW, 1, 100, 1)]
    # The slot is at 200, but the record was queued when it was at 110: the window is not closed before the record.
    unit = OneUnit(idle_ms=0)
    assert unit.advance(110, 500) == []
    assert unit.process(110, (1, 111, 101)) == [(100, False, 1, 10)]
    assert unit.advance(200, 500) == [(WINDOW, 1, 100, 1)]


def test_a_key_without_events_for_so_long_falls_idle_once_and_has_one_timer_for_that_and_for_each_window():
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
    late = OneUnit()
    late.advance(500, 100)
    assert late.process(500, (1, 500, 0)) == [(0, True, 0, 0)]
    assert late.advance(500, 115) == [(IDLE, 1, 100, 0)], "a late event, too, keeps its key from that"
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


ABOUT = {"routers": st.integers(1, 3), "frames": st.integers(1, 15), "events_per_frame": st.integers(1, 25)}
PARAMETERS = {"keys": st.integers(1, 40), "window_ms": st.integers(1, 40), "delay_ms": st.integers(0, 20)}
PARAMETERS |= {"late_share": st.floats(0, 1), "idle_ms": st.integers(0, 40), "skew": st.floats(0, 2)}


@settings(max_examples=40)
@given(st.fixed_dictionaries(ABOUT), st.fixed_dictionaries(PARAMETERS))
def test_a_run_without_mistakes_has_nothing_wrong(about, parameters):
    workload = make(**parameters)
    assert wrong(workload, run(workload, **about)) == []


@settings(max_examples=30)
@given(st.data())
def test_lost_results_alone_are_not_wrong_as_they_are_counted_elsewhere(data):
    made = plain()
    answered = made.results.index[made.results["kind"] == ANSWER].tolist()
    lost = data.draw(st.sets(st.sampled_from(answered), max_size=40))
    assert wrong(make(), made, results=made.results.drop(index=list(lost))) == []


# What is wrong is found by checks that tests/unit/results/test_verdict_checks.py takes away, one by one.


def test_a_run_has_results_of_all_kinds_so_that_this_shows_something_and_a_timer_at_the_very_moment_is_right():
    made = plain()
    assert made.results.groupby(["kind", "late"]).size().min() > 20
    assert sum(part["starts"].str.len().sum() for part in made.final) > 10
    row = made.results.index[made.results["kind"] == IDLE][0]
    made.results.loc[row, "clock"] = made.results.loc[row, "t"]
    assert wrong(make(), made) == []
    made = run(make(), frames=40, events_per_frame=1)  # all frames end at multiples of 10 ms, as windows do
    assert (made.results["watermark"] == made.results["t"])[made.results["kind"] == WINDOW].any()
    assert wrong(make(), made) == []


OTHER_WINDOWS = {  # of a key's row in the final state
    "count": lambda row: {"counts": row["counts"] + 1},
    "sum": lambda row: {"sums": row["sums"] + 1},
    "missing": lambda row: {column: row[column][1:] for column in ("starts", "counts", "sums")},
    "other lists": lambda row: {"counts": row["counts"][1:]},
    "no count": lambda row: {"counts": np.append([np.nan], row["counts"][1:])},  # as Arrow gives a null among integers
}


@pytest.mark.parametrize("change", OTHER_WINDOWS.values(), ids=OTHER_WINDOWS)
def test_another_open_window_in_the_final_state_of_a_key_is_wrong(change):
    made = plain()
    part = made.final[-1]
    row = part.index[part["starts"].str.len() > 0][-1]
    for column, value in change(part.loc[row]).items():
        part.at[row, column] = value
    assert any(f"key {part.at[row, 'key']}" in line for line in wrong(make(), made))


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
