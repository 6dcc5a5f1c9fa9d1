import numpy as np
import pandas as pd
import pytest
from small_store import row as summary

from keyshift.analysis.incidents import LATE, THERE, incident_sentences, incident_table, overlap_sentences
from keyshift.model.errors import BadInput


def latency(*late_ms):
    """Results of two seconds: two before the request, one for each of ``late_ms`` behind it."""
    created = [-0.5, -0.1, *np.linspace(0, 1.5, len(late_ms))]
    return pd.DataFrame({"created_s": created, "latency_ms": [900.0, 900.0, *late_ms]})


def migration(*installed_s):
    return pd.DataFrame({"installed_s": installed_s})


CUT_SHORT = "whether it helped is not known, as the recovery of b with all state there was not seen."


def row(strategy, silence_ms, verdict="ok", recover_s=1.0):
    lost = int(verdict != "ok")
    return summary(strategy, verdict=verdict, silence_ms=silence_ms, recover_s=recover_s, lost=lost)


def test_late_are_results_above_the_objective_of_events_behind_the_request():
    table = incident_table(
        [row("waits", 400.0), row("waits", 600.0), row("moves", 50.0)],
        {"waits": [latency(600, 20, 20, 20), latency(600, 600, 600, 20)], "moves": [latency(500, 20)]},
        {"waits": [migration(3.0, 9.0), migration(5.0, 7.0)], "moves": [migration()]},
        slo_ms=500,
    )
    assert table.loc["waits", [LATE, THERE, "silence (ms)", "runs"]].tolist() == [50.0, 8.0, 500.0, 2]
    assert table.loc["moves", LATE] == 0.0
    assert np.isnan(table.loc["moves", THERE]), "nothing moved"
    assert table["copied before (MiB)"].isna().all(), "a column, though no run knows it"


def test_what_is_not_correct_has_no_measure_and_is_said_to_be_wrong():
    rows = [row("a", 400.0, verdict="bad"), row("b", 40.0)]
    table = incident_table(rows, {"b": [latency(1.0)]}, {"b": [migration(1.0)]}, slo_ms=500)
    assert table["verdict"].tolist() == ["bad", "ok"]
    assert np.isnan(table.loc["a", LATE])
    said = incident_sentences(rows, table, {"b": "a"}, [LATE, "silence (ms)"])
    assert said[0].startswith("a is not correct (1 lost)")
    assert said[-2:] == [f"{LATE}: not known for a.", "silence (ms): not known for a."]


@pytest.mark.parametrize(
    ("value", "hurt", "words"),
    [
        (2.0, 40.0, "2.0 with **b**, 40 with **a**; it helped, 20 times less."),
        (0.0, 40.0, "0 with **b**, 40 with **a**; it helped, nothing is left of it."),
        (39.0, 40.0, "39 with **b**, 40 with **a**; it did not help here."),
        (0.0, 0.0, "0 with **b**, 0 with **a**; there was nothing to help against here."),
        (90.0, 40.0, "90 with **b**, 40 with **a**; it was worse here."),
        (21.0, 40.0, "21 with **b**, 40 with **a**; it did not help here."),
        (0.001, 0.0, "0.001 with **b**, 0 with **a**; there was nothing to help against here."),
        (0.15, 0.1, "0.15 with **b**, 0.1 with **a**; it did not help here."),
    ],
)
def test_whether_it_helped_follows_from_the_numbers(value, hurt, words):
    table = pd.DataFrame({"verdict": "ok", LATE: [hurt, value]}, index=["a", "b"])
    said = incident_sentences([row("a", 1.0), row("b", 1.0)], table, {"b": "a"}, [LATE])
    assert said == ["Both runs are correct: nothing lost, duplicated, reordered or wrong.", f"{LATE}: {words}"]


def test_nothing_is_known_of_a_point_that_has_died_and_a_measure_that_is_not_there_is_told():
    table = pd.DataFrame({"verdict": ["ok"], LATE: [1.0]}, index=["a"])
    said = incident_sentences([row("a", 1.0)], table, {"b": "a", "c": "b"}, [LATE])
    assert said[1:] == [f"{LATE}: not known for b.", f"{LATE}: not known for c and b."]
    with pytest.raises(BadInput, match="no column pains"):
        incident_sentences([row("a", 1.0)], table, {}, ["pains"])


@pytest.mark.parametrize(
    ("silences", "words"),
    [
        ((20.0, 90.0, 25.0), "45 with **b**, 120 with **a**; that may be chance (Welch, 95 %)."),
        ((20.0, 21.0, 22.0), "21 with **b**, 120 with **a**; it helped, 5.7 times less."),
    ],
)
def test_what_repetitions_do_not_prove_is_called_chance(silences, words):
    rows = [row("a", ms) | {"run_id": f"a{ms}"} for ms in (110.0, 120.0, 130.0)]
    rows += [row("b", ms) | {"run_id": f"b{ms}"} for ms in silences]
    rows = [each | {"parameters": {"seed": number % 3}} for number, each in enumerate(rows)]
    table = incident_table(rows, {}, {}, slo_ms=500)
    assert incident_sentences(rows, table, {"b": "a"}, ["silence (ms)"])[-1] == f"silence (ms): {words}"


