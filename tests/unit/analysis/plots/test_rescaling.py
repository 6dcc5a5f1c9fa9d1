"""Several migrations of one run: who belongs to which, and what each cost."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis import metrics
from keyshift.analysis.plots import style
from keyshift.analysis.plots.rescaling import rescaling_figure, rescalings
from keyshift.model.errors import BadInput

MIB = 2**20


@pytest.fixture
def run():
    """Unit 1 moves twice, 2 only in the second migration, which begins while the third is requested already."""
    created = np.arange(-5, 30, 0.01)
    slow = np.select([(created >= 1) & (created < 2), (created >= 12) & (created < 13)], [300.0, 900.0], 20.0)
    seconds = metrics.per_second(pd.DataFrame({"created_s": created, "latency_ms": slow}))
    migration = pd.DataFrame(
        {
            "step": [0, 1, 2, 2, 3],
            "unit": [0, 1, 1, 2, 0],
            "bytes": [MIB, MIB, 2 * MIB, MIB, 0],
            "switched_s": [0.5, 1.0, 12.5, 12.5, 21.0],
            "sent_s": [0.7, 1.4, 12.55, 13.4, np.nan],
            "installed_s": [0.75, 1.5, 12.6, 13.5, np.nan],
        }
    )
    decisions = pd.DataFrame({"migration": [0, 0, 0, 1, 1, 2], "unit": [0, 1, 7, 1, 2, 0], "step": [0, 1, -1, 0, 0, 0]})
    return seconds, migration.assign(stage=0, source=0, destination=1), decisions.assign(stage=0)


def test_units_belong_to_the_migration_that_was_to_move_them_and_one_that_did_not_come_about_is_not_known(run):
    table = rescalings(*run, [0.0, 12.0, 20.0])
    assert table["number"].tolist() == [0, 1, 2]
    assert table["units"].tolist() == [2, 2, 0]
    assert table["moved_mib"].tolist()[:2] == [2.0, 3.0]
    assert table["completion_s"].tolist()[:2] == [1.0, 1.0]
    assert table.loc[2, ["moved_mib", "completion_s"]].isna().all(), "a unit was never installed, nor said to be sent"
    assert table["spike_ms"].tolist() == [300.0, 900.0, 20.0]
    seconds, migration, decisions = run
    more = pd.concat([decisions, decisions[:1].assign(unit=5, step=2)])
    assert rescalings(seconds, migration, more, [0.0, 12.0])["completion_s"].isna().tolist() == [True, False]
    table = rescalings(seconds, migration[:0], decisions[:0], [0.0, 40.0])
    assert table["units"].tolist() == [0, 0]
    assert table[["completion_s", "spike_ms"]].isna().to_numpy().tolist() == [[True, False], [True, True]]


def test_the_figure_has_a_marker_for_each_strategy_and_migration(run):
    table = rescalings(*run, [0.0, 12.0, 20.0])
    figure = rescaling_figure({"fluid": table, "meces": table}, ["4 → 1", "1 → 3", "3 → 2"])
    completion, spike = figure.axes
    assert [line.get_marker() for line in spike.lines] == [style.style_of(name).marker for name in ("fluid", "meces")]
    assert spike.lines[0].get_ydata().tolist() == [300.0, 900.0, 20.0]
    assert all(a < b for a, b in zip(*(line.get_xdata() for line in spike.lines), strict=True)), "side by side"
    assert (completion.get_ylabel(), spike.get_ylabel()) == ("completion (s)", "P99 spike (ms)")
    assert [text.get_text() for text in completion.get_xticklabels()] == ["4 → 1", "1 → 3", "3 → 2"]
    assert completion.get_xlabel() == "migration (slots before → after)"
    assert rescaling_figure({"fluid": table}, ["shuffle", "back", "zipf:2"]).axes[0].get_xlabel() == "migration"
    with pytest.raises(BadInput, match="no run given"):
        rescaling_figure({}, [])


def test_several_runs_are_means_with_intervals(run):
    one = rescalings(*run, [0.0, 12.0, 20.0])
    other = one.assign(spike_ms=one["spike_ms"] * 1.5)
    figure = rescaling_figure({"fluid": pd.concat([one, other])}, ["4 → 1", "1 → 3", "3 → 2"])
    completion, spike = figure.axes
    line, *caps = spike.lines
    assert line.get_ydata().tolist() == [375.0, 1125.0, 25.0]
    lows, highs = (cap.get_ydata() for cap in caps)
    assert (lows > 0).all() and (lows < line.get_ydata()).all() and (highs > 1.5 / 1.25 * line.get_ydata()).all()
    assert completion.lines[0].get_ydata().tolist() == [1.0, 1.0], "of the third one it is not known"
