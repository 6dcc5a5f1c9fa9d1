"""Figures draw what they are given, in the styles of the strategies, and nothing covers anything else."""

from itertools import combinations
from threading import Event, Thread

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from small_store import row as summary

from keyshift.analysis import metrics, tables
from keyshift.analysis.plots import strategies as figures
from keyshift.analysis.plots import style
from keyshift.model.errors import BadInput
from keyshift.planner import strategies

# Others get what is left, by all of their name.
PRESETS = [name for name in strategies.names() if style.style_of(f"q5, {name}")[:3] == style.style_of(name)[:3]]
MOMENTS = ["prepared_s", *metrics.MOMENTS]
# Linear-RGB simulation of a reader without green cones. Source: Machado, Oliveira, Fernandes 2009, severity 1.
DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])


@pytest.fixture
def migration():
    frame = pd.DataFrame({"step": [0, 0, 1], "unit": [4, 5, 6], "source": 0, "destination": 1, "bytes": 10})
    for number, moment in enumerate(MOMENTS):
        frame[moment] = frame["step"] + number * 0.1 + 0.5
    return frame


def legend_of(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_every_point_and_preset_has_its_look_and_an_unknown_one_the_same_every_time_and_that_of_no_preset():
    point, plain, mine = (style.style_of(name) for name in ("q5, fluid", "fluid", "my_own"))
    assert point[:3] == plain[:3] and point.label == "q5, fluid"
    assert style.style_of("fluid, q5") == style.style_of("fluid, q5") != plain
    assert mine == style.style_of("my_own") and mine.label == "my_own"
    assert mine.line not in {style.style_of(name).line for name in PRESETS}
    all_styles = [style.style_of(name) for name in PRESETS]
    assert len({one.marker for one in all_styles}) == len({one.label for one in all_styles}) == len(PRESETS)
    assert len({(one.colour, one.line) for one in all_styles}) == len(PRESETS)


def test_strategies_with_the_same_line_stay_apart_for_a_reader_who_cannot_see_green():
    def seen(name: str) -> np.ndarray:
        rgb = np.array(colors.to_rgb(style.style_of(name).colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        red, green, blue = np.clip(DEUTERANOPIA @ linear, 0, 1)
        # To CIELAB, in which distance is about what the eye sees; 2.3 is just noticeable.
        x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
        y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
        fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
        return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])

    for one, other in combinations(PRESETS, 2):
        if style.style_of(one).line == style.style_of(other).line:
            assert np.linalg.norm(seen(one) - seen(other)) > 15, (one, other)


def test_points_never_look_alike_in_one_figure_and_those_of_one_strategy_have_its_colour():
    names = [f"chunk {number}" for number in range(30)]
    alone = {style.style_of(name)[:3] for name in names}
    drawn = style.styles([*names, "fluid"])
    together = {look[:3] for look in drawn.values()}
    assert len(alone) < len(names), "by chance some do, each alone"
    assert len(together) == len(names) + 1
    assert len({style.styles(names[:5])[name].colour for name in names[:5]}) == 5, "bars have no markers"
    assert [look.label for look in drawn.values()] == [*names, "fluid"]
    assert drawn["fluid"] == style.style_of("fluid")
    names = ["fluid", *(f"q{number}, fluid" for number in range(9)), "matched", "kazoo"]
    drawn = style.styles(names)
    assert len({(look.colour, look.marker) for look in drawn.values()}) == len(names)
    assert {drawn[name].colour for name in names[:10]} == {style.style_of("fluid").colour}
    assert [look.label for look in drawn.values()] == [*names[:-1], "KaZoo"]
    assert drawn["matched"] == style.style_of("matched")


def test_the_ccdf_marks_the_slowest_result_of_each_strategy():
    ends = {"lazy": 9, "mine": 99}
    curves = {name: metrics.ccdf(pd.DataFrame({"latency_ms": np.arange(1, end)})) for name, end in ends.items()}
    ax = figures.ccdf_figure(curves)
    lines = [line for line in ax.lines if line.get_label() in ("lazy", "mine")]
    assert [line.get_xdata()[-1] for line in lines] == [8, 98]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "log", "latency (ms)")


