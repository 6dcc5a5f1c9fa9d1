import pandas as pd
import pytest

from keyshift.analysis.machine import (
    disturbance,
    disturbance_notes,
    disturbed,
    machine_notes,
    shares,
    shares_before,
    with_disturbed,
)
from keyshift.analysis.metrics import over_repetitions, per_second


def sampled(*seconds):
    """``seconds``: time, and processors that were there, busy and stolen."""
    rows = [
        (at, "machine_cores", kind, value)
        for at, *values in seconds
        for kind, value in zip(("all", "busy", "stolen"), values, strict=True)
    ]
    return pd.DataFrame([*rows, (-3.0, "cpu_cores", "spark_jvm", 9.0)], columns=["t_s", "metric", "instance", "value"])


def test_only_measured_time_before_the_trigger_counts_and_who_does_not_know_the_host_knows_no_share_of_it():
    metrics = sampled((-9, 2.0, 2.0, 0.0), (-4, 2.0, 1.0, 0.2), (-2, 2.0, 1.4, 0.0), (1, 2.0, 2.0, 0.0))
    assert shares_before(metrics, -5.0) == (pytest.approx(0.6), pytest.approx(0.05))
    assert shares(metrics)["busy"].tolist() == pytest.approx([1.0, 0.5, 0.7, 1.0])
    assert shares_before(metrics[metrics["instance"] != "stolen"], -5.0) == (pytest.approx(0.6), None)
    assert shares_before(sampled(), -5.0) == (None, None) and shares(sampled()).empty


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


def looks(*seconds):
    """``seconds``: the time of a sample, and whether it was disturbed."""
    rows = [(at, "disturbed", "machine", float(marked)) for at, marked in seconds]
    return pd.DataFrame(rows, columns=["t_s", "metric", "instance", "value"])


def latencies(**of):
    """``of``: second, and the latency of two events in it."""
    rows = [(float(second) + part, value) for second, value in of.items() for part in (0.2, 0.7)]
    return pd.DataFrame(rows, columns=["created_s", "latency_ms"])


LATENCY = latencies(**{"-6": 900.0, "-4": 20.0, "-3": 500.0, "-2": 400.0, "-1": 21.0, "0": 70.0, "1": 80.0})


def test_a_sample_is_of_the_second_that_it_ends_in_and_of_the_one_before():
    assert disturbed(looks((-1.7, 1), (-0.7, 0), (1.0, 1))) == {-3, -2, 0, 1}
    assert disturbed(looks((-1.7, 0))) == set()
    assert disturbed(sampled((-1.7, 2.0, 1.0, 0.0))) is None, "nobody looked"


@pytest.mark.parametrize(
    ("samples", "p99_ms", "seconds"),
    [
        # -3, -2, 0 and 1; not before or after.
        (looks((-6.9, 1), (-3.9, 0), (-1.7, 1), (1.5, 1), (9.5, 1)), pytest.approx(21.0), 4.0),
        (looks(*((at - 0.5, 1) for at in range(-6, 3))), None, 7.0),
        (sampled(), None, None),
    ],
    ids=["some", "no quiet second", "no look"],
)
def test_p99_before_is_given_without_the_seconds_that_others_disturbed(samples, p99_ms, seconds):
    assert disturbance(LATENCY, samples, -5.0) == {"p99_undisturbed_ms": p99_ms, "disturbed_s": seconds}


@pytest.mark.parametrize(
    ("p99_ms", "quiet_ms", "seconds", "words"),
    [
        (500.0, 21.0, 4.0, ["4 seconds", "500 ms, and 21 ms without them"]),
        (500.0, None, 7.0, ["7 seconds", "nobody knows"]),
        (25.0, 21.0, 4.0, []),
        (500.0, None, None, []),
        (25.0, 25.0, 0.0, []),
        (None, None, 3.0, []),
    ],
)
def test_a_note_says_what_others_have_made_of_the_p99(p99_ms, quiet_ms, seconds, words):
    found = disturbance_notes(p99_ms, {"p99_undisturbed_ms": quiet_ms, "disturbed_s": seconds})
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)


def test_seconds_know_whether_they_were_disturbed_and_of_repetitions_at_least_half_must_be():
    marked = with_disturbed(per_second(LATENCY), looks((-1.7, 1)))
    assert marked.loc[marked["disturbed"], "second"].tolist() == [-3, -2]
    quiet = with_disturbed(per_second(LATENCY), looks((-1.7, 0)))
    unknown = with_disturbed(per_second(LATENCY), sampled())
    assert over_repetitions([marked, quiet])["disturbed"].sum() == 2
    assert over_repetitions([marked, quiet, quiet])["disturbed"].sum() == 0
    assert "disturbed" not in over_repetitions([marked, unknown])
