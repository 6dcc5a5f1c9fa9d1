import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.model.errors import BadInput
from keyshift.model.keys import SomeUnits, units_of
from keyshift.state.memory import MemoryState
from keyshift.workloads import keycount, operators
from keyshift.workloads.chain import Chain
from keyshift.workloads.keycount import KeyCount
from workload_runs import run, slot_events, wrong


def make(**changes) -> KeyCount:
    plain = {"key_groups": 8, "keys": 60, "skew": 0.8, "state_bytes": 21, "seed": 3}
    return KeyCount(**(plain | changes))


@pytest.mark.parametrize(
    "change",
    [{"keys": 0}, {"state_bytes": 15}, {"skew": -0.1}, {"key_groups": 0}, {"bins": 0}, {"seed": -1}, {"kyes": 5}],
    ids=lambda c: str(c),
)
def test_an_impossible_or_unknown_parameter_is_named(change):
    with pytest.raises(ValidationError, match=next(iter(change))):
        make(**change)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keys": 20_000, "key_groups": 2, "state_bytes": 1 << 18}, "key_groups = 2: .* 2.45 GiB of keys, .*raise key"),
        ({"keys": 10**12, "key_groups": 1024, "state_bytes": 16}, "key_groups = 1024: .* take exist = 'once used'"),
        ({"keys": 32, "key_groups": 1, "state_bytes": 1 << 26}, "key_groups = 1: "),
    ],
)
def test_more_state_than_a_unit_can_have_is_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        make(**given)


def test_as_much_state_as_a_unit_can_have_is_accepted():
    assert make(keys=31, key_groups=1, state_bytes=1 << 26).from_start == 31
    assert make(keys=20_000, key_groups=2, bins=2, state_bytes=1 << 18).from_start == 20_000
    assert make(keys=10**12, key_groups=1 << 16, state_bytes=16).from_start == 10**12
    assert make(keys=10**12, key_groups=2, state_bytes=1 << 18, exist="once used", skew=0).from_start == 0


def test_a_payload_holds_the_count_then_the_key_then_a_filler_of_its_own():
    payloads = make(state_bytes=45).payloads(np.array([7, 8]), np.array([258, 258]))
    assert payloads.shape == (2, 45)
    assert payloads[0, :16].tobytes() == (258).to_bytes(8, "little") + (7).to_bytes(8, "little")
    assert payloads[0, 16:].tobytes() != payloads[1, 16:].tobytes()


def test_routers_and_seeds_have_events_of_their_own():
    times = np.arange(100, dtype=np.int64)
    streams = {
        tuple(make(seed=seed).sources[0].partition(router).take(times).column("key").to_pylist())
        for seed in range(3)
        for router in range(3)
    }
    assert len(streams) == 9


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_key_groups_are_drawn_in_proportion_to_zipf_weights(skew):
    workload = make(skew=skew, keys=1000)
    share = np.bincount(units_of(drawn(workload, 200_000), 8), minlength=8) / 200_000
    weights = 1 / np.arange(1, 9) ** skew
    assert share == pytest.approx(weights / weights.sum(), rel=0.05)


def drawn(workload, count):
    return workload.sources[0].partition(0).take(np.zeros(count, np.int64)).column("key").to_numpy()


def test_the_keys_of_a_group_take_turns_and_groups_without_a_key_get_no_events():
    per_key, group = np.bincount(drawn(make(keys=200), 5000), minlength=200), units_of(np.arange(200), 8)
    for g in range(8):
        assert np.ptp(per_key[group == g]) <= 1
    assert set(drawn(make(key_groups=64, keys=3), 500)) == {0, 1, 2}


@settings(max_examples=25)
@given(*map(st.integers, (1, 1, 1, 16, 1, 1), (3, 12, 30, 70, 3, 90)))
def test_a_run_without_mistakes_has_nothing_wrong(routers, frames, events_per_frame, state_bytes, bins, keys):
    workload = make(state_bytes=state_bytes, bins=bins, keys=keys)
    made = run(workload, routers=routers, frames=frames, events_per_frame=events_per_frame)
    assert wrong(workload, made) == []


def test_keys_that_exist_once_used_cost_nothing_before_and_any_comes_but_one_that_was_never_used_has_no_state():
    workload = make(exist="once used", skew=0, keys=32_768_000_000)
    made = run(workload, routers=2, frames=20, events_per_frame=10)
    keys = made.events["key"]
    assert keys.nunique() > 390 and keys.max() > 3e10, "of so many, hardly one comes twice"
    assert sorted(pd.concat(made.final)["key"]) == sorted(set(keys))
    assert wrong(workload, made) == []
    with pytest.raises(ValidationError, match=r"skew = 0.8: must be 0 with exist = once used"):
        make(exist="once used")
    workload = make(exist="once used", skew=0, keys=10**9)
    made = run(workload)
    extra = make(keys=10**6).payloads(np.array([5]), np.array([0]))[0].tobytes()
    unit = int(workload.units_of(np.array([5]))[0])
    row = pd.concat(made.final).iloc[[0]].assign(key=5, count=0, unit=unit, payload=[extra])
    [line] = wrong(workload, made, final=[*made.final, row])
    assert line.startswith("final state of key 5 in unit") and line.endswith("expected no such key")


