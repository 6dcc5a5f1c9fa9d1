"""Costs from migrations that were made up with known ones, and what is said of them."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from small_cluster import FREE

from keyshift.forecast import Costs, MeasuredRun, fit
from keyshift.forecast.fitting import MOMENTS
from keyshift.forecast.model import LEVELS
from keyshift.model.errors import BadInput

TRUE = replace(
    FREE, request_s=0.05, notify_s=0.004, answer_s=0.003, ack_s=0.001, handover_s=0.002, stream_s=0.003, unit_s=0.001,
    byte_s=4e-9, restart_s=2.5, stored_byte_s=2e-8, event_s=5e-6, row_s=4e-4, before_ms=tuple(5 + 10 * LEVELS),
)  # fmt: skip


def run(steps, units, unit_bytes, frame_s=0.02, routers=2, pairs=1, restarts=False):
    """``steps`` of so many units from a slot to another, in so many pairs, on two cores, at the costs of ``TRUE``."""
    rows, now = [], TRUE.request_s + TRUE.notify_s + TRUE.answer_s + 2 * pairs * TRUE.ack_s
    for step in range(steps):
        aligned = now + TRUE.notify_s + frame_s * (1 - 0.5 / routers)
        of_pair = TRUE.stream_s + units * (TRUE.unit_s + TRUE.byte_s * unit_bytes)
        installed = aligned + TRUE.handover_s + pairs * of_pair / 2
        if restarts:
            installed = now + TRUE.restart_s + TRUE.stored_byte_s * units * unit_bytes / 2
        for pair, unit in product(range(pairs), range(units)):
            rows.append((step, unit, 2 * pair, 2 * pair + 1, unit_bytes, now, aligned, installed, installed))
        # Two slots of each pair end this step, and have prepared the next.
        now = installed + TRUE.answer_s + 4 * pairs * TRUE.ack_s
    names = ["step", "unit", "source", "destination", "bytes", "switched_s", "aligned_s", "installed_s", "drained_s"]
    return MeasuredRun(
        restarts=restarts,
        copies_first=False,
        routers=routers,
        frame_s=frame_s,
        rate=1000.0,
        slots=2,
        owners=(2, 2),
        rows_per_s=2 * routers / frame_s,
        cpus=2,
        event_s=TRUE.event_s,
        event_cpu_s=TRUE.event_s,
        cores=1000.0 * TRUE.event_s + 2 * routers / frame_s * TRUE.row_s,
        latency_ms=np.array(TRUE.before_ms) + 1000 * frame_s * LEVELS,
        migration=pd.DataFrame(rows, columns=names),
    )


LIVE = [run(8, 1, 1 << 20), run(1, 8, 1 << 20), run(4, 2, 1 << 24, frame_s=0.1), run(4, 1, 1 << 20, pairs=2)]
RESTARTS = [run(1, 8, size, restarts=True) for size in (1 << 20, 1 << 24)]


def test_it_finds_what_runs_have_cost():
    found = fit([*LIVE, *RESTARTS])
    for name, value in found.costs.to_json().items():
        assert value == pytest.approx(getattr(TRUE, name), rel=1e-6), name
    assert found.table["off by (%)"].max() < 1e-6
    assert found.table.loc["for each byte, of both sides' cores", "value"] == pytest.approx(4.0)


def test_waiting_for_copies_is_no_request_and_the_time_of_an_event_that_takes_no_core_makes_rows_no_cheaper():
    moments = LIVE[0].migration[MOMENTS] + 3.0
    late = replace(LIVE[0], copies_first=True, migration=LIVE[0].migration.assign(**moments))
    assert fit([*LIVE, *[late] * 5]).costs.request_s == pytest.approx(TRUE.request_s)
    found = fit([replace(each, event_s=TRUE.event_s + 5e-4) for each in LIVE])
    assert found.costs.row_s == pytest.approx(TRUE.row_s)
    assert found.costs.event_s == pytest.approx(TRUE.event_s + 5e-4)


def test_how_far_off_runs_are_is_said():
    late = LIVE[0].migration.assign(aligned_s=LIVE[0].migration["aligned_s"] + 0.004)
    found = fit([*LIVE, replace(LIVE[0], migration=late)])
    row = found.table.loc["from what the coordinator publishes to whoever acts by it"]
    assert (row["value"], row["from"]) == (pytest.approx(4.0), "5 runs")
    assert row["off by (%)"] == pytest.approx(0.0, abs=1e-6)  # of most of them
    assert fit([LIVE[0], replace(LIVE[0], migration=late)]).table["off by (%)"].max() > 20


def test_restarts_with_the_same_state_do_not_say_what_state_costs():
    for restarts in ([], RESTARTS[:1], [RESTARTS[0], RESTARTS[0]]):
        costs = fit([*LIVE, *restarts]).costs
        assert math.isnan(costs.restart_s) and math.isnan(costs.stored_byte_s)
        again = Costs.from_json(costs.to_json())
        assert repr(again) == repr(costs)


def test_a_restart_has_a_core_for_each_slot_that_owns_state_then():
    """Written by one, read by two."""
    took = [TRUE.restart_s + TRUE.stored_byte_s * 8 * size * (1 / 2 + 1 / 4) for size in (1 << 20, 1 << 24)]
    late = [
        replace(
            each, owners=(1, 2), migration=each.migration.assign(installed_s=each.migration["switched_s"] + seconds)
        )
        for each, seconds in zip(RESTARTS, took, strict=True)
    ]
    assert fit([*LIVE, *late]).costs.stored_byte_s == pytest.approx(TRUE.stored_byte_s)


def test_no_cost_is_below_nothing_and_state_takes_some_time_even_if_few_runs_do_not_tell():
    first, second, *others = LIVE
    quick = second.migration.assign(installed_s=second.migration["aligned_s"] + 0.017)
    costs = fit([first, replace(second, migration=quick), *others]).costs
    assert costs.unit_s == 0 < costs.byte_s
    larger = second.migration.assign(bytes=4 << 20)  # in the same time
    assert fit([first, second, replace(second, migration=larger)]).costs.byte_s > 0


def test_of_runs_from_which_costs_do_not_follow_none_are_made_up():
    unseen = [replace(each, cores=math.nan) for each in LIVE]
    assert fit([LIVE[0], *unseen[1:]]).costs.row_s == pytest.approx(TRUE.row_s)
    for runs, words in (
        (unseen, "of none of 4 runs is known what its Python workers took"),
        ([LIVE[1]], "none of 1 runs has several steps; measure one of fluid"),
        ([], r"no run counts \(docs/simulator\.md\); measure one of fluid"),
    ):
        with pytest.raises(BadInput, match=words):
            fit(runs)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "must be an object with request_s"),
        (FREE.to_json() | {"more": 1}, "must be an object with request_s"),
        (FREE.to_json() | {"row_s": -1}, "row_s = -1.0"),
        (FREE.to_json() | {"row_s": "much"}, "could not convert"),
        (FREE.to_json() | {"notify_s": None}, "notify_s = nan"),
        (FREE.to_json() | {"byte_s": 0}, "byte_s = 0"),
        (FREE.to_json() | {"before_ms": [1.0]}, "must be 200 finite numbers"),
    ],
)
def test_costs_of_a_file_are_checked(raw, words):
    with pytest.raises(BadInput, match=words):
        Costs.from_json(raw)
