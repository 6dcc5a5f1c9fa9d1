"""Measures over a varied parameter, and their figures: what is drawn is what was computed, and nothing bad is in it."""

from itertools import pairwise

import numpy as np
import pytest
import small_store

from keyshift.analysis import metrics, sweeps
from keyshift.analysis.plots import style
from keyshift.analysis.plots import sweeps as sweep_figures
from keyshift.analysis.rates import RATE_MEASURES
from keyshift.model.errors import BadInput

PHASES = dict(zip(metrics.PHASES, (0.1, 2.0, 0.2, 0.3, 1.0, 0.4, 0.5), strict=True))


def row(strategy, rate, spike=10.0, repetition=0, **changes):
    parameters = {"rate": rate, "seed": repetition, "size": "all" if rate > 1000 else 4}
    usual = {"run_id": f"{strategy}-{rate}-{repetition}", "workload": "micro", "parameters": parameters}
    usual |= {"spike_ms": spike, "completion_s": 2.0, "recover_s": 1.0, "floor_s": 0.5, "phases": PHASES}
    return small_store.row(strategy, **usual | changes)


def repeated(strategy, rate, *spikes):
    return [row(strategy, rate, spike, number) for number, spike in enumerate(spikes)]


ROWS = [
    *repeated("fluid", 8000, 20, 21, 22),
    *repeated("fluid", 1000, 10, 11, 12),
    *repeated("matched", 1000, 10.5, 11, 12.5),
    *repeated("matched", 8000, 41, 42, 43),
]


def test_a_point_is_the_mean_of_its_repetitions_of_values_that_may_be_words_and_measures_that_may_be_functions():
    found = sweeps.sweep(ROWS, "rate", ["P99 spike (ms)", "transfer (s)"])
    assert found["value"].tolist() == [1000, 1000, 8000, 8000] * 2
    first = found.iloc[0]
    assert (first["group"], first["mean"], first["runs"]) == ("fluid", 11, 3)
    assert first["high"] - first["mean"] == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)
    spikes = found[found["measure"] == "P99 spike (ms)"]
    assert spikes["differs"].tolist() == [None, None, False, True]
    assert found[found["measure"] == "transfer (s)"]["mean"].tolist() == [1.0] * 4
    found = sweeps.sweep(ROWS, "size", {"spike ÷ 10": lambda row: row["spike_ms"] / 10}, group="workload")
    assert found["value"].tolist() == [4, "all"]
    assert found["mean"].tolist() == pytest.approx([6.7 / 6, 18.9 / 6])


def test_runs_that_are_not_correct_are_left_out_and_counted():
    bad = row("fluid", 1000, 900.0, 3, verdict="bad", lost=1)
    unknown = row("fluid", 1000, None, 4)
    found = sweeps.sweep([*repeated("fluid", 1000, 10, 12), bad, unknown], "rate", ["P99 spike (ms)"]).iloc[0]
    assert (found["mean"], found["runs"], found["left_out"], found["unknown"]) == (11, 2, 1, 1)
    figure = sweep_figures.sweep_lines([*ROWS, bad], "rate")
    assert "1 run left out: not correct" in legend(figure)
    with pytest.raises(BadInput, match="of 1 runs none is correct"):
        sweep_figures.sweep_bars([bad], "rate")


def test_a_figure_of_highest_rates_says_of_how_many_more_may_be_sustained():
    rows = [row("fluid", 1000, None, each, highest_per_s=900.0, at_least=each > 0) for each in range(3)]
    rows += [row("fluid", 2000, None, highest_per_s=None, at_least=True)]
    rows += [row("fluid", 2000, None, highest_per_s=800.0, at_least=True, verdict="bad")]
    for figure in (sweep_figures.sweep_lines, sweep_figures.sweep_bars):
        assert "2 searches: at least, the next rate was offered late" in legend(figure(rows, "rate", RATE_MEASURES))
        assert not any("at least" in text for text in legend(figure(rows, "rate", ["completion (s)"])))


