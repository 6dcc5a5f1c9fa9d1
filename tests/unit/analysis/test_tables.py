"""Spike against completion, and what changed between two runs: all of it, and nothing that stayed."""

from typing import Any

import numpy as np
import pytest
from small_store import row as summary
from small_store import run

from keyshift.analysis import tables
from keyshift.analysis.conclusions import tradeoff_sentences
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput
from keyshift.planner.presets import PRESETS
from keyshift.state import backends

MIB = 2**20


def row(strategy: str, spike_ms: float | None, completion_s: float | None, **values: Any) -> dict[str, Any]:
    usual = {"floor_s": 0.25, "bytes_moved": 10 * MIB, "bytes_minimum": 10 * MIB, "recover_s": 1.0}
    return summary(strategy, spike_ms=spike_ms, completion_s=completion_s, **usual | values)


MATCHED = row("matched", 60, 2.0)


@pytest.mark.parametrize(
    ("rows", "front"),
    [
        pytest.param(
            [row("fluid", 30, 4.0), row("all_at_once", 600, 0.5), row("stop_restart", 9000, 5.0), MATCHED],
            ["fluid", "all_at_once", "matched"],
            id="whom nobody beats in both",
        ),
        pytest.param(
            [row("fluid", 30, 1.0, recover_s=None), MATCHED], ["matched"], id="not who was not seen to recover"
        ),
        pytest.param([row("fluid", 60, 2.0), MATCHED], ["fluid", "matched"], id="equals"),
        pytest.param([row("fluid", 60, 4.0), MATCHED], ["matched"], id="a tie in one is decided by the other"),
    ],
)
def test_the_front_is(rows, front):
    frame = tables.tradeoffs(rows)
    assert frame[frame["front"]]["strategy"].tolist() == front


def test_a_run_that_is_not_correct_is_on_no_front_and_beats_nobody():
    frame = tables.tradeoffs([row("fluid", 1, 0.1, verdict="bad", lost=1), row("matched", 60, 2.0)])
    assert frame["front"].tolist() == [False, True]
    assert np.isnan(frame["spike_ms"].iloc[0])
    assert frame["verdict"].tolist() == ["bad", "ok"]


@pytest.mark.parametrize("unknown", ["spike_ms", "completion_s"])
def test_what_one_repetition_does_not_know_is_not_known(unknown):
    known = row("fluid", 30, 4.0)
    frame = tables.tradeoffs([known, known | {unknown: None}, row("matched", 60, 9.0)])
    assert np.isnan(frame[unknown].iloc[0])
    assert frame["front"].tolist() == [False, True]


def test_repetitions_give_the_median_and_the_range():
    frame = tables.tradeoffs([row("fluid", s, c, parameters={"seed": s}) for s, c in [(30, 4.0), (90, 5.0), (40, 3.0)]])
    (point,) = frame.to_dict("records")
    assert point["runs"] == 3
    assert (point["spike_low_ms"], point["spike_ms"], point["spike_high_ms"]) == (30, 40, 90)
    assert (point["completion_low_s"], point["completion_s"], point["completion_high_s"]) == (3.0, 4.0, 5.0)
    *_, said = tradeoff_sentences([row("fluid", 30, time_s) for time_s in (1.0, 2.0, 6.0)])
    assert "fluid moves everything, in 2.0 s (the median of its runs); the floor" in said, "others beside it have means"


def test_the_longest_latency_may_be_compared_instead_of_the_spike_and_nothing_else():
    slow = [row("fluid", 30, 4.0, longest_ms=500.0), row("matched", 60, 5.0, longest_ms=90.0)]
    frame = tables.tradeoffs([*slow, row("lazy", 10, 6.0, longest_ms=95.0)], "longest latency (ms)")
    assert frame["longest_ms"].tolist() == [500.0, 90.0, 95.0] and "spike_ms" not in frame
    assert frame["front"].tolist() == [True, True, False]
    with pytest.raises(BadInput, match=r"measure = 'silence \(ms\)': over completion there are P99 spike"):
        tables.tradeoffs(slow, "silence (ms)")


def says(**values: Any) -> dict[str, Any]:
    """A run with the parameters that it would be stored with."""
    return row("a point", 30, 0.1, bytes_moved=99 * MIB, parameters=make_spec(values).parameters())


def test_what_a_run_says_tells_whether_only_owners_change():
    """Not what it has sent: keys that are fetched, used and written back may be more than had to move."""
    for name, preset in PRESETS.items():
        assert tables.owners_only(says(strategy=name)) == (preset.mode.transfer in ("access", "remote")), name
        assert tables.owners_only(says(strategy=name, backend="remote")) != preset.restarts, "a savepoint has all state"
    for name, backend in backends.items():
        assert tables.owners_only(says(strategy="fluid", backend=name)) == bool(backend.server), name
    assert tables.owners_only(says(strategy="all_at_once", transfer="access", unit="key"))
    pushed = {
        "backend": "memory",
        "transfer": "push",
        "unit": "group",
        "order": "id",
        "background": True,
        "cache": False,
    }
    assert not tables.owners_only(says(strategy="hybrid", **pushed))
    assert tables.tradeoffs([says(strategy="hybrid")])["stays"].tolist() == [True]


def test_workloads_are_not_mixed_and_no_run_gives_an_empty_frame():
    with pytest.raises(BadInput, match="keycount, q5"):
        tables.tradeoffs([row("fluid", 1, 1), row("fluid", 1, 1, workload="q5")])
    assert len(tables.tradeoffs([])) == 0


