"""Quantiles of times that are only counted by class."""

import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyshift.histogram import LEAST_MS, class_of, quantile


@given(st.lists(st.floats(LEAST_MS, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_half_a_class_from_the_exact_one_at_most(times, share):
    exact = np.quantile(times, share, method="inverted_cdf")
    found = quantile(Counter(map(class_of, times)), share)
    assert exact / 1.03 < found < exact * 1.03


def test_no_time_at_all_has_no_quantile_and_none_is_too_short():
    assert math.isnan(quantile({}, 0.5))
    assert quantile({class_of(-3.0): 1}, 0.5) == quantile({class_of(0.0): 1}, 0.5)