def test_the_slow_results_of_a_run_are_counted_so_that_one_with_more_calm_results_does_not_seem_better():
    """A lap ends a few seconds behind its migration: of two that are as bad, the longer one has a lower fraction."""
    slow, calm = [80.0] * 10, [5.0] * 90
    latencies = {"short": [*slow, *calm], "long": [*slow, *calm, *calm]}
    curves = {name: metrics.ccdf(pd.DataFrame({"latency_ms": values})) for name, values in latencies.items()}
    ax = figures.ccdf_figure(curves, counted=True)
    ends = {str(line.get_label()): line.get_ydata()[-1] for line in ax.lines}
    assert ends == {"short": 10, "long": 10}, "and no percentiles, which are of fractions"
    assert ax.get_ylabel() == "results of a run at least as slow"


def test_the_gantt_has_a_bar_for_each_known_phase_of_each_unit(migration):
    migration.loc[1, "received_s"] = float("nan")
    ax = figures.steps_gantt(migration)
    bars = [(bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert len(bars) == 3 * 5 - 2
    assert min(bars, key=lambda bar: bar[1]) == pytest.approx((0, 0.5, 0.1))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["4  (0 → 1)", "5  (0 → 1)", "6  (0 → 1)"]


def costs(*known: tuple) -> pd.DataFrame:
    """Of strategies: spike, completion, and what else is known of some."""
    usual = {"floor_s": 0.2, "bytes_moved": 100, "bytes_minimum": 100, "recover_s": 1.0}
    return tables.tradeoffs(
        [summary(name, **usual | {"spike_ms": ms, "completion_s": s} | dict(*more)) for name, ms, s, *more in known]
    )


FAST = ("all_at_once", 600.0, 0.5)
LONGEST = "longest latency (ms)"


def test_the_pareto_figure_has_a_point_with_its_range_per_strategy_the_floor_and_the_p99_before():
    ax = figures.pareto(costs(("fluid", 30.0, 4.0), ("fluid", 90.0, 5.0), ("fluid", 40.0, 3.0), FAST))
    single = [line for line in ax.lines if len(line.get_xdata()) == 1]
    points = {(*line.get_xdata(), *line.get_ydata()): line.get_color() for line in single}
    assert points[4.0, 40.0] == style.style_of("fluid").colour
    assert points[0.5, 600.0] == style.style_of("all_at_once").colour
    bars = [segment.tolist() for part in ax.collections for segment in part.get_segments()]
    assert [[3.0, 40.0], [5.0, 40.0]] in bars and [[4.0, 30.0], [4.0, 90.0]] in bars
    before, floor = (line for line in ax.lines if line.get_linestyle() in (":", "--"))
    assert (before.get_ydata()[0], floor.get_xdata()[0]) == (20.0, 0.2)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlim()[0] < 0.2 and ax.get_ylim()[0] < 20 < 600 < ax.get_ylim()[1]
    assert legend_of(ax.get_legend())[:2] == ["all at once", "fluid"]
    assert "nobody is better in both" in legend_of(ax.get_legend())


def test_the_pareto_figure_of_jobs_with_other_states_has_no_line_that_is_of_one_of_them():
    other_floor, other_p99 = (
        legend_of(figures.pareto(costs(("fluid", 30.0, 4.0, other), FAST)).get_legend())
        for other in ({"floor_s": 0.5}, {"p99_ms": 40.0})
    )
    assert other_floor == ["all at once", "fluid", "P99 before: 20 ms"], "neither a floor nor a front"
    assert other_p99[2:] == ["floor, a bare copy: 0.2 s", "nobody is better in both"]


def test_the_pareto_figure_names_whom_it_cannot_draw_and_whose_state_stays():
    bad = ("meces", 1.0, 0.1, {"verdict": "bad", "lost": 3})
    ax = figures.pareto(costs(("lazy", 30.0, 0.1), bad, ("drrs", 1.0, None)))
    first, *said = legend_of(ax.get_legend())
    assert first == "lazy *"
    unknown = "DRRS: P99 spike or completion not known"
    assert {"* part of the state stays behind", "Meces: not correct", unknown} <= set(said)
    assert len([line for line in ax.lines if len(line.get_xdata()) == 1]) == 1


def test_the_pareto_figure_of_the_longest_latency_has_that_and_no_spike():
    rows = [summary("fluid", longest_ms=ms, completion_s=4.0, floor_s=0.2) for ms in (200.0, 250.0, 900.0)]
    rows.append(summary("lazy", spike_ms=40.0, completion_s=0.1))
    ax = figures.pareto(tables.tradeoffs(rows, LONGEST), LONGEST)
    (point,) = ((*line.get_xdata(), *line.get_ydata()) for line in ax.lines if len(line.get_xdata()) == 1)
    assert point == (4.0, 250.0) and ax.get_ylabel() == LONGEST
    assert [[4.0, 200.0], [4.0, 900.0]] in [lines.tolist() for part in ax.collections for lines in part.get_segments()]
    assert "lazy: longest latency or completion not known" in legend_of(ax.get_legend())
    with pytest.raises(BadInput, match="pareto: no column spike_ms"):
        figures.pareto(tables.tradeoffs(rows, LONGEST))


def test_points_of_one_strategy_are_told_apart_and_one_that_was_not_seen_to_recover_is_marked_and_not_on_the_front():
    ax = figures.pareto(costs(*(("fluid", 9.0, size, {"parameters": {"size": size}}) for size in (1, 2))))
    assert legend_of(ax.get_legend())[:2] == ["fluid (size=1)", "fluid (size=2)"]
    one, other = ax.get_legend().legend_handles[:2]
    assert (one.get_color(), one.get_marker()) != (other.get_color(), other.get_marker())
    ax = figures.pareto(costs(("fluid", 30.0, 4.0, {"recover_s": None}), ("lazy", 90.0, 0.1), ("matched", 60.0, 2.0)))
    assert {"fluid †", "lazy *", "matched", "† load ended before recovery"} <= set(legend_of(ax.get_legend()))
    (ribbon,) = (line for line in ax.lines if line.get_linewidth() == 6)
    assert ribbon.get_xdata().tolist() == [0.1, 2.0]


def test_nothing_to_draw_is_drawn_empty_or_refused(migration):
    assert len(figures.steps_gantt(migration.iloc[:0]).patches) == 0
    assert len(figures.pareto(costs()).collections) == 0
    nothing = figures.ccdf_figure({"fluid": metrics.ccdf(pd.DataFrame({"latency_ms": []}))})
    nothing.figure.draw_without_rendering()
    assert legend_of(nothing.get_legend()) == ["fluid"]
    with pytest.raises(BadInput, match="no curve"):
        figures.ccdf_figure({})
    with pytest.raises(BadInput, match="steps_gantt: no column drained_s"):
        figures.steps_gantt(migration.drop(columns="drained_s"))


def test_a_thread_that_leaves_the_theme_takes_it_from_no_other():
    before = dict(matplotlib.rcParams)
    inside, other_inside = Event(), Event()

    def draws():
        with style.theme():
            inside.set()
            other_inside.wait(0.3)  # which does not come, as only one is inside

    thread = Thread(target=draws)
    thread.start()
    assert inside.wait(60)
    with style.theme():
        other_inside.set()
        thread.join()
        assert dict(matplotlib.rcParams) != before
    assert dict(matplotlib.rcParams) == before


POINTS = pd.DataFrame({"point": ["5 ms", "10 ms", "50 ms"], "published": [6.0, 7.0, 14.0]})


def test_published_values_and_each_of_ours_are_a_line_over_the_points():
    lines = {"one": POINTS.assign(ours=[12.0, 14.0, 28.0]), "two": POINTS.assign(ours=[float("nan"), 5.0, 6.0])}
    ax = figures.published_figure(lines, "P99 (ms)", title="P99 over the heartbeat")
    drawn = [line.get_ydata().tolist() for line in ax.lines]
    assert drawn[:2] == [[6.0, 7.0, 14.0], [12.0, 14.0, 28.0]] and drawn[2][1:] == [5.0, 6.0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["5 ms", "10 ms", "50 ms"]
    assert legend_of(ax.get_legend()) == ["published", "one", "two"]
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "P99 (ms)")
    with pytest.raises(BadInput, match="no column ours"):
        figures.published_figure({"one": POINTS}, "P99 (ms)")


@pytest.mark.filterwarnings("error")
def test_long_names_are_below_each_other_and_leave_room_for_the_lines():
    names = [f"keycount, frame_ms=20, seconds=24, state_bytes={2**n}, to_slots=6, trigger_s=4" for n in range(8)]
    ax = figures.published_figure({name: POINTS.assign(ours=1.0) for name in names}, "P99 (ms)")
    ax.figure.draw_without_rendering()
    assert ax.get_position().width > 0.5 and ax.get_position().height > 0.3
