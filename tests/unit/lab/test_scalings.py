"""Decisions that are kept for as long as a job lasts: all of each, in little room."""

import math
import tracemalloc
from dataclasses import replace

import pytest

from keyshift.lab.scalings import Scalings
from keyshift.planner.scaling import Look, Scaling, StageLook, StageScaling

COSTS = {"stay_cost": 7.0, "move_cost": 6.0, "migration_s": 5.0, "migration_missed_s": 4.0}
ONE = Scaling(
    Look(1.5, 2000.0, 30.0, 1.0, (StageLook(2, 900.0, 1.5, 1800.0), StageLook(3, 1800.0, 2.5)), True, 0.25),
    "why",
    (StageScaling(2, 5, 4, 600.0, 1000.0, 0.8, 0.9), StageScaling(3, 3, 3, 700.0, 2000.0, 0.95, 1.0)),
    **COSTS,
)
OTHER = replace(
    ONE, look=replace(ONE.look, migrating=False, migrated_at_s=None), reason="another", stages=ONE.stages[::-1]
)
OTHER = replace(OTHER, look=replace(OTHER.look, stages=ONE.look.stages[::-1]))


def test_what_was_kept_comes_back_as_it_was():
    kept = Scalings(2)
    for made in (ONE, OTHER, ONE):
        kept.append(made)
    assert list(kept) == [ONE, OTHER, ONE] and kept[-2:] == [OTHER, ONE] and kept[1] == OTHER
    assert (len(kept), kept.moves) == (3, 3)
    assert isinstance(kept[0].stages[0].target, int) and kept[0].look.migrating is True
    with pytest.raises(IndexError):
        kept[3]


def test_decisions_that_change_nothing_are_no_moves_and_what_is_not_known_stays_so():
    kept = Scalings(1)
    unknown = StageScaling(2, 2, 2, math.nan, 0.0, math.nan, 1.0)
    kept.append(Scaling(Look(0.0, 0.0, 0.0, 0.0, (StageLook(2, 0.0, 0.0),)), "a measurement begins", (unknown,)))
    (made,) = kept
    assert kept.moves == 0 and not made.moves
    assert math.isnan(made.stages[0].utilisation) and math.isnan(made.stay_cost)
    assert made.look.stages[0].emitted is None and made.look.migrated_at_s is None


def test_a_decision_takes_less_than_200_bytes():
    kept = Scalings(1)
    stay = replace(ONE, stages=ONE.stages[:1], look=replace(ONE.look, stages=ONE.look.stages[:1]))
    tracemalloc.start()
    try:
        for number in range(5000):
            reason = ("so many are wanted", "other looks have to agree")[number % 2]
            kept.append(replace(stay, look=replace(stay.look, at_s=1.5 * number), reason=f"{reason}"))
        assert tracemalloc.get_traced_memory()[0] / 5000 < 200
    finally:
        tracemalloc.stop()
    assert [kept[0].look.at_s, kept[-1].look.at_s] == [0.0, 1.5 * 4999]
