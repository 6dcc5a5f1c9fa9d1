"""Each check of the verdict has a run that only this check finds bad: without it, the verdict would be ok.

The check is taken out of the source of its module; what is there instead of it finds nothing.
"""

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_portions import Portions

from keyshift.lab.judge.sequential import run_sequentially
from keyshift.lab.judge.spilled import Spilled
from keyshift.model.keys import ALL_UNITS, Assignment, SomeUnits
from keyshift.results import verdict
from keyshift.state.timers import CLOCK, EVENT, PROCESSING, WATERMARK
from keyshift.workloads import Workload, keycount, times
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.windowcount import WindowCount
from keyshift.workloads.windowcount import oracle as windowcount_oracle
from keyshift.workloads.windowcount.operator import IDLE, WINDOW

FRAMES = 12
PLACED = {"key_groups": 8, "keys": 40, "skew": 0.5, "state_bytes": 24, "seed": 5}
TIMED = {"window_ms": 20, "delay_ms": 5, "late_share": 0.1}
WORKLOADS = {
    "counts": KeyCount(**PLACED),
    "windows": WindowCount(**PLACED, **TIMED, idle_ms=15),
    "never idle": WindowCount(**PLACED, **TIMED, idle_ms=0),
    "sparse": WindowCount(**PLACED | {"keys": 400}, **TIMED, idle_ms=15),
}
# Units 3, 6 and 7 move, from slot 0 to 1 and from slot 1 to the new slot 2.
TWO = [Assignment.contiguous(8, 2), Assignment.contiguous(8, 3, version=2)]
MOVES = TWO[0].slot_of != TWO[1].slot_of
ORIGIN = ["router", "offset", "position"]


