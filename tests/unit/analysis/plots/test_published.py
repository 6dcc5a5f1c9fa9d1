"""Our curve beside a published one, on numbers with known answers."""

import pandas as pd
import pytest

from keyshift.analysis.plots.published import published_figure
from keyshift.model.errors import BadInput

POINTS = pd.DataFrame({"point": ["5 ms", "10 ms", "50 ms"], "published": [6.0, 7.0, 14.0]})


def test_published_values_and_each_of_ours_are_a_line_over_the_points():
    lines = {"one": POINTS.assign(ours=[12.0, 14.0, 28.0]), "two": POINTS.assign(ours=[float("nan"), 5.0, 6.0])}
    ax = published_figure(lines, "P99 (ms)", title="P99 over the heartbeat")
    drawn = [line.get_ydata().tolist() for line in ax.lines]
    assert drawn[:2] == [[6.0, 7.0, 14.0], [12.0, 14.0, 28.0]] and drawn[2][1:] == [5.0, 6.0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["5 ms", "10 ms", "50 ms"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["published", "one", "two"]
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "P99 (ms)")
    with pytest.raises(BadInput, match="no column ours"):
        published_figure({"one": POINTS}, "P99 (ms)")


@pytest.mark.filterwarnings("error")
def test_long_names_are_below_each_other_and_leave_room_for_the_lines():
    names = [f"keycount, frame_ms=20, seconds=24, state_bytes={2**n}, to_slots=6, trigger_s=4" for n in range(8)]
    ax = published_figure({name: POINTS.assign(ours=1.0) for name in names}, "P99 (ms)")
    ax.figure.draw_without_rendering()
    assert ax.get_position().width > 0.5 and ax.get_position().height > 0.3
