import json

import pytest

from bench.__main__ import bench
from bench.measurements import Measurement, table
from keyshift.model.errors import BadInput


@pytest.mark.parametrize(
    ("keyshift", "other", "more_is_better", "ratio"),
    [
        ([11.0, 22.0, 99.0], [10.0, 20.0, 90.0], False, 1.1),
        ([80.0], [100.0], True, 1.25),
        ([3.0, 1.0, 2.0], [], False, None),
    ],
    ids=["of neighbours, so that drift cancels", "a lower rate is above one", "of nothing"],
)
def test_a_ratio_is(keyshift, other, more_is_better, ratio):
    row = Measurement("a", "p50", "ms", keyshift, other, 1.1, more_is_better)
    assert row.ratio == (ratio and pytest.approx(ratio))
    raw = json.loads(json.dumps(row.to_json()))
    assert (raw["keyshift"], raw["other"], raw["ratio"], raw["aim"]) == (keyshift, other, row.ratio, 1.1)
    assert raw["keyshift_median"] == sorted(keyshift)[len(keyshift) // 2]
    assert raw["other_median"] == (sorted(other)[len(other) // 2] if other else None)


def test_repetitions_that_have_no_partner_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        _ = Measurement("a", "p50", "ms", keyshift=[1.0, 2.0], other=[1.0]).ratio


def test_the_table_shows_units_medians_ranges_ratios_and_aims():
    text = table(
        [
            Measurement("a", "p50", "ms", keyshift=[12.0, 10.0, 11.0], other=[10.0, 10.0, 10.0], aim=1.1),
            Measurement("a", "rate", "events/s", keyshift=[90_000.0], other=[100_000.0], more_is_better=True),
            Measurement("c", "p99", "ms", keyshift=[3.0], other=[]),
        ]
    )
    head, p50, rate, p99 = (line.split() for line in text.splitlines())
    assert head[:4] == ["part", "measure", "unit", "keyshift"]
    assert p50 == ["a", "p50", "ms", "11.0", "10.0-12.0", "10.0", "10.0-10.0", "1.10", "<=", "1.10", "met"]
    assert rate == ["a", "rate", "events/s", "90000", "90000-90000", "100000", "100000-100000", "1.11"]
    assert p99 == ["c", "p99", "ms", "3.0", "3.0-3.0"]


def test_a_report_that_could_not_be_written_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(BadInput, match="folder does not exist"):
        bench(part=None, quick=True, out=tmp_path / "missing" / "bench.json")
