import numpy as np
import pandas as pd
import pytest
from small_store import row as summary

from keyshift.analysis.interruptions import (
    fault_moments,
    interruption_sentences,
    interruptions,
    silences_around,
    steady_sentences,
)
from keyshift.model.errors import BadInput


def row(strategy, silence_ms, verdict="ok", recover_s=2.0):
    figures = {"silence_ms": silence_ms, "spike_ms": 900.0, "p50_ms": 10.0, "recover_s": recover_s}
    return summary(strategy, verdict=verdict, **figures)


def latency(after_ms, until_s=2):
    created = np.arange(-5, 10, 0.5)
    return pd.DataFrame({"created_s": created, "latency_ms": np.where(created < until_s, 500.0, after_ms)})


def test_what_is_noticed_of_an_interruption_is_a_row_for_which_tables_have_to_be_there():
    tables = {"flink_restart": [latency(7.0)], "fluid": [latency(8.0)]}
    table = interruptions([row("flink_restart", 3000.0), row("fluid", 40.0)], tables)
    assert table.loc["flink_restart"].to_dict() == {
        "runs": 1,
        "verdict": "ok",
        "silence (s)": 3.0,
        "P99 spike (ms)": 900.0,
        "P50 before (ms)": 10.0,
        "P99 before (ms)": 20.0,
        "P50 after (ms)": 7.0,
        "P99 after (ms)": 7.0,
        "normal again after (s)": 2.0,
    }
    assert table["P50 after (ms)"].tolist() == [7.0, 8.0]
    with pytest.raises(BadInput, match="a has 1 correct runs and 0 latency tables"):
        interruptions([row("a", 1000.0)], {})
    with pytest.raises(BadInput, match="no run given"):
        interruptions([], {})


def test_repetitions_are_their_median_bad_runs_do_not_count_and_their_point_is_compared_with_none():
    rows = [row("a", 1000.0), row("a", 9000.0, verdict="bad"), row("a", 3000.0), row("a", 2000.0)]
    table = interruptions(rows, {"a": [latency(1.0)] * 3})
    assert table.loc["a", ["runs", "verdict", "silence (s)"]].tolist() == [4, "bad (1 of 4)", 2.0]
    table = interruptions([each for each in rows if each["verdict"] == "ok"], {"a": [latency(1.0)] * 3})
    assert interruption_sentences(table, "a") == ["a: no result for 2.0 s, the median of its runs."]
    rows = [row("a", 1000.0), row("a", 1000.0, verdict="bad"), row("b", 9000.0)]
    table = interruptions(rows, {"a": [latency(1.0)], "b": [latency(1.0)]})
    not_correct = "a is not compared: a run of it is not correct, or none says"
    assert interruption_sentences(table, "a") == [f"{not_correct} how long its results stop."]
    assert interruption_sentences(table, "b") == ["b: no result for 9.0 s."]
    assert steady_sentences(table, "a") == [f"{not_correct} what its latency is."]
    assert steady_sentences(table, "b") == ["b: P50 10 and P99 20 ms before the request."]
    table = interruptions([row("a", 1000.0, verdict="bad"), row("b", 2000.0)], {"b": [latency(1.0)]})
    assert table.loc["a", "verdict"] == "bad (1 of 1)" and np.isnan(table.loc["a", "silence (s)"])
    assert interruption_sentences(table, "b") == ["b: no result for 2.0 s."]


def test_there_is_no_after_if_latency_was_never_normal_again_and_the_first_second_is_never_in_it():
    def after(recover_s, tables):
        table = interruptions([row("a", 1000.0, recover_s=recover_s)], {"a": [tables]})
        return table.loc["a", ["P50 after (ms)", "P99 after (ms)", "normal again after (s)"]]

    assert after(None, latency(1.0)).isna().all()
    assert after(0.0, latency(7.0, until_s=1)).tolist() == [7.0, 7.0, 0.0]


