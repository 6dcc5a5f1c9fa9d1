from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyshift.lab.judge.sequential import SequentialRun, run_sequentially
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Versions
from keyshift.results.verdict import KINDS, Inventory, Judgement, Ownership, judge
from keyshift.state.timers import Timers
from keyshift.workloads.chain import Chain
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.windowcount import WindowCount
from keyshift.workloads.windowcount.operator import WindowCountOperator

SMALL = {"key_groups": 8, "keys": 10, "skew": 0.5, "state_bytes": 24, "seed": 5}
WORKLOAD = KeyCount(**SMALL)
TWO = [Assignment.contiguous(8, 2), Assignment.contiguous(8, 3, version=2)]


@pytest.fixture
def run() -> SequentialRun:
    return run_sequentially(WORKLOAD, TWO, frames=12)


def verdict(run: SequentialRun, results: pd.DataFrame, **changes) -> Judgement:
    given = {"events": run.events, "final": run.final, "ownership": run.ownership} | changes
    return judge(WORKLOAD, results=results, **given)


def only(found: Judgement, **counts: int) -> None:
    """Exactly these mistakes were counted, and each kind has an example."""
    assert {kind: getattr(found, kind) for kind in KINDS if getattr(found, kind)} == counts
    assert found.ok is (not counts)
    assert {line.split(":")[0] for line in found.examples} == set(counts)
    assert len(found.examples) <= 20


def test_the_order_of_the_tables_rows_matters_only_within_a_record_where_results_of_a_key_swapped_are_reordered(run):
    shuffled = run.results.sample(frac=1, random_state=1).sort_values(["arrived_us"], kind="stable")
    by_record = shuffled.sort_values(["slot", "log_offset", "router", "offset", "position"])
    only(verdict(run, by_record, events=run.events.sample(frac=1, random_state=2)))
    for _, rows in run.results.groupby(["slot", "log_offset", "router", "key"]):
        if len(rows) > 1:
            first, second = rows.index[:2]
            break
    order = run.results.index.tolist()
    order[first], order[second] = order[second], order[first]
    only(verdict(run, run.results.loc[order]), reordered=1)


def test_a_result_of_who_is_not_the_owner_and_a_unit_that_does_not_exist_are_foreign(run):
    results = run.results.copy()
    last = results.groupby(["router", "key"]).tail(1).index[0]
    results.loc[last, "version"] = 99
    only(verdict(run, results), foreign=1)
    results = run.results.copy()
    before, after = (a.slot_of[WORKLOAD.units[results["key"]]] for a in run.assignments)
    moved = results.index[(results["version"] == 2) & (before != after)][-1]
    results.loc[moved, "slot"] = before[moved]
    only(verdict(run, results), foreign=1)
    found = verdict(run, run.results, final=[*run.final[:-1], run.final[-1].assign(unit=8)])
    only(found, foreign=1, wrong=len(run.final[-1]))


CHAIN = Chain(**SMALL)


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_unit_of_another_slot_in_the_last_savepoint_of_a_chain_is_foreign_once(with_keys):
    made = run_sequentially(CHAIN, TWO, frames=12)
    has_keys = {unit for part in made.final for unit in part["unit"].tolist()}
    unit = next(unit for unit in range(8) if (unit in has_keys) == with_keys)
    final = [part.assign(slot=np.where(part["unit"] == unit, 9, part["slot"])) for part in made.final]
    units = [(each, 9 if each == unit else slot) for each, slot in enumerate(TWO[1].owner)]
    first, _ = made.ownership
    last = Ownership(TWO, [Inventory("savepoint 1-a", TWO[1], units)])
    only(judge(CHAIN, made.events, made.results, final, [first, last]), foreign=1)