def test_the_sentences_name_the_front_the_beaten_the_floor_and_what_stays():
    rows = [row("fluid", 30, 4.0), row("all_at_once", 600, 0.5), row("rhino", 700, 0.6), row("lazy", 25, 0.1)]
    assert tradeoff_sentences(rows) == [
        "lazy: no other strategy is better in both spike and completion. all_at_once, rhino and fluid: there is one "
        "that is about as good in both, or better.",
        "Of what moves everything all_at_once and rhino complete first, in 500 ms to 600 ms; the floor, a bare copy of "
        "the same bytes, is 250 ms.",
        "lazy: completion is the change of owner only; state follows later, or stays where it was.",
    ]


def test_of_other_amounts_of_state_nobody_beats_another_one_nor_does_who_has_copied_before_complete_first():
    half = [row("16 groups", 30, 0.12, floor_s=0.12), row("32 groups", 40, 0.15), row("lazy", 20, 0.01)]
    assert tradeoff_sentences(half) == [
        "Their floors differ, by the state that moves or by when that was measured: they are not compared in spike and "
        "completion.",
        "lazy: completion is the change of owner only; state follows later, or stays where it was.",
    ]
    rows = [row("all_at_once", 600, 0.5), row("replicated", 30, 0.1, bytes_copied=9 * MIB)]
    assert tables.tradeoffs(rows)["copied"].tolist() == [False, True]
    assert tradeoff_sentences(rows)[1:] == [
        "all_at_once moves everything, in 500 ms; the floor, a bare copy of the same bytes, is 250 ms.",
        "replicated: copies were made before; completion is of what had no copy where it went, or had changed since.",
    ]


def test_two_that_nobody_beats_are_a_matter_of_price_and_who_was_not_seen_to_recover_beats_nobody():
    said = tradeoff_sentences([row("fluid", 30, 4.0, floor_s=None), row("all_at_once", 600, 0.5, floor_s=None)])
    assert said == ["all_at_once and fluid: each pays for a lower spike with a later completion."]
    assert tradeoff_sentences([row("fluid", None, 4.0)]) == [
        "No strategy has both a spike and a completion to compare."
    ]
    said = tradeoff_sentences([row("fluid", 30, 4.0, recover_s=None), row("all_at_once", 600, 5.0)])
    assert said == [
        "fluid: not compared in both, as the load ended before all runs were seen to recover.",
        "Of what moves everything fluid and all_at_once complete first, in 4.0 s to 5.0 s; the floor, a bare copy of "
        "the same bytes, is 250 ms.",
    ]


def test_what_is_about_the_same_neither_beats_nor_is_beaten():
    same = [row("fluid", 20.0, 1.0), row("matched", 20.6, 1.04), row("chunked", 20.3, 1.1)]
    assert tradeoff_sentences(same) == [
        "fluid, matched and chunked: about the same in both spike and completion.",
        "Of what moves everything fluid, matched and chunked complete first, in 1.0 s to 1.1 s; the floor, a bare copy "
        "of the same bytes, is 250 ms.",
    ]
    first, *_ = tradeoff_sentences([*same, row("all_at_once", 200.0, 0.3)])
    assert first == "all_at_once, fluid, matched and chunked: none is better than another in both spike and completion."
    once = [row("fluid", 39.0, 1.0), row("matched", 20.0, 1.05)]
    assert "about the same" in tradeoff_sentences(once)[0], "equal runs differ by as much"
    beaten = tradeoff_sentences([*once, *once])
    assert beaten[0].startswith("matched: no other strategy"), "about as fast, with half of the spike"


def test_the_comparison_shows_copies_minimum_and_floor_if_they_are_known():
    table = tables.comparison_table([row("replicated", 30, 4.0, bytes_copied=3 * MIB), row("fluid", 30, 4.0)])
    assert table["copied before (MiB)"].iloc[0] == 3
    assert np.isnan(table["copied before (MiB)"].iloc[1])
    assert table["had to move (MiB)"].tolist() == [10, 10]
    assert table["floor (s)"].tolist() == [0.25, 0.25]
    assert "copied before (MiB)" not in tables.comparison_table([row("fluid", 30, 4.0)])


def told(one, other):
    found = tables.differences(one.model_dump(mode="json"), other.model_dump(mode="json"))
    return {(row["kind"], row["name"]): row for row in found.to_dict("records")}


def test_parameters_versions_and_machine_are_told_if_they_differ_and_figures_always():
    other = run(
        1, "matched", parameters={"rate": 4000.0, "size": 4, "strategy": "matched"}, spike_ms=30.0, recover_s=2.0
    )
    other = other.model_copy(update={"versions": {"python": "3.12", "pyspark": "4.3.0"}})
    found = told(run(0), other)
    assert [name for kind, name in found if kind != "figure"] == ["strategy", "rate", "seed", "size", "python"]
    assert (found["parameter", "size"]["one"], found["parameter", "size"]["other"]) == (None, 4)
    assert found["figure", "P99 spike (ms)"]["ratio"] == 0.5
    assert found["figure", "completion (s)"]["ratio"] == 1
    assert found["figure", "completion (× floor)"]["one"] == 3
    assert np.isnan(found["figure", "recovery (s)"]["ratio"])
    assert ("figure", "backlog (events)") not in found


def test_a_run_that_died_has_no_figures():
    found = told(run(0), run(0, status="died"))
    assert found["run", "status"]["other"] == "died"
    assert found["run", "error"]["other"] == "Kafka at <address> went away"
    assert found["figure", "P99 spike (ms)"]["other"] is None
