"""How fast something grows: on made-up lives of processes whose growth is known."""

import numpy as np
import pandas as pd
import pytest

from bench.soak.growth import HOUR_S, growth


def life(per_h, noise=0.0, begin=100.0, seconds=HOUR_S, seed=1, every_s=5.0):
    """Values of a process that grows so fast, by seconds."""
    t = np.arange(0.0, seconds, every_s)
    return pd.Series(begin + per_h * t / HOUR_S + np.random.default_rng(seed).normal(0, noise, len(t)), t)


def test_a_leak_is_measured_however_noisy_it_is():
    found = growth([life(30.0, noise=10.0)], 60, 60)
    assert found.low < 30 < found.high
    assert found.low > 10
    assert not found.flat(4.0)


@pytest.mark.parametrize(
    ("lives", "tolerance"),
    [*(([life(0.0, noise=10.0, seed=seed)], 4.0) for seed in range(5)), ([life(0.0)], 0.0), ([life(-50.0)], 0.0)],
    ids=[*(f"noise {seed}" for seed in range(5)), "nothing changes", "it shrinks"],
)
def test_it_does_not_grow(lives, tolerance):
    assert growth(lives, 60, 60).flat(tolerance)


def test_a_leak_shows_within_lives_though_each_new_process_begins_below():
    lives = [life(40.0, noise=2.0, begin=100, seconds=900, seed=seed) for seed in range(6)]
    assert growth(lives, 60, 60).slope == pytest.approx(40, rel=0.2)


def test_lives_that_begin_with_more_each_time_do_not_grow():
    lives = [life(0.0, begin=100 * number, seconds=900) for number in range(1, 6)]
    found = growth(lives, 60, 60)
    assert (found.slope, found.high) == (0, 0)
    assert found.median == 300


def test_the_warm_up_of_each_life_and_outliers_do_not_count():
    each = life(0.0)
    each[each.index < 1800] = each.index[each.index < 1800] / 18
    each.iloc[400:404] = 5000
    found = growth([each], 1800, 60)
    assert (found.slope, found.low, found.high) == (0, 0, 0)
    assert growth([each], 0, 60).slope > 0
    assert found.points == 30


def test_a_stair_is_growth():
    t = np.arange(0, HOUR_S, 5)
    found = growth([pd.Series(200 + 10 * (t // 600), t)], 0, 60)
    assert found.slope == pytest.approx(60, rel=0.1)
    assert not found.flat(4.0)


def test_lives_that_are_too_short_tell_nothing():
    assert growth([life(10.0, seconds=250), life(10.0, seconds=100)], 60, 60) is None
    assert growth([], 0, 60) is None
    assert growth([life(10.0, seconds=250), life(10.0)], 60, 60).points == 59