def test_silences_are_compared_in_words():
    rows = [row("flink_restart", 2000.0), row("stop_restart", 6000.0), row("fluid", 5.0), row("lazy", 2100.0)]
    table = interruptions(rows, {each["strategy"]: [latency(1.0)] for each in rows})
    assert interruption_sentences(table, "flink_restart") == [
        "flink_restart: no result for 2.0 s.",
        "stop_restart is silent 3.0 times as long as flink_restart, 6.0 s.",
        "flink_restart is silent 400 times as long as fluid, 0.005 s.",
        "lazy is silent for about as long as flink_restart, 2.1 s.",
    ]
    rows = [row(name, ms) for name, ms in (("flink_restart", 1000.0), ("stop_restart", 1900.0)) for _ in range(2)]
    for some, words in ((rows[1:3], "about as long as"), (rows, "1.9 times as long as")):
        names = [each["strategy"] for each in some]
        table = interruptions(some, {name: [latency(1.0)] * names.count(name) for name in names})
        assert words in interruption_sentences(table, "flink_restart")[1]


def test_who_was_not_seen_to_recover_is_silent_for_longer_or_not_compared():
    rows = [row("fluid", 2000.0), row("lazy", 500.0, recover_s=None), row("meces", 9000.0, recover_s=None)]
    rows += [row("fluid", 2000.0), row("lazy", 500.0)]
    table = interruptions(rows, {"fluid": [latency(1.0)] * 2, "lazy": [latency(1.0)] * 2, "meces": [latency(1.0)]})
    assert np.isnan(table.loc["lazy", "normal again after (s)"]), "of one run nobody knows"
    assert interruption_sentences(table, "fluid")[1:] == [
        "lazy and fluid are not compared: the load ended before the recovery of lazy was seen.",
        "meces is silent at least 4.5 times as long as fluid, 9.0 s.",
    ]


def test_a_point_that_left_units_behind_is_silent_for_no_less():
    rows = [row("flink_rescale", 900.0), row("fluid", 20.0), row("fluid", 20.0) | {"incomplete": True}]
    table = interruptions(rows, {"flink_rescale": [latency(1.0)], "fluid": [latency(1.0)] * 2})
    assert np.isnan(table.loc["fluid", "silence (s)"])
    assert interruption_sentences(table, "flink_rescale") == ["flink_rescale: no result for 0.9 s."]
    assert len(steady_sentences(table, "flink_rescale")) == 2, "that was before"


def test_latencies_before_are_compared_in_words():
    rows = [row("spark_state", 5.0), row("fluid", 5.0) | {"p50_ms": 5.0, "p99_ms": 30.0}]
    table = interruptions(rows, {"spark_state": [latency(1.0)], "fluid": [latency(1.0)]})
    assert steady_sentences(table, "spark_state") == [
        "spark_state: P50 10 and P99 20 ms before the request.",
        "fluid has 0.5 times the P50 and 1.5 times the P99 of spark_state.",
    ]
    table.loc["fluid", "P50 before (ms)"] = 0.0
    assert len(steady_sentences(table, "spark_state")) == 1
    assert steady_sentences(table, "fluid")[0].startswith("fluid is not compared: "), "there is no multiple of nothing"


def test_moments_of_faults_are_those_at_which_something_was_hit():
    hit = {3.0: "kill:replica@7", 1.0: "kill:slot@5"}
    rows = [(0.0, "rss_mib", "driver", 90.0), *((at, "fault", what, 1.0) for at, what in hit.items())]
    rows.append((2.5, "death", "query died", 1.0))
    metrics = pd.DataFrame(rows, columns=["t_s", "metric", "instance", "value"])
    assert fault_moments(metrics) == [1.0, 3.0]


def test_a_silence_around_a_moment_is_told_beside_that_of_the_time_before():
    came = np.r_[np.arange(-4, 0, 0.02), 0.07, np.arange(0.1, 5, 0.02), 9.0, 9.02]
    table = silences_around(pd.DataFrame({"created_s": came, "latency_ms": 0.0}), [0.0, 4.5, 20.0])
    assert table["before_s"].round(3).tolist()[:2] == [0.02, 0.02]
    assert table["silence_s"].round(2).tolist()[:2] == [0.09, 4.02], "one that begins in time counts whole"
    assert table.loc[2, ["before_s", "silence_s"]].isna().all()
    came = np.r_[np.arange(-6, -4, 0.02), np.arange(-3, 3, 0.02)]  # a hiccup long before
    table = silences_around(pd.DataFrame({"created_s": came, "latency_ms": 0.0}), [0.0])
    assert table.loc[0].round(3).tolist() == [0.0, 0.02, 0.02]