def test_late_results_of_repetitions_are_tested_for_chance_and_what_nobody_knows_of_a_run_is_as_if_it_ran_once():
    rows = [row(name, 9.0) | {"parameters": {"seed": seed}} for name in "ab" for seed in range(3)]
    late = {
        "a": [latency(9, 9, 9, 600), latency(600, 600, 600, 9), latency(600, 600, 600, 600)],
        "b": [latency(9, 9, 9, 9), latency(9, 9, 9, 600), latency(600, 600, 600, 9)],
    }
    table = incident_table(rows, late, {}, slo_ms=500)
    table["mean after (ms)"] = pd.Series({"a": 30.0, "b": 20.0})
    assert incident_sentences(rows, table, {"b": "a"}, [LATE, "mean after (ms)"])[1:] == [
        f"{LATE}: 25 with **b**, 75 with **a**; that may be chance (Welch, 95 %).",
        "mean after (ms): 20 with **b**, 30 with **a**; it did not help here.",
    ]


def test_measures_of_ones_own_that_are_known_of_each_run_are_compared_as_others_are():
    rows = [row(name, 9.0) | {"parameters": {"seed": seed}} for name in "ab" for seed in range(3)]
    copied = {"a": [97.0, 98.0, 99.0], "b": [139.0, 140.0, 141.0]}
    table = incident_table(rows, {}, {}, slo_ms=500, more={"copied (MiB)": copied})
    assert table["copied (MiB)"].to_dict() == {"a": 98.0, "b": 140.0}
    assert incident_sentences(rows, table, {"b": "a"}, ["copied (MiB)"])[1:] == [
        "copied (MiB): 140 with **b**, 98 with **a**; it was worse here."
    ]


def test_of_a_point_at_which_nothing_moved_that_is_said():
    rows = [row(name, 9.0) | {"parameters": {"seed": seed}} for name in "abc" for seed in range(2)]
    late = {"a": [latency(600, 600)] * 2, "b": [latency(9, 600)] * 2, "c": [latency(9, 9)] * 2}
    there = {"a": [migration()] * 2, "b": [migration(3.0), migration()], "c": [migration(3.0)] * 2}
    table = incident_table(rows, late, there, slo_ms=500)
    for number in (0, 1, 3):
        rows[number] |= {"units_moved": 0, "bytes_moved": 0, "phases": {"prepare": None}}
    said = incident_sentences(rows, table, {"b": "a", "c": "a"}, [LATE])
    assert said[-1] == "In 1 of 2 runs of **b** nothing is known to have moved: the job was as it was."
    assert len(said) == 1 + 2 + 1
    died = [each | {"phases": {"prepare": 0.1, "install": None}} for each in rows]  # behind the switch of its only step
    assert len(incident_sentences(died, table, {"b": "a", "c": "a"}, [LATE])) == 1 + 2


def test_the_last_unit_of_a_migration_that_left_some_behind_is_not_there():
    rows = [row("a", 9.0), *(row("b", 9.0) | {"parameters": {"seed": n}, "incomplete": n == 1} for n in range(2))]
    there = {"a": [migration(3.0)], "b": [migration(5.0), migration(1.0)]}
    table = incident_table(rows, {}, there, slo_ms=500)
    assert table[THERE].to_dict() == {"a": 3.0, "b": 5.0}
    said = incident_sentences(rows, table, {"b": "a"}, [THERE])
    assert said[-1].startswith("In 1 of 2 runs of **b** not all state came where it should: ")
    assert not any("nothing is known to have moved" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("recovered", "words"),
    [
        ((1.0, None), "20 with **b**, at least 120 with **a**; it helped, at least 6.0 times less."),
        ((None, 1.0), f"at least 20 with **b**, 120 with **a**; {CUT_SHORT}"),
    ],
)
def test_who_was_not_seen_to_recover_has_not_helped(recovered, words):
    rows = [row(name, ms, recover_s=at) for name, ms, at in zip("ba", (20.0, 120.0), recovered, strict=True)]
    table = incident_table(rows, {}, {}, slo_ms=500)
    assert incident_sentences(rows, table, {"b": "a"}, ["silence (ms)"])[-1] == f"silence (ms): {words}"
    rows = [each | {"recover_s": 1.0, "incomplete": at is None} for each, at in zip(rows, recovered, strict=True)]
    assert incident_sentences(rows, table, {"b": "a"}, ["silence (ms)"])[1] == f"silence (ms): {words}"


def test_a_second_request_that_came_when_state_moved_for_the_first_has_replaced_nothing():
    rows = [row("a", 1.0) | {"steps": steps} for steps in (2, 1, 2)]
    rows += [row("a", 1.0, verdict="bad") | {"steps": 2}, row("b", 1.0) | {"steps": 2}]
    (said,) = overlap_sentences(rows, "a", 0.05)
    assert said.startswith("In 2 of 3 runs of **a** state moved for both requests: ") and ", 0.05 s later, " in said
    assert overlap_sentences(rows[1:2], "a", 0.05) == []
