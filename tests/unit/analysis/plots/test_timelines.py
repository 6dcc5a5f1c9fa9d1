"""Figures of runs over time, of which every panel has the trigger, the migration and faults."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import small_store
from matplotlib.text import Text

from keyshift.analysis import metrics
from keyshift.analysis.plots import style, timelines
from keyshift.model.errors import BadInput
from keyshift.planner import strategies

PRESETS = strategies.names()


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.fixture
def seconds():
    created = np.arange(-10, 20, 0.05)
    slow = np.where((created >= 0) & (created < 3), 2000.0, 20.0)
    return metrics.per_second(pd.DataFrame({"created_s": created, "latency_ms": slow}))


@pytest.fixture
def migration():
    return pd.DataFrame({"switched_s": [0.6, 0.6, 1.6], "installed_s": [0.9, 0.9, 1.9]})


def test_the_timeline_draws_both_percentiles_and_shades_the_migration(seconds, migration):
    [ax] = timelines.panels({"fluid": (seconds, migration)}, objective_ms=70).axes
    p50, p99, trigger, objective = ax.lines
    assert p99.get_ydata().tolist() == seconds["p99_ms"].tolist()
    assert p50.get_ydata().tolist() == seconds["p50_ms"].tolist()
    assert p99.get_xdata().tolist() == (seconds["second"] + 0.5).tolist()
    assert p99.get_color() == style.style_of("fluid").colour
    assert (trigger.get_xdata()[0], objective.get_ydata()[0]) == (0, 70)
    (shade,) = ax.patches
    assert (shade.get_x(), shade.get_width()) == pytest.approx((0.6, 1.3))
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time since the trigger (s)", "latency (ms)")


def test_faults_are_marked_in_the_panel_of_their_strategy_and_each_migration_has_a_shade_of_its_own(seconds, migration):
    never = migration.iloc[:1].assign(installed_s=np.nan)
    both = pd.concat([migration, migration + 12, never + 15])
    figure = timelines.panels({"fluid": (seconds, both), "lazy": (seconds, None)}, faults={"lazy": [2.5]})
    marked = [[line.get_xdata()[0] for line in panel.lines].count(2.5) for panel in figure.axes]
    assert marked == [0, 1]
    assert legend(figure)[-3:] == ["trigger", "migration", "fault"]
    shades = [(patch.get_x(), patch.get_width()) for patch in figure.axes[0].patches]
    assert shades == [(0.6, pytest.approx(1.3)), (12.6, pytest.approx(1.3))]


def test_repetitions_show_their_range_and_a_second_without_results_breaks_the_line(seconds):
    some = seconds[seconds["second"] != 1]
    both = metrics.over_repetitions([some, some.assign(p99_ms=some["p99_ms"] * 2)])
    figure = timelines.panels({"fluid": (both, None)})
    [ax] = figure.axes
    assert len(ax.collections) == 1 and "P99, range of repetitions" in legend(figure)
    assert np.isnan(ax.lines[1].get_ydata()).sum() == 1
    one, other = (style.png(timelines.panels({"fluid": (some, None)})) for _ in range(2))
    assert one.startswith(b"\x89PNG") and one == other, "the same figure gives the same bytes"


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_there_is_one_panel_per_strategy_and_they_share_their_axes(seconds, migration, count):
    names = PRESETS[:count]
    flat, higher = seconds.assign(p99_ms=30.0, p50_ms=20.0), seconds.assign(p99_ms=seconds["p99_ms"] * 50)
    runs = {name: (higher if name == names[-1] else flat, migration) for name in names}
    figure = timelines.panels(runs)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == [style.style_of(name).label for name in names]
    assert len({ax.get_ylim() for ax in shown}) == len({ax.get_xlim() for ax in shown}) == 1
    assert shown[0].get_ylim()[1] > 100_000


def test_texts_and_legend_of_the_panels_do_not_overlap(seconds, migration):
    runs = dict.fromkeys(PRESETS[:5], (seconds, migration))
    figure = timelines.panels(runs, objective_ms=9)
    figure.canvas.draw()
    shown = [ax for ax in figure.axes if ax.get_visible()]
    texts = [text for ax in shown for text in (ax.xaxis.label, *ax.get_children()) if isinstance(text, Text)]
    [signs], [title] = figure.legends, figure.texts
    boxes = [each.get_window_extent() for each in (signs, title, *texts)]
    boxes = [box for box in boxes if box.width > 1]
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert not [box for box in boxes for ax in shown if box.overlaps(ax.get_window_extent().shrunk(0.98, 0.98))]


def test_nothing_to_draw_is_drawn_empty_or_refused(seconds, migration):
    assert len(timelines.panels({"fluid": (seconds.iloc[:0], migration.iloc[:0])}).axes[0].patches) == 0
    for figure in (timelines.panels, timelines.resource_panels):
        with pytest.raises(BadInput, match="no run given"):
            figure({})
    with pytest.raises(BadInput, match="panels, fluid: no column p99_ms"):
        timelines.panels({"fluid": (seconds.drop(columns="p99_ms"), None)})


@pytest.fixture
def tables():
    """Those of a stored run, with results that come evenly, and a fault."""
    stored = {name: table.to_pandas() for name, table in small_store.tables().items()}
    fault = pd.DataFrame({"t_s": [1.5], "metric": ["fault"], "instance": ["kill slot"], "value": [1.0]})
    return stored | {
        "latency": stored["latency"].assign(latency_ms=5.0),
        "migration": pd.DataFrame({"switched_s": [0.5], "installed_s": [2.0]}),
        "metrics": pd.concat([stored["metrics"], fault]),
    }


@pytest.mark.parametrize("count", [1, 3, 4])
def test_throughput_has_a_panel_per_run_with_migration_and_fault(tables, count):
    runs = {f"run {number}": tables for number in range(count)}
    figure = timelines.throughput_panels(runs)
    assert len(figure.axes) == (4 if count == 4 else count)
    for ax in figure.axes:
        line, trigger, fault = ax.lines
        assert set(line.get_ydata()) == {50}
        assert (trigger.get_xdata()[0], fault.get_xdata()[0]) == (0, 1.5)
        assert (ax.patches[0].get_x(), ax.patches[0].get_width()) == (0.5, 1.5)
        assert ax.get_ylim()[0] == 0
    assert legend(figure) == ["trigger", "migration", "fault"]


def test_resources_have_their_units_and_a_total_and_processes_are_told_apart(tables):
    figure = timelines.resource_panels({"fluid": tables, "matched": tables})
    assert [ax.get_ylabel() for ax in figure.axes[::2]] == ["CPU (%)", "RSS (MiB)"]
    totals = [next(line for line in ax.lines if line.get_color() == "#000000") for ax in figure.axes]
    assert [line.get_ydata()[0] for line in totals] == [100, 100, 1000, 1000]
    assert figure.axes[0].get_ylim()[1] > 100
    names = [f"replica {number}" for number in range(6)]
    cpu = [tables["metrics"].query("instance == 'spark_jvm'").assign(instance=name) for name in names]
    figure = timelines.resource_panels({"kazoo": tables | {"metrics": pd.concat([tables["metrics"], *cpu])}})
    signs = dict(zip(legend(figure), figure.legends[0].legend_handles, strict=True))
    drawn = [signs[name] for name in (*names, "Spark's JVM", "Python workers", "together")]
    assert len({(sign.get_color(), sign.get_linestyle()) for sign in drawn}) == len(drawn)


def test_what_was_sent_has_a_row_if_all_runs_know_and_counts_from_the_first_sample(tables):
    begun = {"pod 1": 0, "pod 2": 1}
    rows = [(t + 0.5, "sent_mib", pod, 100.0 + 10 * t) for pod in begun for t in range(begun[pod], 4)]
    sent = pd.DataFrame(rows, columns=["t_s", "metric", "instance", "value"])
    knows = tables | {"metrics": pd.concat([tables["metrics"], sent])}
    assert len(timelines.resource_panels({"fluid": knows, "matched": tables}).axes) == 4
    figure = timelines.resource_panels({"fluid": knows, "matched": knows})
    assert [ax.get_ylabel() for ax in figure.axes[::2]] == ["CPU (%)", "RSS (MiB)", "sent so far (MiB)"]
    first, second, total = (line.get_ydata().tolist() for line in figure.axes[4].lines[:3])
    assert (first, second[1:], total) == ([0, 10, 20, 30], [0, 10, 20], [0, 10, 30, 50])
    assert {"pod 1", "pod 2", "together"} <= set(legend(figure))


def test_how_full_the_machine_was_has_a_panel_if_all_runs_know_and_what_others_took_is_apart_and_hatched(tables):
    machine = [
        pd.DataFrame({"t_s": [-0.5, 0.5], "metric": "machine_cores", "instance": instance, "value": value})
        for instance, value in (("all", 2.0), ("busy", 1.5), ("stolen", 0.1), ("others", 0.0))
    ]
    knows = tables | {"metrics": pd.concat([tables["metrics"], *machine])}
    assert len(timelines.resource_panels({"fluid": knows, "matched": tables}).axes) == 4
    figure = timelines.resource_panels({"fluid": knows, "matched": knows})
    ours, others, stolen = figure.axes[4].collections[:3]
    assert figure.axes[4].get_ylabel() == "all processors (%)"
    assert [top(area) for area in (ours, others, stolen)] == pytest.approx([75, 75, 80])
    named = set(legend(figure))
    assert {"busy for the run", "busy for others", "stolen by others on the host"} <= named
    assert "disturbed by others" not in named
    of_a_quota = tables | {"metrics": pd.concat([tables["metrics"], *machine[:2]])}
    figure = timelines.resource_panels({"fluid": of_a_quota})
    assert [top(area) for area in figure.axes[2].collections[:3]] == pytest.approx([75, 75, 75])
    of_pods = tables | {"metrics": pd.concat([tables["metrics"], *machine[:3]])}
    assert len(timelines.resource_panels({"kubernetes": of_pods}).axes) == 2, "nobody knows for whom it was busy"
    told = [("machine_cores", "all", 2.0), ("machine_cores", "busy", 1.5), ("machine_cores", "stolen", 0.1)]
    told += [("machine_cores", "others", 0.5), ("disturbed", "machine", 1.0)]
    rows = [(at, *each) for at in (-0.5, 0.5) for each in told]
    metrics = pd.DataFrame(rows, columns=["t_s", "metric", "instance", "value"])
    knows = tables | {"metrics": pd.concat([tables["metrics"], metrics])}
    figure = timelines.resource_panels({"fluid": knows})
    assert [top(area) for area in figure.axes[2].collections[:3]] == pytest.approx([50, 75, 80])
    for ax in (*figure.axes, *timelines.throughput_panels({"fluid": knows}).axes):
        assert [patch.get_extents().width > 0 for patch in hatched(ax)] == [True]
        assert spans(ax) == [(-2.0, 1.0)], "the two samples, each of two seconds"


def top(area):
    return area.get_paths()[0].get_extents().ymax


def hatched(ax):
    return [patch for patch in ax.patches if patch.get_hatch()]


def spans(ax):
    return [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in hatched(ax)]


def test_disturbed_seconds_of_latency_are_hatched_where_they_are_known():
    seconds = pd.DataFrame({"second": range(-3, 4), "p50_ms": 10.0, "p99_ms": 20.0, "max_ms": 30.0})
    marked = seconds.assign(disturbed=[True, True, False, False, True, False, False])
    figure = timelines.panels({"fluid": (marked, None), "matched": (seconds, None)})
    assert spans(figure.axes[0]) == [(-3.0, -1.0), (1.0, 2.0)]
    assert spans(figure.axes[1]) == []
    assert "disturbed by others" in legend(figure)
    plain = timelines.panels({"fluid": (seconds, None)})
    assert "disturbed by others" not in legend(plain)


def test_a_snapshot_takes_until_it_is_complete_in_all_stages_and_has_written_what_all_of_them_have():
    taken = pd.DataFrame(
        {
            "snapshot": [0, 0, 1, 1],
            "begun_s": [-2.0, -1.9, 3.0, 3.0],
            "completed_s": [-1.5, -1.0, 3.25, 3.5],
            "bytes_written": [1 << 20, 2 << 20, 1 << 20, 0],
        }
    )
    figure = timelines.snapshot_figure({"fluid": {"snapshots": taken}, "lazy": {"snapshots": taken[:0]}})
    time, size = figure.axes
    assert legend(figure) == ["fluid"]
    assert [ax.lines[0].get_ydata().tolist() for ax in (time, size)] == [[1.0, 0.5], [3.0, 1.0]]
    assert time.lines[0].get_xdata().tolist() == [-2.0, 3.0]
    assert time.lines[0].get_marker() == style.style_of("fluid").marker
    assert (time.get_ylabel(), size.get_ylabel()) == ("time until it was complete (s)", "MiB written")
    with pytest.raises(BadInput, match="no run has a snapshot; set snapshot_s"):
        timelines.snapshot_figure({"lazy": {"snapshots": taken[:0]}})