@pytest.mark.parametrize(
    "change",
    [{"router": 5}, {"router": -1}, {"offset": 10**15}, {"position": 20}, {"offset": -1}],
    ids=lambda c: str(c),
)
def test_a_result_of_an_event_never_offered_is_unexpected(run, change):
    extra = run.results.loc[[7]].assign(**change)
    only(verdict(run, pd.concat([run.results, extra], ignore_index=True)), unexpected=1)


def test_a_result_without_an_event_is_unexpected_once_where_nothing_has_timers(run):
    extra = run.results.iloc[[0]].assign(router=-1, offset=-1, position=-1)
    found = verdict(run, pd.concat([run.results, extra], ignore_index=True))
    only(found, unexpected=1)
    assert f"key {extra['key'].iloc[0]} without an event" in found.examples[0]


def test_nothing_offered_nothing_answered_and_untouched_state_is_ok():
    run = run_sequentially(WORKLOAD, [Assignment.contiguous(8, 2)], events_per_frame=1, frames=1)
    untouched = [
        part.assign(count=0, payload=[p.tobytes() for p in WORKLOAD.payloads(keys, np.zeros(len(part), np.int64))])
        for part in run.final
        for keys in [part["key"].to_numpy()]
    ]
    only(judge(WORKLOAD, run.events.iloc[:0], run.results.iloc[:0], untouched, run.ownership))
    found = judge(WORKLOAD, run.events.iloc[:0], run.results, untouched, run.ownership)
    assert found.unexpected == len(run.results) > 0


@pytest.mark.parametrize("unread, words", [(7, "7 events fewer than"), (-2, "2 events more than")])
def test_events_that_were_offered_and_not_read_back_are_told_and_the_other_way_round(run, unread, words):
    found = verdict(run, run.results, unread=unread)
    only(found, unread=abs(unread))
    assert words in found.examples[0]


WINDOWS = WindowCount(
    key_groups=8, keys=40, skew=0.5, state_bytes=24, seed=5, window_ms=20, delay_ms=5, late_share=0.1, idle_ms=15
)


@pytest.fixture
def timed() -> SequentialRun:
    return run_sequentially(WINDOWS, TWO, frames=12)


def timed_verdict(run: SequentialRun, results: pd.DataFrame, **changes) -> Judgement:
    return judge(WINDOWS, run.events, results, run.final, run.ownership, times=run.times, **changes)


def test_results_of_timers_are_none_of_events_in_any_order_and_a_lost_event_is_lost_and_nothing_else(timed):
    fired = timed.results["router"] == -1
    assert fired.sum() > 50
    only(timed_verdict(timed, timed.results))
    found = timed_verdict(timed, timed.results[~fired])
    assert found.wrong >= fired.sum()
    only(found, wrong=found.wrong)
    turned = pd.concat([timed.results[fired].iloc[::-1], timed.results[~fired]])
    only(timed_verdict(timed, turned))
    only(timed_verdict(timed, timed.results[timed.results["position"] != 3]), lost=24)


@pytest.mark.parametrize("of_timers", [False, True])
def test_what_an_attempt_gave_that_died_does_not_count_and_what_only_it_gave_is_lost(timed, of_timers):
    mine = timed.results[(timed.results["router"] == -1) == of_timers].iloc[:100]
    both = pd.concat([mine.assign(version=0, slot=9), timed.results])
    only(timed_verdict(timed, both, revoked=Versions(((0, 1), (10**6, 10**15)))))
    assert not timed_verdict(timed, both).ok
    found = timed_verdict(timed, both.drop_duplicates(["router", "offset", "position"]), revoked={0})
    assert found.lost == (0 if of_timers else 100)


@pytest.mark.parametrize("column", ["router", "offset", "position"])
def test_only_a_result_without_any_origin_is_one_of_a_timer(timed, column):
    row = timed.results.index[timed.results["router"] == -1][0]
    timed.results.loc[row, column] = 0
    assert timed_verdict(timed, timed.results).unexpected == 1


# What a review broke, in a whole run whose units move. All of it was called ok.


