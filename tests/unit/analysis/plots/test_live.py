"""What was seen of a job, on made-up statuses with known answers."""

import math

import pytest

from keyshift.analysis.plots.live import History, LiveFigure, StatusSample, exploration, exploration_sentences, owned


def status(at_s, owners, p99_ms=10.0, waiting=0, provisioned=3):
    of_slot = {slot: {"queue_bytes": waiting} if waiting else {} for slot in range(provisioned)}
    return {
        "stages": {"counter": {"owners": owners, "provisioned": provisioned, "of_slot": of_slot}},
        "running_s": at_s,
        "p50_ms": None if p99_ms is None else p99_ms / 2,
        "p99_ms": p99_ms,
        "rate": 100.0,
        "results_per_s": 99,
    }


@pytest.fixture
def history():
    """Unit 1 leaves slot 0 after 3 s, unit 0 a second later; then nothing more."""
    history = History()
    history.add(status(1.0, [0, 0, 1], None))
    history.add(status(2.0, [0, 0, 1]))
    history.note_request("scale 3")
    history.add(status(3.0, [0, 2, 1], 40.0, waiting=1 << 20))
    history.add(status(4.0, [2, 2, 1], 20.0))
    history.note_request("kill")
    history.add(status(5.0, [2, 2, 1], 30.0))
    return history


def test_what_was_seen_has_a_row_for_each_look_and_is_said_with_what_was_asked(history):
    table = history.table()
    assert table["moved"].tolist() == [0, 0, 1, 1, 0]
    assert table["queue_mib"].tolist() == [0, 0, 3, 0, 0]
    assert math.isnan(table["p99_ms"][0]) and table["p99_ms"].tolist()[1:] == [10, 40, 20, 30]
    assert history.samples[3].owners["counter"] is history.samples[4].owners["counter"], "kept once while nothing moves"
    begin, scale, kill = exploration_sentences(history)
    assert begin == "**the beginning** at 1 s: no unit moved; median of the P99 10 ms, at most 10 ms"
    words = "2 units moved, the last seen 2.0 s later; median of the P99 30 ms, at most 40 ms"
    assert scale == f"**scale 3** at 2 s: {words}"
    assert kill.startswith("**kill** at 4 s: no unit moved; median of the P99 30 ms")
    history.add(status(6.0, [2, 2, 1], 5230.0))
    assert exploration_sentences(history)[-1].endswith(", at most 5200 ms")
    assert exploration_sentences(History()) == ["nothing was seen of the job"]


def test_the_map_has_a_row_per_slot_of_each_stage():
    owners = {"first": (0, 1), "second": (1, 1)}
    assert owned(owners, {"first": 2, "second": 3}).tolist() == [[1, 0], [0, 1], [0, 0], [1, 1], [0, 0]]


def test_the_live_picture_changes_with_the_owners_and_fades_what_has_left(history):
    figure = LiveFigure(history)
    before = figure.png()
    assert before.startswith(b"\x89PNG") and figure.png() == before
    history.add(status(6.0, [0, 2, 1]))
    moved = figure.png()
    assert moved not in (before, figure.png()), "unit 0 has moved, and fades in slot 2"
    history.add(status(7.0, [0, 2, 1], provisioned=4))
    restarted = figure.png()
    assert restarted == figure.png(), "a map with more slots begins anew"
    assert LiveFigure(History()).png().startswith(b"\x89PNG"), "nothing to see is a picture, too"


def test_the_last_figure_has_the_slot_of_each_unit_over_time_and_what_was_asked(history):
    figure = exploration(history)
    *times, owners, _ = figure.axes
    assert [ax.get_title(loc="left") for ax in times] == ["Latency", "Rate", "Records that wait in slots"]
    assert [text.get_text() for text in owners.texts] == ["scale 3", "kill"]
    [mesh] = owners.collections
    assert mesh.get_array().reshape(3, 5).tolist() == [[0, 0, 0, 2, 2], [0, 0, 2, 2, 2], [1] * 5]
    history.add(status(6.0, [0, 0, 1], provisioned=2))
    [mesh] = exploration(history).axes[-2].collections
    assert len(set(map(tuple, mesh.to_rgba(range(3))))) == 3, "each slot has its own though the job has fewer by now"


def test_what_is_seen_while_something_is_made_of_it_comes_too_late_and_does_no_harm(history):
    class Meanwhile(StatusSample):
        """Who reads something of it finds that another look has come."""

        def __getattribute__(self, name):
            history.add(status(6.0, [2, 2, 1]))
            return super().__getattribute__(name)

    history.samples[0] = Meanwhile(*history.samples[0])
    assert len(history.table()) == 5
    assert len(history.samples) == 6
    assert exploration(history).axes[0].lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