@pytest.mark.parametrize(
    ("parameter", "measures", "words"),
    [
        ("speed", ["P99 spike (ms)"], "run fluid-8000-0 has no parameter 'speed': it has strategy, workload, rate"),
        ("rate", ["spike"], r"unknown measure 'spike': known: P50 before \(ms\), .*transfer \(s\)"),
    ],
)
def test_unknown_names_are_told_with_those_that_are_known(parameter, measures, words):
    with pytest.raises(BadInput, match=words):
        sweep_figures.sweep_lines(ROWS, parameter, measures)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines_have_a_panel_per_measure_and_stand_where_the_numbers_are():
    figure = sweep_figures.sweep_lines(ROWS, "rate", label="rate (events/s)")
    left, right = figure.axes
    assert [ax.get_title(loc="left") for ax in (left, right)] == ["P99 spike (ms)", "completion (s)"]
    fluid, matched = (container.lines[0] for container in left.containers)
    assert fluid.get_xdata().tolist() == [1000, 8000]
    assert fluid.get_ydata().tolist() == [11, 21]
    assert matched.get_color() == style.style_of("matched").colour
    assert (left.get_xscale(), left.get_xlabel()) == ("log", "rate (events/s)")
    assert [label.get_text() for label in left.get_xticklabels()] == ["1000", "8000"]
    assert legend(figure) == ["fluid", "matched", "mean and 95 % interval of 3 runs"]


@pytest.mark.parametrize("draw", [sweep_figures.sweep_lines, sweep_figures.sweep_bars])
def test_values_that_are_near_each_other_do_not_touch_the_frame_of_an_axis_from_zero(draw):
    figure = draw([row("fluid", 1000, 46.0), row("fluid", 8000, 47.0)], "rate", ["P99 spike (ms)"])
    bottom, top = figure.axes[0].get_ylim()
    assert bottom == 0 and top > 1.05 * 47


def test_bars_stand_side_by_side_and_a_star_marks_what_differs():
    figure = sweep_figures.sweep_bars(ROWS, "rate", ["P99 spike (ms)"])
    (ax,) = figure.axes
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == pytest.approx([11, 21, 34 / 3, 42])
    (star,) = [text for text in ax.texts if text.get_text() == "*"]
    assert star.xy[0] == pytest.approx(1.2)
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(edges))
    assert "* differs from fluid (95 %, Welch)" in legend(figure)


def test_on_a_log_axis_there_are_no_bars_as_their_length_would_say_nothing():
    rows = [row(strategy, 1000, completion_s=s) for strategy, s in (("all_at_once", 0.1), ("fluid", 2.0))]
    figure = sweep_figures.sweep_bars(rows, "rate", ["completion (s)"])
    (ax,) = figure.axes
    assert (ax.get_yscale(), len(ax.patches)) == ("log", 0)
    assert [drawn.lines[0].get_ydata().tolist() for drawn in ax.containers] == [[0.1], [2.0]]
    assert legend(figure) == ["all at once", "fluid"]
    assert all(hasattr(handle, "get_marker") for handle in figure.legends[0].legend_handles)


def test_groups_by_a_parameter_are_named_with_it_and_each_looks_different():
    figure = sweep_figures.sweep_bars(ROWS, "strategy", ["completion (s)"], group="rate")
    assert legend(figure)[:2] == ["rate = 1000", "rate = 8000"]
    (first, *_) = style.styles([2000.0, 0.5], "rate").values()
    assert first.label == "rate = 2000"
    drawn = style.styles([1, 2, 3, 4, 5, 6], "size").values()
    assert len({(one.colour, one.marker) for one in drawn}) == 6


def test_phases_are_stacked_to_the_time_to_the_last_drained_unit_and_one_that_nobody_knows_is_not_drawn_as_nothing():
    figure = sweep_figures.phase_bars(ROWS, "rate", "strategy")
    fluid, matched = figure.axes
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["fluid", "matched"]
    stacked = [bar for bar in fluid.patches if bar.get_width() == pytest.approx(0.6)]
    assert max(bar.get_y() + bar.get_height() for bar in stacked) == pytest.approx(2.5)
    (aside,) = {bar.get_height() for bar in fluid.patches if bar.get_width() == pytest.approx(0.12)}
    assert aside == 2.0
    assert legend(figure)[:7] == ["plan", "prepare", "align", "transfer", "install", "catch up", "copies (beside)"]
    assert len(matched.patches) == len(fluid.patches)
    of_several = sweep_figures.phase_bars([*ROWS, row("fluid", 1000, workload="q5")])
    assert [ax.get_title(loc="left") for ax in of_several.axes] == ["workload = micro", "workload = q5"]
    assert sweep_figures.phase_bars(ROWS).axes[0].get_title(loc="left") == ""
    rows = [row("stop_restart", 1000, phases=PHASES | {"align": None, "replicate": None})]
    with pytest.raises(BadInput, match="nothing to draw"):
        sweep_figures.sweep_lines(rows, "rate", ["align (s)"])
    assert "align" not in legend(sweep_figures.phase_bars(rows))


