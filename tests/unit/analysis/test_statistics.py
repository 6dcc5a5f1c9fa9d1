"""Intervals and differences, against printed tables and textbook numbers."""

import numpy as np
import pytest

from keyshift.analysis import statistics
from keyshift.model.errors import BadInput

NAN = float("nan")


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (31, 2.042)])
def test_the_interval_is_student_s_as_in_the_printed_tables(n, t):
    values = [1.0, 2.0] * n
    found = statistics.interval(values[:n])
    half = t * np.std(values[:n], ddof=1) / np.sqrt(n)
    assert found.n == n
    assert found.high - found.mean == pytest.approx(half, rel=1e-3)
    assert found.mean - found.low == pytest.approx(half, rel=1e-3)


def test_an_interval_of_one_value_is_open_and_of_none_is_refused():
    one = statistics.interval([3.0, None, NAN])
    assert (one.mean, one.n) == (3.0, 1)
    assert np.isnan(one.low) and np.isnan(one.high)
    with pytest.raises(BadInput, match="none of the values"):
        statistics.interval([None])


@pytest.mark.parametrize(("apart", "differs"), [(2.447, False), (2.571, True)])
def test_points_differ_by_welch_s_interval_as_in_the_textbook(apart, differs):
    """Of two samples with variances 4 and 1 (n = 5 each), so that the error of their difference is 1: it has 5.88
    degrees of freedom; t(5) = 2.571 and t(6) = 2.447.
    """
    one, other = np.array([-2, -1, 0, 1, 2]) * np.sqrt(1.6), apart + np.array([-2, -1, 0, 1, 2]) * np.sqrt(0.4)
    assert statistics.differ(one, other) is differs
    assert statistics.differ(other, one) is differs


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ([20, 21, 22], [41, 42, 43], True),
        ([20, 60, 40], [30, 120, 60], False),
        ([60, 65, 62], [5000, 6000, 18000], True),  # by factors; by differences it may be chance
        ([0, 65, 62], [5000, 6000, 18000], False),
        ([5, 5], [5, 5], False),
        ([6, 6, 6], [6, 6], False),  # the means of their logarithms differ by rounding
        ([5, 5], [6, 6], True),
        ([0.3, 0.3, 0.3], [6, 7, 6.5], True),
        ([20], [41, 42, 43], None),
        ([20, None, NAN], [41, 42], None),
    ],
)
@pytest.mark.filterwarnings("error")
def test_points_differ_only_if_their_difference_cannot_be_chance(one, other, differs):
    assert statistics.differ(one, other) is differs
    assert statistics.differ(other, one) is differs


def test_chance_alone_is_called_a_difference_as_seldom_as_promised():
    random = np.random.default_rng(7)
    pairs = [(random.normal(0, 1, 4), random.normal(0, 3, 4)) for _ in range(1000)]
    assert np.mean([statistics.differ(one, other) for one, other in pairs]) < 0.07
    assert np.mean([statistics.differ(np.exp(one), np.exp(other)) for one, other in pairs]) < 0.07