@dataclass
class Run:
    """A good run, to be spoilt; ``known`` is for ``Times``."""

    workload: Any
    events: pd.DataFrame
    results: pd.DataFrame
    final: pd.DataFrame
    frames: pd.DataFrame
    timers: pd.DataFrame
    known: dict[str, Any] = field(default_factory=dict)
    ownership: verdict.Ownership = field(default_factory=lambda: verdict.Ownership(TWO))
    unread: int = 0

    def judged(self, parts: int = 1) -> verdict.Judgement:
        return verdict.judge_in_parts(parts, self.workload, self.events, self.results, self._judge_some)

    def judged_on_disk(self, folder: Path, parts: int) -> verdict.Judgement:
        """If units can be judged by themselves; else as it is judged in any case."""
        if self.workload.only(ALL_UNITS) is None:
            return self.judged()
        portions = Portions(folder, self.events, self.frames, self.results)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(verdict, "PART_EVENTS", -(-len(self.events) // parts))
            spilled = Spilled(self.workload, portions, len(self.events))
        return verdict.judge_parts(self.workload, spilled.begins, spilled.some, self._judge_some)

    def _judge_some(self, workload: Any, events: pd.DataFrame, results: pd.DataFrame, units: SomeUnits) -> Any:
        final, timers = (each[units.have(each["unit"])] for each in (self.final, self.timers))
        known = times.Times(self.frames, [timers], TWO, **self.known)
        return verdict.judge(workload, events, results, [final], [self.ownership], times=known, unread=self.unread)

    @property
    def answers(self) -> pd.DataFrame:
        """The results of events with their event time and unit, in the order of each router's events."""
        answers = self.results.reset_index(names="row").merge(self.events[[*ORIGIN, "at"]], on=ORIGIN)
        answers["unit"] = self.workload.units[answers["key"]]
        return answers.set_index("row")

    def fired(self, kind: int) -> int:
        return int(self.results.index[self.results["kind"] == kind][0])

    def inventory(self) -> verdict.Inventory:
        homes = times.Times(self.frames, [self.timers], TWO).homes()
        return verdict.Inventory("savepoint 0-a", TWO[1], sorted(homes))

    def add(self, row: int, **changes: int) -> None:
        """One more result, like that of a row."""
        extra = self.results.loc[[row]].assign(arrived_us=10**9, log_offset=10**6, **changes)
        self.results = pd.concat([self.results, extra], ignore_index=True)


@cache
def good(name: str) -> Run:
    workload: Workload = WORKLOADS[name]
    run = run_sequentially(workload, TWO, frames=FRAMES)
    final, timers = (pd.concat(parts, ignore_index=True) for parts in (run.final, run.timers))
    return Run(workload, run.events, run.results, final, run.frames, timers)


CHECKS: list[Any] = []


def check(module: ModuleType, snippet: str, instead: str, of: str = "windows", kind: str = "wrong") -> Any:
    """The check that ``snippet`` is part of, the good run that is spoilt, and the kind of mistake that is found."""

    def note(spoil: Callable[[Run], None]) -> Callable[[Run], None]:
        CHECKS.append(pytest.param(module, snippet, instead, of, kind, spoil, id=spoil.__name__))
        return spoil

    return note


def without(monkeypatch, module: ModuleType, snippet: str, instead: str) -> None:
    source = inspect.getsource(module)
    assert source.count(snippet) == 1, "the check is not there, or not only once"
    mutant = ModuleType(module.__name__)
    exec(compile(source.replace(snippet, instead), module.__file__, "exec"), mutant.__dict__)
    for name, thing in vars(mutant).items():
        if getattr(thing, "__module__", None) == module.__name__ and hasattr(module, name):
            monkeypatch.setattr(module, name, thing)


@pytest.mark.parametrize("of", WORKLOADS)
def test_a_good_run_is_ok(of, tmp_path):
    run = deepcopy(good(of))
    run.ownership = verdict.Ownership(TWO, [run.inventory(), run.inventory()])
    found = run.judged()
    assert found.ok, found.examples
    assert run.judged(parts=3) == run.judged_on_disk(tmp_path / "run", parts=3) == found


def test_mistakes_of_parts_that_are_too_large_to_be_judged_together_are_added_and_those_of_the_whole_job_count_once(
    monkeypatch,
):
    run = deepcopy(good("counts"))
    run.ownership = verdict.Ownership(TWO, [verdict.Inventory("last", TWO[1], run.inventory().units[1:])], {(3, 0)})
    run.unread = 7
    of_job, in_parts = run.judged(), partial(run.judged, parts=8)
    assert not of_job.ok and in_parts() == of_job
    for row in (7, -7):
        run.results = run.results.drop(index=run.results.index[row])
    found = in_parts()
    assert found == run.judged() and found.lost == 2
    monkeypatch.setattr(verdict, "TOGETHER_EVENTS", 0)
    added = in_parts()
    assert replace(added, shown=()) == replace(found, shown=())
    *shown, told = added.examples
    assert sorted(shown) == sorted(found.examples)
    assert told.startswith("added: 2 parts have mistakes, too large to be judged together")
    run.results = good("counts").results
    assert in_parts() == of_job, "no part has any of its own"


def test_a_part_has_neighbouring_units_with_its_share_of_the_events_and_there_are_no_more_parts_than_units():
    run, ok, seen = good("counts"), good("counts").judged(), []

    def judge_some(workload: Any, events: pd.DataFrame, results: pd.DataFrame, units: SomeUnits) -> Any:
        seen.append([*np.flatnonzero(units.have(np.arange(8)))])
        for table, mine in ((run.events, events), (run.results, results)):
            assert mine.equals(table[units.have(run.workload.units_of(table["key"]))]), "in their order"
        return ok

    sizes = np.bincount(run.workload.units_of(run.events["key"]), minlength=8)
    for parts in (2, 100):
        seen.clear()
        assert verdict.judge_in_parts(parts, run.workload, run.events, run.results, judge_some) is ok
        assert [unit for units in seen for unit in units] == [*range(8)] and 2 <= len(seen) <= parts
        assert max(sizes[units].sum() for units in seen) <= sizes.sum() / parts + sizes.max()


# -- verdict.py --------------------------------------------------------------------------------------------------------


@check(verdict, 'results["_place"] < 0,', 'results["_place"] < -9,', "counts", "unexpected")
def a_result_of_an_event_never_offered(run):
    run.add(7, position=99)


@check(verdict, "events, wanted & ~answered)", "events, answered & ~answered)", "counts", "lost")
def an_event_without_a_result(run):
    run.results = run.results.drop(index=run.results.index[-1])


@check(verdict, 'found.rows("duplicated", text, results, again)', "pass", "counts", "duplicated")
def a_result_that_comes_twice(run):
    run.add(7)


@check(verdict, '["key", "t"] if', '["key"] if', "counts")
def a_result_with_another_time(run):
    run.results.loc[7, "t"] += 1


@check(verdict, '["key", "t"] if', '["t"] if')
def a_result_with_another_key_of_its_unit(run):
    keys = pd.Series(range(40)).groupby(run.workload.units).agg(list)
    unit = keys.index[keys.str.len() > 1][0]
    row = run.answers.index[run.answers["unit"] == unit][-1]
    run.results.loc[row, "key"] = next(key for key in keys[unit] if key != run.results.loc[row, "key"])


@check(verdict, "return in_log | by_version", "return by_version", "counts", "reordered")
def two_results_that_change_places_in_the_log(run):
    groups = run.results.groupby(["slot", "router", "key"])["log_offset"]
    first = run.results.index[groups.shift(-1) > run.results["log_offset"]][0]
    same = run.results.loc[first:, ["slot", "router", "key"]].eq(run.results.loc[first, ["slot", "router", "key"]])
    second = same.index[same.all(axis=1)][1]
    places = run.results.loc[[second, first], "log_offset"].to_numpy()
    run.results.loc[[first, second], "log_offset"] = places


@check(verdict, "return in_log | by_version", "return in_log", "counts", "reordered")
def an_event_routed_under_an_older_version_than_one_before(run):
    stays = run.results[(run.results["slot"] == 0) & (run.results["version"] == 2)]
    row = next(rows.index[1] for _, rows in stays.groupby(["router", "key"]) if len(rows) > 1)
    run.results.loc[row, "version"] = 1


@check(verdict, '(owner["owner"] != results["slot"].to_numpy())', "np.zeros(len(results), bool)", "counts", "foreign")
def a_result_of_a_slot_that_is_not_the_owner(run):
    run.results.loc[7, "slot"] = 2


LAST = 'Inventory("the final state", owned.assignments[-1], sorted(homes))'


@check(verdict, LAST, LAST.replace("sorted(homes)", "[]"), "counts", "foreign")
def a_unit_that_lives_at_its_old_owner(run):
    run.final.loc[run.final["unit"] == 7, "slot"] = 1
    run.timers.loc[run.timers["unit"] == 7, "slot"] = 1


@check(verdict, "times.homes() if last == 0 else", "", "counts", "foreign")
def a_unit_without_keys_that_its_old_owner_still_has(run):
    left = {"unit": 7, "slot": 1, "kind": WATERMARK, "time": 0, "key": 0}
    run.timers = pd.concat([run.timers, pd.DataFrame([left])])


@check(verdict, "[*written, end]", "[end]", "counts", "foreign")
def a_unit_that_its_old_owner_has_written_to_an_intermediate_savepoint(run):
    whole = run.inventory()
    run.ownership = verdict.Ownership(TWO, [verdict.Inventory("first", TWO[1], [*whole.units, (7, 1)]), whole])


@check(verdict, "- {unit for unit, _ in written}", "- set(range(99))", "counts")
def an_intermediate_savepoint_without_a_unit(run):
    whole = run.inventory()
    run.ownership = verdict.Ownership(TWO, [verdict.Inventory("first", TWO[1], whole.units[1:]), whole])


@check(verdict, "if count > 1:", "if count > 9:", "counts")
def a_savepoint_with_a_unit_twice(run):
    whole = run.inventory()
    run.ownership = verdict.Ownership(TWO, [verdict.Inventory("last", TWO[1], [*whole.units, whole.units[3]])])


@check(verdict, "for of_stage in ownership:", "for of_stage in ownership[:-1]:", "counts", "foreign")
def keys_that_stay_where_their_unit_has_left(run):
    run.ownership = verdict.Ownership(TWO, left_behind={(3, 0)})


# -- times.py ----------------------------------------------------------------------------------------------------------


@check(times, "~np.isin(given, self._known) | ", "")
def a_unit_at_a_watermark_that_no_frame_has(run):
    run.timers.loc[run.timers.index[run.timers["kind"] == WATERMARK][0], "time"] -= 1


@check(times, " | (given > self.least)", "")
def a_unit_beyond_the_slowest_router(run):
    ahead = run.frames["watermark"].max() + 1
    run.frames = pd.concat([run.frames, pd.DataFrame([{"router": 0, "offset": FRAMES, "watermark": ahead}])])
    run.timers.loc[run.timers["kind"] == WATERMARK, "time"] = ahead


def stays_open(run: Run) -> int:
    """The last window to close is in the final state with its timer, and has not fired. Gives its unit."""
    fired = run.results[run.results["kind"] == WINDOW].iloc[-1]
    run.results = run.results.drop(index=fired.name)
    row = run.final.index[run.final["key"] == fired["key"]][0]
    for column, value in (("starts", "start"), ("counts", "count"), ("sums", "sum")):
        run.final.at[row, column] = np.append(run.final.at[row, column], fired[value])
    home = {name: int(run.final.at[row, name]) for name in ("unit", "slot")}
    timer = home | {"kind": EVENT, "time": fired["t"], "key": fired["key"]}
    run.timers = pd.concat([run.timers, pd.DataFrame([timer])], ignore_index=True)
    return home["unit"]


OVERDUE = 'timers["time"] <= timers["until"], text'


@check(times, OVERDUE, 'timers["time"] < 0, text')
def a_window_that_does_not_fire_though_its_unit_has_come_so_far(run):
    stays_open(run)
    run.known = {"lag_us": 10**9}


@check(times, ".clip(lower=self.least - self.lag_us)", "")
def a_window_that_does_not_fire_as_time_stands_for_its_unit(run):
    unit = stays_open(run)
    run.timers.loc[(run.timers["unit"] == unit) & (run.timers["kind"] == WATERMARK), "time"] = 0


@check(times, ", (PROCESSING, self._together, clocks)):", ",):", "counts")
def a_timer_whose_moment_has_passed(run):
    clock = run.timers[run.timers["kind"] == CLOCK].iloc[[0]]
    run.timers = pd.concat([run.timers, clock.assign(kind=PROCESSING)])


# -- windowcount/oracle.py: answers ------------------------------------------------------------------------------------


@check(windowcount_oracle, 'answers["kind"] != ANSWER', 'answers["kind"] < 0')
def an_answer_that_says_it_is_something_else(run):
    run.results.loc[run.answers.index[7], "kind"] = 7


@check(windowcount_oracle, '~fired["kind"].isin((WINDOW, IDLE))', 'fired["kind"] < 0')
def a_result_of_a_timer_of_no_kind(run):
    run.add(run.fired(WINDOW), kind=7)


@check(windowcount_oracle, 'times.strange(fired["watermark"])', 'fired["kind"] < 0')
def a_timer_that_fired_at_a_watermark_that_no_frame_has(run):
    run.results.loc[run.fired(WINDOW), "watermark"] += 1


@check(windowcount_oracle, "[strange, early, behind]", "[strange & False, early, behind]")
def an_event_that_met_a_watermark_that_no_frame_has(run):
    """The first of its unit, which is to leave: nothing else bounds it from below."""
    leaves = run.answers[MOVES[run.answers["unit"]] & (run.answers["version"] == 1) & ~run.answers["late"]]
    run.results.loc[leaves.index[leaves["watermark"] > 0][0], "watermark"] -= 1


@check(windowcount_oracle, "[strange, early, behind]", "[strange, early & False, behind]")
def an_event_that_met_the_watermark_of_its_own_frame(run):
    answers = run.answers.reset_index().merge(run.frames, on=ORIGIN[:2], suffixes=("", "_own"))
    last = ~answers.duplicated(["key", "router", "offset"], keep="last")  # as no later one may meet less
    in_time = ~answers["late"] & (answers["at"] >= answers["watermark_own"] - run.workload.lag_us)
    given = answers[last & in_time].iloc[-1]
    run.results.loc[given["row"], "watermark"] = given["watermark_own"]


@check(windowcount_oracle, "[strange, early, behind]", "[strange, early, behind & False]")
def a_queued_record_that_lost_its_watermark(run):
    """It says one that its key has met before, and is no later for it. Slot 2 has only units that have moved."""
    answers = run.answers
    before = answers.groupby(["key", "router"])["watermark"].shift()
    moved = MOVES[answers["unit"]] & (answers["version"] == 2) & (answers["slot"] != 2) & ~answers["late"]
    row = answers.index[moved & (before <= answers["watermark"] - 20_000)][0]
    run.results.loc[row, "watermark"] = before[row]


@check(windowcount_oracle, "watermark < watermark_before", "false")
def a_watermark_that_falls_back_in_a_unit_that_is_to_leave(run):
    answers = run.answers
    before = answers.groupby(["key", "router"])["watermark"].shift()
    leaves = MOVES[answers["unit"]] & (answers["version"] == 1) & ~answers["late"]
    row = answers.index[leaves & (before > 10_000)][0]
    run.results.loc[row, "watermark"] = run.frames["watermark"][run.frames["watermark"] < before[row]].max()


@check(windowcount_oracle, "clock < clock_before", "false", "never idle")
def a_clock_that_falls_back(run):
    row = run.answers.index[run.answers.groupby(["key", "router"]).cumcount() == 1][0]
    run.results.loc[row, "clock"] = 1


@check(windowcount_oracle, "start_told != start", "false")
def an_answer_of_another_window(run):
    run.results.loc[run.answers.index[run.answers["late"]][0], "start"] += 20_000


@check(windowcount_oracle, "late != due_late", "false")
def an_answer_that_is_wrong_about_being_late(run):
    run.results.loc[run.answers.index[run.answers["late"]][0], "late"] = False


@check(windowcount_oracle, "due_late AND (count != 0 OR sum != 0)", "false")
def a_late_event_that_counted(run):
    run.results.loc[run.answers.index[run.answers["late"]][0], ["count", "sum"]] = [1, 5]


def in_windows(run: Run) -> pd.DataFrame:
    """The answers that count in windows, in the order in which they did; with those before them there."""
    counted = run.answers[~run.answers["late"]].reset_index().sort_values(["key", "start", "count"], ignore_index=True)
    counted["delay"] = counted["t"] - counted["at"]
    before = counted.groupby(["key", "start"])[["row", "router", "sum", "delay"]].shift()
    return counted.join(before.add_suffix("_before"))


@check(windowcount_oracle, "counts AND count != place", "false")
def two_events_with_one_count(run):
    counted = in_windows(run)
    last = ~counted.duplicated(["key", "start"], keep="last")
    row = counted.loc[last & (counted["router"] > counted["router_before"]), "row"].iloc[0]
    run.results.loc[row, "count"] -= 1


@check(windowcount_oracle, "counts AND count <= count_before", "false")
def two_events_of_a_router_that_are_counted_in_the_wrong_order(run):
    counted = in_windows(run)
    later = counted[counted["router"] == counted["router_before"]].iloc[0]
    both = [int(later["row_before"]), int(later["row"])]
    sums = [later["sum"], later["sum_before"] - later["delay_before"] + later["delay"]]
    run.results.loc[both, "count"] = run.results.loc[both[::-1], "count"].to_numpy()
    run.results.loc[both, "sum"] = np.array(sums, np.int64)


@check(windowcount_oracle, "counts AND sum != total", "false")
def an_answer_with_another_sum(run):
    run.results.loc[run.answers.index[~run.answers["late"]][0], "sum"] += 1


# -- windowcount/oracle.py: windows ------------------------------------------------------------------------------------


EARLY, OTHER = '(closed["watermark"] < closed["start"] + ends)', '(closed["t"] != closed["start"] + ends)'


@check(windowcount_oracle, f"{EARLY} | {OTHER}", EARLY)
def a_window_whose_timer_was_set_to_another_time(run):
    run.results.loc[run.fired(WINDOW), "t"] -= 1


@check(windowcount_oracle, f"{EARLY} | {OTHER}", OTHER)
def a_window_that_fires_too_early(run):
    row, known = run.results.index[run.results["kind"] == WINDOW][-1], run.frames["watermark"]
    run.results.loc[row, "watermark"] = known[known < run.results.loc[row, "t"]].max()


@check(windowcount_oracle, 'fired["late"], text', 'fired["kind"] < 0, text')
def a_window_that_says_it_is_late(run):
    run.results.loc[run.fired(WINDOW), "late"] = True


@check(windowcount_oracle, 'fired["late"], text', 'fired["kind"] < 0, text')
def a_key_that_falls_idle_and_says_it_is_late(run):
    run.results.loc[run.fired(IDLE), "late"] = True


@check(windowcount_oracle, 'closed["clock"] > times.clocks', 'closed["clock"] < 0 * times.clocks')
def a_window_that_fires_at_a_clock_that_its_unit_has_not_come_to(run):
    row = run.fired(WINDOW)
    unit = run.workload.units[run.results.loc[row, "key"]]
    clocks = times.Times(run.frames, [run.timers], TWO).clocks
    run.results.loc[row, "clock"] = clocks[unit]
    assert run.judged().ok
    run.results.loc[row, "clock"] += 1


@check(windowcount_oracle, 'found.duplicated(["key", "start"])', 'found["key"] < 0')
def a_window_that_fires_twice(run):
    run.add(run.fired(WINDOW))


@check(windowcount_oracle, "f.count IS NULL", "false")
def a_window_that_neither_fired_nor_stays(run):
    run.results = run.results.drop(index=run.fired(WINDOW))


@check(windowcount_oracle, "e.count IS NULL", "false")
def a_window_of_no_event(run):
    row = run.fired(WINDOW)
    start, t = run.results.loc[row, ["start", "t"]] - 10**9
    run.add(row, start=start, t=t)


@check(windowcount_oracle, "e.count != f.count OR e.sum != f.sum", "false")
def a_window_that_fires_with_another_count(run):
    run.results.loc[run.fired(WINDOW), "count"] += 1


# -- windowcount/oracle.py: keys that fall idle ------------------------------------------------------------------------


IDLE_COUNTS = '(idle["count"] != 0) | (idle["sum"] != 0)'


@check(windowcount_oracle, IDLE_COUNTS, 'idle["sum"] != 0')
def a_key_that_falls_idle_with_a_count(run):
    run.results.loc[run.fired(IDLE), "count"] = 1


@check(windowcount_oracle, IDLE_COUNTS, 'idle["count"] != 0')
def a_key_that_falls_idle_with_a_sum(run):
    run.results.loc[run.fired(IDLE), "sum"] = 1


@check(windowcount_oracle, 'idle["key"].notna()', 'idle["key"].isna()', "never idle")
def a_key_that_falls_idle_though_none_should(run):
    run.add(run.fired(WINDOW), kind=IDLE)


@check(windowcount_oracle, 'idle.duplicated(["key", "clock"])', 'idle["key"] < 0')
def a_key_that_falls_idle_twice(run):
    run.add(run.fired(IDLE))


@check(windowcount_oracle, "fired < due OR t != due", "fired < due")
def an_idle_timer_that_was_set_to_another_time(run):
    run.results.loc[run.fired(IDLE), "t"] -= 1


@check(windowcount_oracle, "fired < due OR t != due", "t != due")
def an_idle_timer_that_fires_too_early(run):
    row = run.fired(IDLE)
    run.results.loc[row, "clock"] = run.results.loc[row, "t"] - 1


@check(windowcount_oracle, "fired > until", "false")
def a_key_that_falls_idle_after_its_next_event(run):
    run.results.loc[run.fired(IDLE), "clock"] += 10**6


@check(windowcount_oracle, "until IS NULL AND sure", "false")
def a_key_that_falls_idle_without_an_event(run):
    row = run.fired(IDLE)
    start, t = run.results.loc[row, ["start", "t"]] - 1
    run.add(row, start=start, t=t)


@check(windowcount_oracle, "fired IS NULL AND until >= due AND sure", "false")
def a_key_that_never_falls_idle(run):
    run.results = run.results.drop(index=run.fired(IDLE))


# -- windowcount/oracle.py: the final state ----------------------------------------------------------------------------


def without_timers(run: Run) -> int:
    """The row in the final state of a key that has no timer and no window, in slot 0."""
    has_none = ~run.final["key"].isin(run.timers["key"][run.timers["kind"] >= 0]) & (run.final["slot"] == 0)
    return int(run.final.index[has_none][0])


@check(windowcount_oracle, "(workload.units[home] == unit) & ", "", "sparse")
def a_key_in_another_unit(run):
    row = without_timers(run)
    run.final.loc[row, "unit"] = (run.final.loc[row, "unit"] + 1) % 3


@check(windowcount_oracle, "good &= ~workload.damaged(part, np.zeros_like(key))", "pass", "sparse")
def a_key_with_another_payload(run):
    row = without_timers(run)
    run.final.at[row, "payload"] = run.final.at[row, "payload"][:-1] + b"?"


@check(windowcount_oracle, "np.flatnonzero(places != 1)", "np.flatnonzero(places > 9)", "sparse")
def a_key_that_is_nowhere(run):
    run.final = run.final.drop(index=without_timers(run))


@check(windowcount_oracle, "HAVING last != expected", "HAVING false", "never idle")
def a_key_that_does_not_know_its_last_event(run):
    run.final.loc[0, "last"] -= 1


MISSING, BEYOND = "t.there IS NULL AND needed", "needed IS NULL"


@check(windowcount_oracle, MISSING, "false")
def an_open_window_without_a_timer(run):
    run.timers = run.timers.drop(index=run.timers.index[run.timers["kind"] == EVENT][0])


@check(windowcount_oracle, MISSING, "false")
def a_key_that_nothing_will_tell_idle(run):
    run.timers = run.timers.drop(index=run.timers.index[run.timers["kind"] == PROCESSING][0])


@check(windowcount_oracle, BEYOND, "false")
def a_timer_for_no_window(run):
    timer = run.timers[run.timers["kind"] == EVENT].iloc[[0]]
    run.timers = pd.concat([run.timers, timer.assign(time=10**9)], ignore_index=True)


@check(windowcount_oracle, BEYOND, "false")
def a_timer_for_no_event(run):
    timer = run.timers[run.timers["kind"] == PROCESSING].iloc[[0]]
    run.timers = pd.concat([run.timers, timer.assign(time=10**9)], ignore_index=True)


# -- keycount.py ------------------------------------------------------------------------------------------------------


@check(keycount, "(count < 1) | ", "", "counts")
def a_count_of_nothing(run):
    run.results.loc[run.results.index[run.results["count"] == 1][0], ["count", "stamp"]] = [0, -1]


@check(keycount, "(count > offered) | ", "", "counts")
def a_count_beyond_all_events(run):
    last = run.results[run.results["key"] == run.results["key"][0]]["count"].idxmax()
    run.results.loc[last, ["count", "stamp"]] += 1


@check(keycount, " | (stamp != count - 1)", "", "counts")
def a_stamp_of_another_count(run):
    run.results.loc[7, "stamp"] -= 1


@check(keycount, "bad[order[1:]] |= (np.diff(key[order]) == 0) & (np.diff(count[order]) == 0)", "pass", "counts")
def a_count_that_two_events_have(run):
    ordered = run.results.sort_values(["key", "count"])
    before = ordered.groupby("key")["router"].shift()
    row = ordered.index[before.notna() & (before != ordered["router"])][0]
    run.results.loc[row, ["count", "stamp"]] -= 1


@check(keycount, "bad[order[1:]] |= same & (np.diff(count[order]) <= 0)", "pass", "counts")
def counts_in_the_wrong_order(run):
    both = run.results.index[(run.results["key"] == run.results["key"][0]) & (run.results["router"] == 0)][:2]
    columns = ["count", "stamp"]
    run.results.loc[both, columns] = run.results.loc[both[::-1], columns].to_numpy()


@check(keycount, "bad = ~known | workload", "bad = workload", "counts")
def a_key_that_does_not_exist(run):
    like = run.final[run.final["key"] == 0]
    payload = run.workload.payloads(np.array([10**6]), like["count"].to_numpy())[0].tobytes()
    run.final = pd.concat([run.final, like.assign(key=10**6, payload=[payload])], ignore_index=True)


@check(keycount, "(self._units[at[known]] != unit[known]) | ", "", "counts")
def a_counted_key_in_another_unit(run):
    row = run.final.index[run.final["slot"] == 0][0]
    run.final.loc[row, "unit"] = (run.final.loc[row, "unit"] + 1) % 3


@check(keycount, " | (self._counts[at[known]] != count[known])", "", "counts")
def an_older_count_with_its_payload(run):
    count = run.final.loc[[0], "count"].to_numpy() - 1
    payload = run.workload.payloads(run.final.loc[[0], "key"].to_numpy(), count)[0].tobytes()
    run.final.loc[0, "count"] = count[0]
    run.final.at[0, "payload"] = payload


@check(keycount, " | workload.damaged(rows, count)", "", "counts")
def a_counted_key_with_another_payload(run):
    run.final.at[0, "payload"] = run.final.at[0, "payload"][:-1] + b"?"


@check(keycount, "np.flatnonzero(self._seen != 1)", "np.flatnonzero(self._seen > 9)", "counts")
def a_counted_key_that_is_nowhere(run):
    run.final = run.final.drop(index=0)


@pytest.mark.parametrize(("module", "snippet", "instead", "of", "kind", "spoil"), CHECKS)
def test_a_run_that_only_one_check_finds_bad(monkeypatch, tmp_path, module, snippet, instead, of, kind, spoil):
    run = deepcopy(good(of))
    spoil(run)
    found = run.judged()
    assert run.judged(parts=3) == run.judged_on_disk(tmp_path / "run", parts=3) == found
    counts = {each: getattr(found, each) for each in verdict.KINDS if getattr(found, each)}
    assert counts == {kind: counts[kind] if kind == "wrong" else 1}
    assert {line.split(":")[0] for line in found.examples} == {kind}
    without(monkeypatch, module, snippet, instead)
    missed = run.judged()
    assert missed.ok, missed.examples