class Quiet(WindowCount):
    """No events for units 4 to 7, some of which move, from the middle of the run on."""

    @property
    def sources(self):
        [plain] = super().sources

        def partition(router):
            events = plain.partition(router)

            class Partition:
                def take(self, times):
                    batch = events.take(times)
                    gone = (WINDOWS.units[batch["key"].to_numpy()] >= 4) & (times >= 60_000)
                    return batch.filter(pa.array(~gone))

            return Partition()

        return (replace(plain, partition=partition),)


QUIET = Quiet(**WINDOWS.model_dump())


def broken_run(monkeypatch, fault: str, workload: WindowCount) -> Judgement:
    """The verdict on a run with a fault in units that have moved: 3, 6 and 7, in this order."""
    install, reach = Timers.install, Timers.reach
    moved: dict[Timers, int] = {}  # -> how often time has come since

    def installs(timers, batch):
        kinds = batch["kind"].to_numpy()
        install(timers, batch.filter(pa.array(kinds < 0)) if fault == "timers lost" else batch)
        moved[timers] = 0

    def reaches(timers, watermark, now_us=0):
        if timers in moved:
            moved[timers] += 1
            if fault == "time stands" or (fault == "queued records lose their watermark" and moved[timers] <= 4):
                watermark = 0
            if fault == "nothing without a record" and timers is not next(iter(moved)):  # unit 3 has records
                return
        reach(timers, watermark, now_us)

    with monkeypatch.context() as patch:
        patch.setattr(Timers, "install", installs)
        patch.setattr(Timers, "reach", reaches)
        run = run_sequentially(workload, TWO, frames=12)
    assert len(moved) == 3
    return judge(workload, run.events, run.results, run.final, run.ownership, times=run.times)


FAULTS = ["time stands", "timers lost", "queued records lose their watermark"]
SILENT = ["none", "time stands", "timers lost", "nothing without a record"]


@pytest.mark.parametrize(("workload", "fault"), [*product([WINDOWS], FAULTS), *product([QUIET], SILENT)])
def test_a_fault_in_the_time_of_units_that_have_moved_is_noticed_though_they_fall_silent(monkeypatch, workload, fault):
    found = broken_run(monkeypatch, fault, workload)
    only(found, **({} if fault == "none" else {"wrong": found.wrong}))


def test_a_frame_that_meets_its_own_watermark_is_noticed(monkeypatch):
    process = WindowCountOperator.process

    def too_far(self, events, state_of):
        for unit in set(events["unit"].to_pylist()):
            state_of(unit).timers.reach(max(events["t"].to_pylist()) // 10_000 * 10_000 + 9_500)
        return process(self, events, state_of)

    monkeypatch.setattr(WindowCountOperator, "process", too_far)
    run = run_sequentially(WINDOWS, TWO, frames=12)
    found = timed_verdict(run, run.results)
    assert found.wrong > 100
    assert found.lost == found.duplicated == found.reordered == 0


def test_what_a_verdict_needs_is_asked_for(run, timed):
    with pytest.raises(BadInput, match="assignments is empty"):
        verdict(run, run.results, ownership=[Ownership([])])
    with pytest.raises(BadInput, match="times is missing: windowcount uses time"):
        judge(WINDOWS, timed.events, timed.results, timed.final, timed.ownership)


@settings(max_examples=40)
@given(st.data())
def test_dropping_and_doubling_any_results_gives_exactly_these_counts(data):
    run = run_sequentially(WORKLOAD, TWO, frames=4)
    rows = st.lists(st.sampled_from(run.results.index.tolist()), max_size=20)
    dropped, doubled = set(data.draw(rows)), data.draw(rows)
    doubled = [row for row in doubled if row not in dropped]
    results = pd.concat([run.results.drop(index=list(dropped)), run.results.loc[doubled]])
    found = verdict(run, results)
    counts = {"lost": len(dropped), "duplicated": len(doubled)}
    only(found, **{kind: count for kind, count in counts.items() if count})
