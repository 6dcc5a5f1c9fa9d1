"""A job whose load changes, on tables with known answers."""

import math

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis.plots.scaling import (
    scaling_costs,
    scaling_decisions,
    scaling_figure,
    scaling_sentences,
    scaling_timeline,
)
from keyshift.model.errors import BadInput
from keyshift.results.tables import TABLES


def looks(*rows, stage=0):
    """Rows: moment, slots, target, whether a migration is under way."""
    columns = {name: [0.0] * len(rows) for name in TABLES["scaling"].names}
    frame = pd.DataFrame(columns).assign(reason="why", stage=stage, stay_cost=math.nan, move_cost=math.nan)
    frame["t_s"], frame["slots"], frame["target"], frame["migrating"] = zip(*rows, strict=True)
    return frame


def latency():
    """10 events per second from -2 to 2, none from 2 to 4, 20 per second from 4 to 6 that take 1.5 s."""
    created = np.concatenate([np.arange(-2, 2, 0.1), np.arange(4, 6, 0.05)]) + 1e-3
    return pd.DataFrame({"created_s": created, "latency_ms": np.where(created < 4, 20.0, 1500.0)})


ONE = looks((0.0, 1, 1, False))


def test_a_timeline_has_load_misses_and_backlog_of_each_second_also_of_those_without_events():
    seconds = scaling_timeline(latency(), ONE, -2.0, 8.0, slo_ms=500)
    assert seconds["second"].tolist() == list(range(-2, 8))
    assert seconds["offered_per_s"].tolist() == [10, 10, 10, 10, 0, 0, 20, 20, 0, 0]
    assert seconds["missed"].tolist() == [False] * 6 + [True] * 2 + [False] * 2
    assert seconds["p99_ms"].isna().tolist() == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 2
    assert seconds["backlog"].tolist() == [0, 0, 0, 0, 0, 0, 20, 30, 10, 0]
    assert set(seconds["slots"]) == {1.0}
    with pytest.raises(BadInput, match="no column t_s"):
        scaling_timeline(latency(), latency(), 0.0, 1.0, 500)


def test_seconds_of_which_an_overloaded_job_has_no_result_are_missed_and_in_its_backlog():
    """10 per second until 4, 20 until 6, and no more; nothing has a result that was due from 3.5 s on."""
    created = np.arange(0, 3.5, 0.1) + 1e-3
    some = pd.DataFrame({"created_s": created, "latency_ms": 100.0})
    seconds = scaling_timeline(some, ONE, 0.0, 8.0, 500, offered=[(0.0, 10.0), (4.0, 20.0), (6.0, 0.0)])
    assert seconds["offered_per_s"].tolist() == [10, 10, 10, 10, 20, 20, 0, 0]
    assert seconds["missed"].tolist() == [False] * 3 + [True] * 3 + [False] * 2
    assert seconds["backlog"].tolist()[3:] == [5, 25, 45, 45, 45]
    assert scaling_costs({"it": seconds})["late events (%)"].tolist() == [pytest.approx(100 * 50 / 80)]
    nothing = scaling_timeline(some[:0], ONE, 0.0, 2.0, 500, offered=[(0.0, 10.0), (2.0, 0.0)])
    assert nothing["missed"].all() and nothing["backlog"].tolist() == [10, 20]


