"""A run whose tables are on disk has the verdict, the tables and the summary that it has in memory."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_portions import Portions

from keyshift.analysis.metrics import summarise
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge import spilled as module
from keyshift.lab.judge.evaluation import EndedJob, Span
from keyshift.lab.judge.final_state import CopiedAhead, FinalState, StageEnd
from keyshift.lab.judge.sequential import run_sequentially
from keyshift.lab.judge.spilled import Spilled, spilled_of
from keyshift.lab.scripts import series
from keyshift.lab.scripts.series import Lap
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import FIRST_UNIT, UNITS_END, Assignment, SomeUnits
from keyshift.results import verdict
from keyshift.results.verdict import Inventory, Ownership
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.windowcount import WindowCount

TWO = [Assignment.contiguous(64, 2), Assignment.contiguous(64, 3, version=2)]
FRAMES = 10  # of each router
WHOLE, LAP = Span(0.0, 0.02, 0.1, 0.05), Span(0.02, 0.02, 0.06, 0.03)  # seconds


@pytest.fixture(params=[("keycount", 399), ("micro", 4)], ids=["judged together", "added"])
def run(request, monkeypatch):
    """A good run, to be spoilt. Eight parts of its verdict have about 50 events each, all or none of those that are bad
    are judged together.
    """
    name, together = request.param
    monkeypatch.setattr(verdict, "PART_EVENTS", 50)
    monkeypatch.setattr(verdict, "TOGETHER_EVENTS", together)
    workload = workloads.get(name)(key_groups=32, bins=2, keys=300, skew=0.5, state_bytes=32, seed=2)
    made = run_sequentially(workload, TWO, frames=FRAMES)
    of_all = {"replica": np.int16(0), "slot_turn": 0, "attempt": np.int32(0), "first": True}
    homes = sorted((unit, int(slot)) for unit, slot in enumerate(TWO[1].owner))
    return SimpleNamespace(
        workload=workload,
        events=made.events[["router", "offset", "position", *workload.stages[0].events.names]],
        results=made.results.assign(**of_all),
        frames=made.frames.assign(events=len(made.events) // len(made.frames), epoch=1),
        state=pd.concat(made.final, ignore_index=True),
        saved=Inventory("savepoint last", TWO[1], homes),
        offered=len(made.events),
        final={},
        overloaded=False,
    )


@pytest.fixture
def ended(tmp_path):
    """Ends a run whose tables are on disk, unless they can only be read as a whole."""

    def ended(run, whole=False):
        portions = Portions(tmp_path / "run.parts", run.events, run.frames, run.results)
        traffic = SimpleNamespace(portions=None if whole else portions, seconds=[], replicas=1)
        told = {"offsets": {0: FRAMES, 1: FRAMES}, "revoked": (), "notes": ()} | run.final
        offsets = told["offsets"]
        if whole:
            before = run.events["offset"] < run.events["router"].map(offsets)
            mine = run.events[before] if run.overloaded else run.events
            traffic.offered, traffic.results = lambda before: (mine, run.frames), lambda: run.results
        stage = StageEnd("counter", Ownership(TWO, [run.saved]), [1], dict.fromkeys(range(64), 9), [])

        def state(timers, units):
            yield run.state[units.have(run.state["unit"])]

        final = FinalState(parts=state, stages=[stage], **told)
        feed = SimpleNamespace(offered=run.offered, took_s=0.1, planned=run.offered, rate_changed=False)
        ended = EndedJob(run.workload, traffic, feed, final, [], run.overloaded)
        assert whole == (portions.before == "nothing") == hasattr(ended, "events")
        assert whole or portions.before == (offsets if run.overloaded else None)
        return ended

    return ended


def told_of(ended):
    """The verdict, and all that is said of the whole run and of a lap; tables as texts, in which NaN is NaN."""
    lap = Lap(make_spec({"keys": 50}), LAP, 0.0, {}, False, CopiedAhead(), 0, [])
    whole = ended.evaluation(WHOLE, [], str)
    parts = [whole, series.evaluation_of(ended, lap, whole.verdict)]
    tables = [{name: str(table.to_pydict()) for name, table in each.tables.items()} for each in parts]
    some = [each.tables[name].to_pandas() for each in parts for name in ("latency", "migration", "metrics")]
    figures = summarise(*some[:3], **whole.facts)
    return whole.verdict, [(each.facts, each.notes) for each in parts], tables, figures, ended.unprocessed


def good(run):
    pass


def lost(run):
    run.results = run.results.drop(index=[3, 200])


def lost_all(run):
    run.results = run.results[:0]


def twice(run):
    more = run.results.loc[[7, 211]].assign(arrived_us=10**9, log_offset=10**6)
    run.results = pd.concat([run.results, more], ignore_index=True)


def reordered(run):
    of_key = run.results.groupby(["slot", "router", "key"])["log_offset"]
    first = run.results.index[of_key.shift(-1) > run.results["log_offset"]][0]
    run.results.loc[first, "log_offset"] = 10**6


def wrong(run):
    run.results.loc[[7, 211], "count"] += 1


def wrong_everywhere(run):
    run.results["stamp"] += 1


def wrong_state(run):
    run.state.loc[[0, 100, 200], "count"] += 1


def a_key_in_another_unit(run):
    run.state.loc[0, "unit"] = 60


def a_key_of_another_part(run):
    home = run.workload.units[run.results.loc[7, "key"]]
    run.results.loc[7, "key"] = np.flatnonzero(abs(run.workload.units - home) > 30)[0]


def foreign(run):
    run.results["slot"] = (run.results["slot"] + 1) % 3


def not_offered(run):
    run.results.loc[[7, 211], "position"] = 99


def of_no_event(run):
    timers = {"router": -1, "offset": -1, "position": -1}
    run.results = pd.concat([run.results, run.results.loc[[7, 211]].assign(**timers)], ignore_index=True)


def not_read(run):
    run.offered += 7


def not_read_and_wrong(run):
    not_read(run)
    wrong(run)


def a_savepoint_without_units(run):
    run.saved = Inventory("savepoint last", TWO[1], run.saved.units[2:])


def overloaded(run):
    run.overloaded, run.final["offsets"] = True, {0: 6, 1: 8}


def stopped_early(run):
    """Some events behind the savepoint have results that are lost, and nobody has waited for the others."""

    class OfEvenKeys(type(run.workload)):
        apart = True

        @property
        def stages(self):
            return tuple(replace(stage, due=even) for stage in super().stages)

    run.workload, run.final["offsets"] = OfEvenKeys(**run.workload.model_dump()), {0: 6, 1: 8}
    run.results = run.results[run.results["offset"] < run.results["router"].map({0: 6, 1: 8})]
    run.results = run.results[run.results["key"] % 2 == 0]


def even(events):
    return np.asarray(events["key"].to_numpy() % 2 == 0)


def died(run):
    again = run.results[run.results["version"] == 1].assign(version=2, arrived_us=10**9, log_offset=10**6)
    run.results, run.final["revoked"] = pd.concat([run.results, again], ignore_index=True), {1}


SPOILT = [lost, lost_all, twice, reordered, wrong, wrong_everywhere, wrong_state, a_key_in_another_unit]
SPOILT += [a_key_of_another_part, foreign, not_offered, of_no_event, not_read, not_read_and_wrong]
SPOILT += [a_savepoint_without_units, overloaded, stopped_early, died]


@pytest.mark.parametrize("spoil", [good, *SPOILT])
def test_on_disk_a_run_has_the_verdict_the_tables_and_the_summary_that_it_has_in_memory(run, ended, spoil):
    spoil(run)
    in_memory = told_of(ended(run, whole=True))
    assert told_of(ended(run)) == in_memory
    assert (in_memory[0].ok, bool(in_memory[0].examples)) == (spoil is good, spoil is not good)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=200),
    st.integers(1, 60),
    st.sampled_from([(1, 1), (8, 1), (16, 4), (1 << 12, 4)]),
    st.integers(20, 100),
)
def test_each_part_has_the_rows_of_its_units_in_their_order_and_none_has_a_row_of_another(keys, rows, units, together):
    groups, bins = units
    workload = KeyCount(key_groups=groups, bins=bins, keys=41, exist="once used", skew=0.0)
    events = pd.DataFrame({"key": np.array(keys, np.int64), "t": np.arange(len(keys))})
    results = events[::-1].reset_index(drop=True)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(verdict, "PART_EVENTS", together)
        patched.setattr(module, "SLICES", 16)
        portions = Portions(Path(folder) / "run", events, pd.DataFrame({"router": [0]}), results, rows)
        spilled = Spilled(workload, portions, 300)
        ranges = [*pairwise([FIRST_UNIT, *spilled.begins, UNITS_END])]
        assert spilled.made == len(events) and len(ranges) <= 1 + len(events) // together
        for number, each in enumerate(ranges):
            for found, table in zip(spilled.some(number), (events, results), strict=True):
                mine = SomeUnits([each]).have(workload.units_of(table["key"]))
                assert found.equals(table[mine].reset_index(drop=True))
        for found, table in zip(spilled.some(*range(len(ranges))), (events, results), strict=True):
            assert found.equals(table)
        assert [[*each] for each in spilled.some()] == [["key", "t"]] * 2


def test_a_disk_that_cannot_take_it_or_has_lost_it_ends_the_run_with_one_line(tmp_path):
    events = pd.DataFrame({"key": [1, 2], "t": [3, 4]})
    (tmp_path / "file").touch()
    told = "what went in and came out cannot be kept in .*: .*; set KEYSHIFT_HOME to another folder"
    for folder in (tmp_path / "file" / "run", tmp_path / "run"):
        portions = Portions(folder, events, events, events)
        with pytest.raises(ServiceUnavailable, match=told):
            spilled = Spilled(KeyCount(), portions, 2)
            shutil.rmtree(tmp_path / "run")
            spilled.some(0)


@pytest.mark.parametrize(
    ("workload", "offered", "portions", "final", "overloaded"),
    [
        (KeyCount(), 1 << 22, "some", {}, False),
        (WindowCount(), 1 << 23, "some", {}, False),
        (KeyCount(), 1 << 23, None, {}, False),
        (KeyCount(), 1 << 23, "some", {"cuts": {}}, False),
        (KeyCount(), 1 << 23, "some", {"repeats": [1]}, False),
        (KeyCount(), 1 << 23, "some", {}, True),
    ],
    ids=["few events", "units that need others", "replicas or lines", "snapshots are judged", "repeats", "no offsets"],
)
def test_what_is_small_or_needed_as_a_whole_stays_in_memory(workload, offered, portions, final, overloaded):
    final = FinalState({}, lambda timers, units: iter(()), [], (), (), **final)
    assert spilled_of(workload, SimpleNamespace(portions=portions), offered, final, overloaded) is None