def test_the_ranking_says_who_is_first_and_who_may_be_as_good():
    rows = [
        *repeated("fluid", 1000, 10, 11, 12),
        *repeated("matched", 1000, 10.5, 11, 13),
        *repeated("lazy", 1000, 40, 41, 42),
        row("drrs", 1000, 90.0),
        row("meces", 1000, 1.0, verdict="bad", lost=1),
    ]
    found = sweeps.ranking(rows)
    assert found["label"].tolist() == ["fluid", "matched", "lazy", "drrs"]
    assert found["first"].tolist() == [True, True, False, None]
    assert found["rank"].tolist() == [1, 2, 3, 4]
    assert sweeps.ranking_sentences(rows) == [
        "micro: fluid has the smallest P99 spike (ms), 11 (n = 3); the difference to matched may be chance; "
        "drrs: too few repetitions to tell."
    ]
    slow = [row("stop_restart", 1000, 1220.0)]
    assert sweeps.ranking_sentences(slow) == ["micro: stop_restart has the smallest P99 spike (ms), 1200 (n = 1)."]
    assert sweeps.ranking([]).empty


def test_names_with_numbers_are_in_the_order_of_their_numbers():
    assert sweeps.in_order("query", ["q11", "q5", "q8"]) == ["q5", "q8", "q11"]
    assert sweeps.in_order("size", ["all", 16, 4.0, "4x"]) == [4.0, 16, "4x", "all"]
    assert sweeps.in_order("strategy", ["b", "a", "b"]) == ["b", "a"]


def test_a_point_that_was_cut_short_or_in_which_nothing_moved_has_no_rank():
    short = row("lazy", 1000, 1.0, recover_s=None, completion_s=None)
    rows = [*repeated("fluid", 1000, 10, 11), row("lazy", 1000, 1.0, 1), short]
    for measure, what in (("P99 spike (ms)", "recover"), ("recovery (s)", "recover"), ("completion (s)", "complete")):
        assert sweeps.ranking(rows, measure)["label"].tolist() == ["fluid"], measure
        (said,) = sweeps.ranking_sentences(rows, measure)
        assert said.endswith(f"; lazy: no rank, as not every run was seen to {what}."), measure
    assert sweeps.ranking_sentences([short]) == ["micro: lazy: no rank, as not every run was seen to recover."]
    assert sweeps.ranking(rows, "P99 before (ms)")["label"].tolist() == ["fluid", "lazy"]
    cut = row("lazy", 1000, 1.0, recover_s=0.0, completion_s=None, incomplete=True)
    for measure in ("P99 spike (ms)", "moved (MiB)"):
        said = sweeps.ranking_sentences([cut | {"bytes_moved": 1}], measure)
        assert said == ["micro: lazy: no rank, as not every run was seen to complete."], measure
    assert sweeps.ranking_sentences([short, cut | {"strategy": "drrs"}]) == [
        "micro: lazy: no rank, as not every run was seen to recover; "
        "drrs: no rank, as not every run was seen to complete."
    ]
    known = {"silence_ms": 1.0, "longest_ms": 1.0, "recover_s": 0.0}
    still = row("fluid", 1000, 1.0, parameters={"seed": 0, "trigger": "scale"}, steps=0, **known)
    rows = [still | {"strategy": "stays"}, row("matched", 1000, **known)]
    for measure in ("P99 spike (ms)", "P99 spike (× before)", "silence (ms)", "longest latency (ms)", "recovery (s)"):
        assert sweeps.ranking(rows, measure)["label"].tolist() == ["matched"], measure
    bytes_of = {"bytes_moved": 1, "bytes_minimum": 1}
    rows = [{**rows[0], **dict.fromkeys(bytes_of, 0)}, {**rows[1], **bytes_of}]
    for fault in ("", "kill:slot@4"):
        rows[0]["parameters"]["fault"] = fault
        for measure in ("moved (MiB)", "had to move (MiB)"):
            assert sweeps.ranking(rows, measure)["label"].tolist() == ["matched"], measure
    rows[0]["parameters"]["fault"] = ""
    assert sweeps.ranking(rows, "P99 before (ms)")["label"].tolist() == ["stays", "matched"]
    assert sweeps.ranking_sentences(rows[:1]) == []