def test_slots_are_paid_for_until_their_state_has_gone_and_of_a_second_count_the_mean_and_all_stages():
    rows = [
        (0.0, 1, 1, False),  # and before it
        (2.0, 1, 3, False),  # asked for
        (3.0, 2, 2, True),  # some of it has moved
        (4.0, 3, 3, False),
        (5.5, 3, 1, False),  # half a second into this one
        (6.0, 1, 1, True),  # ownership has changed, the state is on its way
        (7.0, 1, 1, False),
    ]
    paid = scaling_timeline(latency(), looks(*rows), -1.0, 8.0, 500)["slots"].tolist()
    assert paid == [1, 1, 1, 3, 3, 3, 3, 3, 1]
    down = [(0.0, 4, 1, False), (1.0, 1, 1, True), (2.0, 1, 1, True), (3.0, 1, 1, False)]
    by_hand = [(4.0, 1, 1, True), (5.0, 2, 2, True), (6.0, 2, 2, False)]
    paid = scaling_timeline(latency(), looks(*down, *by_hand), 0.0, 7.0, 500)["slots"].tolist()
    assert paid == [4, 4, 4, 1, 1, 2, 2], "at every look of a migration in, and not at one of the next"
    half = scaling_timeline(latency(), looks((0.0, 1, 1, False), (3.5, 1, 3, False)), 0.0, 5.0, 500)["slots"]
    assert half.tolist() == [1, 1, 1, 2, 3]
    two = pd.concat([ONE, looks((0.0, 2, 2, False), stage=1)])
    assert set(scaling_timeline(latency(), two, 0.0, 5.0, 500)["slots"]) == {3.0}
    assert scaling_timeline(latency(), ONE.iloc[:0], 0.0, 2.0, 500)["slots"].isna().all()


def timelines():
    few, many = (looks((0.0, n, n, False)) for n in (1, 4))
    return {
        "scaled": scaling_timeline(latency(), looks((0.0, 1, 2, False)), 0.0, 6.0, 500),
        "few": scaling_timeline(latency(), few, 0.0, 6.0, 500),
        "many": scaling_timeline(latency().assign(latency_ms=20.0), many, 0.0, 6.0, 500),
    }


def test_costs_are_slot_seconds_and_missed_seconds_in_which_the_first_job_is_compared_with_each_of_the_others():
    table = scaling_costs(timelines())
    costs = table.set_index("job")
    assert costs["slot-seconds"].to_dict() == {"scaled": 12.0, "few": 6.0, "many": 24.0}
    assert costs["missed seconds"].to_dict() == {"scaled": 2, "few": 2, "many": 0}
    assert costs.loc["scaled", "late events (%)"] == pytest.approx(100 * 40 / 60)
    assert costs.loc["many", ["worst P99 (ms)", "most slots"]].tolist() == [20.0, 4.0]
    assert scaling_sentences(table) == [
        "**scaled** costs 12 slot-seconds and misses its objective in 2 seconds.",
        "That is 100% more slot-seconds than **few**, and as many missed (2 there).",
        "That is 50% fewer slot-seconds than **many**, and 2 seconds more missed (0 there).",
    ]
    nearly = pd.DataFrame({"job": ["scaled", "many"], "slot-seconds": [299.0, 300.0], "missed seconds": [2, 1]})
    assert scaling_sentences(nearly)[1] == (
        "That is about as many slot-seconds as **many**, and 1 second more missed (1 there)."
    )


def test_the_figure_has_a_panel_for_each_number_and_a_line_for_each_job():
    figure = scaling_figure(timelines(), 500)
    load, slots, p99, backlog, missed = figure.axes
    assert [len(ax.lines) for ax in (slots, backlog)] == [3, 3]
    assert len({(line.get_color(), line.get_linestyle()) for line in slots.lines}) == 3
    assert [line.get_ydata().tolist() for line in slots.lines][2] == [4.0] * 6
    assert all(ax.get_title(loc="left") for ax in figure.axes)
    assert [text.get_text() for text in missed.get_yticklabels()] == ["scaled", "few", "many"]
    bars = [patches.get_paths() for patches in missed.collections]
    assert [len(paths) for paths in bars] == [2, 2, 0]
    assert p99.get_yscale() == backlog.get_yscale() == "log"
    assert load.collections


def test_decisions_are_moves_and_moves_that_were_too_dear():
    rows = looks((0.0, 1, 1, False), (1.0, 1, 3, False), (2.0, 3, 3, False))
    rows.loc[2, "stay_cost"] = 5.0
    assert scaling_decisions(rows)["t_s"].tolist() == [1.0, 2.0]
