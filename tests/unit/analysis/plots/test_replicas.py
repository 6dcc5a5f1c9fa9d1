"""Figures of replicas: what happens around a death, what it costs, and how latency is distributed."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis.plots import style
from keyshift.analysis.plots.replicas import cost_figure, latency_boxes, masking_panels, staircase_panels
from keyshift.model.errors import BadInput


def tables(silent_from=None):
    """Ten seconds around a fault at 0.25 s, a result each 10 ms, 20 ms late; two processes at half a processor."""
    created = np.arange(-5, 5, 0.01)
    if silent_from is not None:
        created = created[(created < silent_from) | (created >= silent_from + 2)]
    latency = pd.DataFrame({"created_s": created, "latency_ms": 20.0})
    seconds = np.arange(-5, 5) + 0.5
    cpu = [
        pd.DataFrame({"t_s": seconds, "metric": "cpu_cores", "instance": name, "value": 0.5})
        for name in ("spark_jvm", "python_workers")
    ]
    fault = pd.DataFrame({"t_s": [0.25], "metric": "fault", "instance": "kill replica", "value": 0.0})
    migration = pd.DataFrame({"switched_s": [], "installed_s": []})
    return {"latency": latency, "migration": migration, "metrics": pd.concat([*cpu, fault], ignore_index=True)}


def test_each_run_has_its_latency_and_below_it_the_cpu_so_far():
    figure = masking_panels({"passive": tables(silent_from=1.0), "live_robin": tables()}, title="a death at 0")
    passive, masked, *cpu = figure.axes
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == ["passive, from a snapshot", "LiveRobin"]
    silent = passive.lines[0]
    gap = np.isnan(silent.get_ydata())
    assert silent.get_xdata()[gap].tolist() == [1.5, 2.5], "a second without a result is no line"
    assert masked.lines[0].get_ydata().tolist() == pytest.approx([20.0] * 10)
    for ax in cpu:
        assert ax.lines[0].get_ydata().tolist() == pytest.approx(range(1, 11)), "one processor, second by second"
    assert [[line.get_xdata()[0] for line in ax.lines[1:]] for ax in figure.axes] == [[0, 0.25]] * 4
    assert cpu[0].get_ylabel() == "CPU so far (s)" and passive.get_ylabel() == "P99 (ms)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["trigger", "fault"]
    with pytest.raises(BadInput, match="no run given"):
        masking_panels({}, title="")


def test_cpu_and_what_was_sent_so_far_are_added_up_and_stand_below_if_they_are_known_of_a_run():
    """The more there is to be looked at, the longer it is from one look to the next."""
    slow, looks = tables(), np.arange(-6.0, 5.0, 1.5)
    rest = slow["metrics"][slow["metrics"]["metric"] != "cpu_cores"]
    cpu = [pd.DataFrame({"t_s": looks, "metric": "cpu_cores", "instance": name, "value": 1.0}) for name in "ab"]
    slow["metrics"] = pd.concat([rest, *cpu])
    figure = masking_panels({"live_robin": slow}, title="a death at 0")
    used_s = figure.axes[1].lines[0].get_ydata()
    assert used_s[-1] - used_s[0] == pytest.approx(2 * 9.0)
    known, seconds = tables(), np.arange(-6, 5, 2) + 0.5
    sent = [
        pd.DataFrame({"t_s": seconds, "metric": "sent_mib", "instance": name, "value": 100 + 3 * np.arange(6)})
        for name in ("replica 0", "replica 1")
    ]
    known["metrics"] = pd.concat([known["metrics"], *sent])
    figure = masking_panels({"live_robin": known, "passive": tables()}, title="a death at 0")
    assert len(figure.axes) == 6 and figure.axes[4].get_ylabel() == "sent so far (MiB)"
    of_two = figure.axes[4].lines[0].get_ydata()
    assert np.isnan(of_two[0]), "it is told of from the first second on in which it is known"
    assert of_two[1:].tolist() == [0, 0, 6, 6, 12, 12, 18, 18, 24]
    assert np.isnan(figure.axes[5].lines[0].get_ydata()).all()


def test_where_state_is_moved_away_its_migration_is_shaded():
    moved = tables() | {"migration": pd.DataFrame({"switched_s": [0.2, 0.5], "installed_s": [0.5, 2.0]})}
    figure = masking_panels({"moved away": moved}, title="moved away at 0")
    spans = [[(each.get_x(), each.get_width()) for each in ax.patches] for ax in figure.axes]
    assert spans == [[(0.2, pytest.approx(1.8))]] * 2
    assert "migration" in [text.get_text() for text in figure.legends[0].get_texts()]


def of_seconds(p99_ms):
    """Per-second latency of a run with its trigger after four seconds of measured time, and no migration."""
    seconds = range(-4, -4 + len(p99_ms))
    return pd.DataFrame({"second": seconds, "p50_ms": 10.0, "p99_ms": p99_ms, "max_ms": p99_ms}), None


STAIRCASE = [(0.0, 5.0), (1.0, 50.0), (3.0, 0.0), (5.0, 0.0)]


def test_what_is_offered_of_a_source_stands_beside_the_latency_of_each_second():
    runs = {"live_robin": of_seconds([20.0, 30.0, np.nan, 20.0, 20.0]), "kazoo": of_seconds([40.0] * 5)}
    figure = staircase_panels(runs, {name: {"control": STAIRCASE} for name in runs}, trigger_s=4.0, title="a staircase")
    first, second, *right = figure.axes
    assert [ax.get_title(loc="left") for ax in (first, second)] == ["LiveRobin", "KaZoo"]
    p99 = first.lines[1]
    assert p99.get_xdata().tolist() == [0.5, 1.5, 2.5, 3.5, 4.5], "measured time"
    assert np.isnan(p99.get_ydata()[2]) and first.get_yscale() == "log"
    for ax in right:
        (line,) = ax.lines
        assert [*zip(line.get_xdata(), line.get_ydata(), strict=True)] == STAIRCASE
        assert line.get_drawstyle() == "steps-post" and ax.get_ylim()[0] == 0
    assert [ax.get_ylabel() for ax in right] == ["", "offered (events/s)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["P99", "P50", "rate of control"]
    steady = staircase_panels({"kazoo": of_seconds([40.0] * 5)}, {"kazoo": {}}, trigger_s=4.0, title="steady")
    assert [len(ax.lines) for ax in steady.axes] == [2, 0], "only latency, where no rate changes"
    with pytest.raises(BadInput, match="no run given"):
        staircase_panels({}, {}, trigger_s=4.0, title="")


def test_silence_stands_against_each_cost_that_is_known():
    table = pd.DataFrame(
        {
            "point": ["kazoo", "kazoo", "passive", "lost"],
            "cpu": [1.5, 1.6, 0.8, 1.0],
            "memory_mib": [2000, 2100, 900, 5],
            "sent_mib_per_s": np.nan,
            "silence_s": [0.5, 0.4, 1.5, None],
        }
    )
    figure = cost_figure(table)
    for ax, of_kazoo, of_passive in zip(figure.axes, ([150, 160], [2000, 2100]), ([80], [900]), strict=True):
        kazoo, passive = ax.lines
        assert kazoo.get_xdata().tolist() == of_kazoo and kazoo.get_ydata().tolist() == [500, 400]
        assert passive.get_xdata().tolist() == of_passive
        assert passive.get_marker() == style.style_of("passive").marker
        assert ax.get_yscale() == "log" and ax.get_xlim()[0] == 0
    said = ["CPU before the fault (% of a processor)", "memory at its peak (MiB)"]
    assert [ax.get_xlabel() for ax in figure.axes] == said
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["KaZoo", "passive, from a snapshot"]
    with pytest.raises(BadInput, match="no run with a silence and one of cpu, memory_mib, sent_mib_per_s"):
        cost_figure(table[3:])


def test_a_box_is_of_all_runs_of_a_point_and_its_whiskers_are_the_first_and_last_percent():
    runs = [pd.DataFrame({"latency_ms": np.arange(1.0, 51.0)}), pd.DataFrame({"latency_ms": np.arange(51.0, 102.0)})]
    ax = latency_boxes({"20.0, kazoo": runs, "none": runs[:1]}, title="over the heartbeat")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["20.0, kazoo", "none"]
    whiskers = [sorted(line.get_ydata().tolist()) for line in ax.lines if len(line.get_ydata()) == 2]
    assert [2.0, 26.0] in whiskers and [76.0, 100.0] in whiskers
    assert ax.get_ylabel() == "latency (ms), whiskers at P1 and P99"
    for nothing, said in (({}, "no point given"), ({"none": []}, "none has no result")):
        with pytest.raises(BadInput, match=said):
            latency_boxes(nothing, title="")
