"""Figures and sentences of simulated migrations draw and say what the tables have, and how sure that is."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis.plots.simulated import (
    model_error,
    simulated_lines,
    simulated_pareto,
    simulation_sentences,
    validation_figure,
)
from keyshift.model.errors import BadInput


def validation(*rows):
    names = ["strategy", "held_out", "completion_s", "simulated_completion_s", "spike_ms", "simulated_spike_ms"]
    return pd.DataFrame(rows, columns=names)


RUNS = validation(
    ("fluid", "fluid", 2.0, 1.0, 60.0, 50.0),
    ("matched", "matched", 0.5, 1.0, 40.0, 50.0),
    ("stop_restart", "", 9.0, 3.0, 9000.0, 3000.0),
)
TABLE = pd.DataFrame(
    {
        "point": ["fluid", "matched", "all_at_once"],
        "strategy": ["fluid", "matched", "all_at_once"],
        "slots": [1000, 1000, 1000],
        "completion_s": [2000.0, 80.0, 70.0],
        "spike_ms": [110.0, 110.0, 70_000.0],
        "p99_ms": [110.0] * 3,
        "floor_s": [70.0] * 3,
        "longest_s": [0.7, 2.5, 70.0],
        "bytes_moved": [100.0] * 3,
        "bytes_minimum": [100.0] * 3,
    }
)


def test_the_error_is_of_runs_that_the_costs_are_not_from():
    error = model_error(RUNS)
    assert error["completion_s"] == (0.5, 1.25, 2.0, 2)
    assert error["spike_ms"] == (0.8, 1.0, 1.2, 2)
    assert model_error(RUNS.iloc[2:])["completion_s"] == (1.0, 1.0, 1.0, 0)


def test_a_run_is_drawn_where_it_was_measured_and_simulated():
    completion, spike = validation_figure(RUNS).axes[:2]
    drawn = [tuple(line.get_xydata()[0]) for line in completion.lines if line.get_marker() not in ("", "None", None)]
    assert drawn == [(2.0, 1.0), (0.5, 1.0), (9.0, 3.0)]
    assert completion.get_xlim() == completion.get_ylim()
    assert (spike.get_xlabel(), spike.get_ylabel()) == ("measured P99 spike (ms)", "simulated P99 spike (ms)")
    faces = [line.get_markerfacecolor() for line in completion.lines[:3]]
    assert faces[2] == "none" and "none" not in faces[:2]


def test_the_pareto_has_bars_as_long_as_the_error_and_lines_have_the_floor():
    ax = simulated_pareto(TABLE, RUNS)
    spans = [np.ptp(line.get_segments()[0], axis=0) for bars in ax.containers for line in bars.lines[2]]
    # Of matched 70 to 160 s: half of its 80 s is less than the floor.
    assert [pytest.approx(90.0), 0.0] in [list(span) for span in spans if span[1] == 0]
    assert ax.get_title(loc="left").startswith("Simulated")
    both = pd.concat([TABLE, TABLE.assign(slots=100, completion_s=50.0, floor_s=7.0)])
    completion, longest = simulated_lines(both, "slots", "slots", "title").axes[:2]
    assert list(completion.lines[-1].get_ydata()) == [7.0, 70.0]
    assert [list(line.get_xdata()) for line in longest.lines] == [[100, 1000]] * 3
    with pytest.raises(BadInput, match="no column state"):
        simulated_lines(TABLE, "state", "state", "title")


def test_the_words_begin_with_how_sure_they_are():
    said = simulation_sentences(TABLE, RUNS)
    assert said == [
        "Completion, over 2 runs that the costs are not from: measured is 0.5 to 2.0 times simulated (median 1.2).",
        "P99 spike, over 2 runs that the costs are not from: measured is 0.8 to 1.2 times simulated (median 1.0).",
        "Too few other runs to validate stop_restart: how far off that is, nobody knows.",
        "The error at the size of a cluster cannot be measured here: hosts are assumed to differ from this machine in "
        "number, cores and links alone.",
        "Of what moves everything all_at_once would complete first, in 70 s, or 70 s to 140 s if the simulator is as "
        "far off as above; a bare copy over the links takes 70 s.",
        "Of those that take at most twice as long a record would wait least with matched: up to 2.5 s, and it "
        "completes after 80 s.",
        "A record would wait longest with all_at_once, up to 70 s; with fluid up to 0.7 s, and that completes after "
        "33 min.",
        "P99 of all events hardly shows matched and fluid: in no second does one event in a hundred wait for long. "
        "Those few wait all the same: see the longest wait.",
    ]
    assert "140 s" not in "".join(simulation_sentences(TABLE, RUNS.iloc[2:]))
    faster = RUNS.assign(completion_s=[0.5, 0.8, 9.0])  # no run took as long as it was simulated
    assert "in 70 s, or 70 s to 70 s if the simulator" in simulation_sentences(TABLE, faster)[4]