@pytest.mark.parametrize("keys", [50, 10**12])
def test_uniform_keys_are_the_same_whatever_is_drawn_at_once(keys):
    def taken(sizes):
        draw = make(exist="once used", skew=0, keys=keys).key_draw(1)
        return np.concatenate([draw(size) for size in sizes])

    whole = taken([1000])
    assert (whole == taken([1, 2, 500, 497])).all()
    assert whole.min() >= 0 and whole.max() < keys and np.median(whole) == pytest.approx(keys / 2, rel=0.15)


def test_units_are_judged_apart_only_by_a_class_that_says_so_itself():
    class Derived(KeyCount):
        """Its ``wrong`` could compare keys of several units."""

    some, parameters = SomeUnits(((1, 3), (6, 7))), make().model_dump()
    only = make().only(some)
    assert only.model_dump() == parameters
    assert [*only.judged_keys] == [key for key, unit in enumerate(make().units) if unit in (1, 2, 6)]
    assert Derived(**parameters).only(some) is Chain(**parameters).only(some) is None


def test_a_key_whose_state_is_missing_counts_from_zero_and_is_noticed():
    workload = make()
    operator = workload.stages[0].operator()
    empty = MemoryState(operator.state_schema)
    answer = operator.process(slot_events(keycount.EVENTS, [(7, 0)]), lambda unit: empty)
    assert answer.column("count").to_pylist() == [1]
    assert empty.values[7][1] == workload.payloads(np.array([7]), np.array([1])).tobytes()


# What else is wrong is found by checks that tests/unit/results/test_verdict_checks.py takes away, one by one.
CHANGES = {
    "key below zero": lambda row: {"key": -1},
    "payload cut": lambda row: {"payload": row["payload"][:-1]},
    "payload empty": lambda row: {"payload": b""},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_mistake_in_the_final_state_of_a_key_is_wrong(change):
    workload = make()
    made = run(workload)
    part = made.final[-1]
    row, key = part.index[-1], part["key"].iloc[-1]
    for column, value in change(part.loc[row]).items():
        part.at[row, column] = value
    found = wrong(workload, made)
    assert 1 <= len(found) <= 2  # a key renamed is one too many and one missing
    assert any(f"final state of key {key} " in line or f"final state of key {key}:" in line for line in found)


def test_a_key_in_no_place_and_a_key_in_two_places_are_wrong():
    workload = make()
    made = run(workload)
    final = made.final
    missing, twice = final[0]["key"].iloc[0], final[-1]["key"].iloc[0]
    final[0] = final[0].iloc[1:]
    final.append(final[-1].iloc[:1].assign(slot=0))
    assert wrong(workload, made) == [
        f"final state of key {key}: in {places} places, expected 1"
        for key, places in sorted([(missing, 0), (twice, 2)])
    ]


@pytest.mark.parametrize("chained", [False, True], ids=["alone", "in a chain"])
@pytest.mark.parametrize("by", ["waiting", "spinning"])
def test_events_occupy_their_slot_as_long_as_asked_and_a_core_only_if_spinning(by, chained, monkeypatch):
    now, slept = [100.0], []

    def clock():
        now[0] += 0.001
        return now[0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(operators, "time", SimpleNamespace(perf_counter=clock, sleep=sleep))
    workload = make(work_us=2000.0, work_by=by)
    if chained:
        workload = Chain(**workload.model_dump(), chain="map,counter")
    counter = workload.stages[-1].operator()
    state = MemoryState(counter.state_schema)
    events = slot_events(keycount.EVENTS, [(0, 0)] * 50)
    begin = now[0]
    assert counter.process(events, lambda unit: state)["count"].to_pylist() == list(range(1, 51))
    assert 0.1 <= now[0] - begin < 0.11
    assert (sum(slept) > 0.09) == (by == "waiting")


def test_each_stage_of_a_chain_has_work_of_its_own(monkeypatch):
    slept, now = [], [0.0]
    fake = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda s: (slept.append(s), now.append(now.pop() + s)))
    monkeypatch.setattr(operators, "time", fake)
    chain = Chain(
        **make(work_us=2000.0).model_dump(), chain="map,counter,counter", stage_work_us="map:500, counter-2:0"
    )
    assert (chain.works, chain.told_us) == ({"map": 500.0, "counter-1": 2000.0, "counter-2": 0.0}, 2500.0)
    for stage in chain.stages:
        operator = stage.operator()
        state = MemoryState(operator.state_schema)
        operator.process(slot_events(keycount.EVENTS, [(0, 0)] * 10), lambda unit, state=state: state)
    assert slept == pytest.approx([0.005, 0.02])
    for text, words in [
        ("maps:5", "stage_work_us = 'maps:5': unknown stage 'maps': did you mean 'map'?"),
        ("map:-1", "'map:-1' must be a stage and a number of microseconds from 0 to 1e+06, e.g. counter-2:100"),
        ("map:nan", "'map:nan' must be"),
    ]:
        with pytest.raises(BadInput, match=re.escape(words)):
            Chain(**make().model_dump(), chain="map,counter,counter", stage_work_us=text)


def test_work_changes_no_result():
    chain = Chain(**make().model_dump(), stage_work_us="counter-1:1")
    for worked in (make(work_us=1.0), make(work_us=1.0, work_by="spinning"), chain):
        made = run(worked)
        assert len(made.results) == len(made.events) and not wrong(worked, made)
