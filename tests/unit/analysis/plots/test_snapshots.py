"""The figure of snapshots says how long each took, in all stages, and what it wrote."""

import pandas as pd
import pytest

from keyshift.analysis.plots import style
from keyshift.analysis.plots.snapshots import snapshot_figure
from keyshift.analysis.timelines import snapshots
from keyshift.model.errors import BadInput

MIB = 2**20


@pytest.fixture
def table():
    """Two snapshots of two stages."""
    return pd.DataFrame(
        {
            "snapshot": [0, 0, 1, 1],
            "begun_s": [-2.0, -1.9, 3.0, 3.0],
            "completed_s": [-1.5, -1.0, 3.25, 3.5],
            "bytes_written": [MIB, 2 * MIB, MIB, 0],
        }
    )


def test_a_snapshot_takes_until_it_is_complete_in_all_stages_and_writes_what_all_of_them_do(table):
    found = snapshots(table)
    assert found["snapshot"].tolist() == [0, 1]
    assert found["begun_s"].tolist() == [-2.0, 3.0]
    assert found["took_s"].tolist() == [1.0, 0.5]
    assert found["written_mib"].tolist() == [3.0, 1.0]
    assert snapshots(table[:0]).empty


def test_the_figure_has_a_line_for_each_run_that_took_snapshots(table):
    figure = snapshot_figure({"fluid": {"snapshots": table}, "lazy": {"snapshots": table[:0]}})
    time, size = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fluid"]
    assert [ax.lines[0].get_ydata().tolist() for ax in (time, size)] == [[1.0, 0.5], [3.0, 1.0]]
    assert time.lines[0].get_xdata().tolist() == [-2.0, 3.0]
    assert time.lines[0].get_marker() == style.style_of("fluid").marker
    assert (time.get_ylabel(), size.get_ylabel()) == ("time until it was complete (s)", "MiB written")
    with pytest.raises(BadInput, match="no run has a snapshot; set snapshot_s"):
        snapshot_figure({"lazy": {"snapshots": table[:0]}})
