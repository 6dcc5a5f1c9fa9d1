"""Notebooks of incidents: which runs they ask for, and what they say of some that were made up."""

from types import SimpleNamespace

import pandas as pd
from small_notebooks import asked, code, execute
from small_store import row, run, tables

from keyshift import suite
from keyshift.studies.study import Study


def test_events_without_work_say_nothing_of_the_limit_of_a_slot():
    rows = [row("skew 1.5, 2 balanced slots"), row("skew 1.5, 4 slots")]
    points = [[each["strategy"]] for each in rows]
    same = {"rows": rows, "balanced": points[0], "rescaled": points[1], "skews": [1.5], "peak": 700.0, "key_groups": 16}
    same |= {"hottest": [], "more_slots": 4}
    same["table"] = pd.DataFrame({"verdict": "ok", "late results (%)": [1.0, 2.0]}, index=points[0] + points[1])
    told = [execute("incidents/09_hot_key", "zipf_mass", work_us=work_us, **same)["said"] for work_us in (0.0, 2000.0)]
    assert [any("a slot takes 500" in line for line in said) for said in told] == [False, True]
    assert len(told[0]) + 1 == len(told[1])


def told_of(notebook, name, points, **names):
    """What a notebook of incidents says of ``points``, whose measures all are the value of each."""
    measures = "late results (%)", "P99 spike (ms)", "moved (MiB)", "copied (MiB)", "completion (s)", "silence (ms)"
    table = pd.DataFrame(dict.fromkeys((*measures, "last unit there after (s)"), points)).assign(verdict="ok")
    rows = [row(point, steps=2) for point in points]
    return execute(notebook, name, points=points, rows=rows, table=table, **names)["said"]


def test_each_cut_over_is_compared_with_the_one_that_comes_before_it():
    points = {"loads after the cut-over": 64.0, "has loaded": 4.0, "lag is small": 1.0}
    said = told_of("incidents/07_cut_over", "incident_sentences", points)
    assert [line for line in said if line.startswith("moved")] == [
        "moved (MiB): 4.0 with **has loaded**, 64 with **loads after the cut-over**; it helped, 16 times less.",
        "moved (MiB): 1.0 with **lag is small**, 4.0 with **has loaded**; it helped, 4.0 times less.",
    ]
    assert [spec.job.copy_lag_keys for spec in asked("incidents/07_cut_over", keys=900, lag_keys=9).specs][1:] == [
        900,
        9,
    ]


def test_more_slots_are_beside_a_job_that_is_left_as_it_is_where_the_skew_is_the_largest():
    specs = asked("incidents/09_hot_key", skews=[1.5, 3.5, 2.5]).specs
    still = [spec.workload.skew for spec in specs if spec.scenario.to_slots == spec.job.slots]
    assert still == [3.5] and len(specs) == 7
    names = {"skews": [3.5], "hottest": [3.5], "more_slots": 4, "work_us": 0.0}
    points = {"skew 3.5, left as it is": 90.0, "skew 3.5, 4 slots": 91.0, "skew 3.5, 2 balanced slots": 30.0}
    _, rescaled, balanced = points
    said = told_of("incidents/09_hot_key", "zipf_mass", points, rescaled=[rescaled], balanced=[balanced], **names)
    assert said[-2:] == [
        f"late results (%): 91 with **{rescaled}**, 90 with **skew 3.5, left as it is**; it did not help here.",
        f"late results (%): 30 with **{balanced}**, 91 with **{rescaled}**; it helped, 3.0 times less.",
    ]


def test_it_is_said_when_the_last_unit_of_rescales_with_deaths_has_arrived():
    points = {"rare": 13.5, "frequent": 11.0, "incomplete": float("nan")}
    study = SimpleNamespace(correct=[*points])
    said = told_of("incidents/03_dying_slot", "incident_sentences", points, study=study, rescales=3, gap_s=6.0)
    assert said[-3:] == [
        "rare: the last unit arrived 1.5 s after the last request.",
        "frequent: the last unit is not known to have come after the last request.",
        "incomplete: the last unit is not known to have come after the last request.",
    ]


def test_the_cost_of_each_of_many_rescales_is_that_of_all_repetitions(monkeypatch):
    monkeypatch.setitem(vars(suite), "rescaling_figure", lambda costs, names: None)
    one = {name: table.to_pandas() for name, table in tables().items()}
    study = Study({"fluid": [(run(number), one) for number in range(3)]}, {})
    found = execute("incidents/05_many_rescales", "rescaling_figure", study=study, rescales=1, gap_s=4.0, turns=[2, 3])
    assert found["costs"]["fluid"]["number"].tolist() == [0, 0, 0]


def test_what_was_copied_until_the_end_of_a_run_counts_whoever_kept_copies_meanwhile():
    one = {name: table.to_pandas() for name, table in tables().items()}
    sent = {"t_s": 9.0, "metric": "copied_bytes", "instance": ["slot 0", "slot 1"], "value": [2.0**20, 2.0**21]}
    one["metrics"] = pd.concat([one["metrics"], pd.DataFrame(sent)])
    study = Study({"copies": [(run(bytes_copied=2**20), one)]}, {})
    table = execute("incidents/08_second_request", "incident_table", study=study, slo_ms=100.0)["table"]
    assert table.loc["copies", ["copied before (MiB)", "copied (MiB)"]].tolist() == [1.0, 3.0]
    assert "copied (MiB)" in code("incidents/08_second_request", "incident_sentences")[0]


def test_it_is_said_if_the_second_request_came_when_the_first_was_over():
    said = told_of("incidents/08_second_request", "overlap_sentences", {"replaces": 2.0, "waits": 2.0}, gap_s=0.5)
    assert said[-1].startswith("In 1 of 1 runs of **replaces** state moved for both requests: ")
