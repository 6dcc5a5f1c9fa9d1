import pandas as pd
import pytest

from keyshift.analysis.machine import machine_notes, shares, shares_before


def sampled(*seconds):
    """``seconds``: time, and processors that were there, busy and stolen."""
    rows = [
        (at, "machine_cores", kind, value)
        for at, *values in seconds
        for kind, value in zip(("all", "busy", "stolen"), values, strict=True)
    ]
    return pd.DataFrame([*rows, (-3.0, "cpu_cores", "spark_jvm", 9.0)], columns=["t_s", "metric", "instance", "value"])


def test_only_measured_time_before_the_trigger_counts():
    metrics = sampled((-9, 2.0, 2.0, 0.0), (-4, 2.0, 1.0, 0.2), (-2, 2.0, 1.4, 0.0), (1, 2.0, 2.0, 0.0))
    assert shares_before(metrics, -5.0) == (pytest.approx(0.6), pytest.approx(0.05))
    assert shares(metrics)["busy"].tolist() == pytest.approx([1.0, 0.5, 0.7, 1.0])


def test_a_run_without_samples_of_the_machine_knows_no_share():
    assert shares_before(sampled(), -5.0) == (None, None)
    assert shares(sampled()).empty


@pytest.mark.parametrize(
    ("busy", "stolen", "words"),
    [
        (None, None, []),
        (0.89, 0.04, []),
        (0.97, 0.0, ["97% busy", "--set frame_ms=40 or --set rate=1000"]),
        (0.5, 0.2, ["20% of the processors went to others"]),
    ],
)
def test_a_note_says_what_it_means_and_what_to_change(busy, stolen, words):
    found = machine_notes(busy, stolen, 2000.0, 20.0)
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)
