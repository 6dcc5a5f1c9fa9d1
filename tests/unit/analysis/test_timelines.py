"""What happened second by second, on tables small enough to compute by hand."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis import timelines
from keyshift.model.errors import BadInput


def stalled(stall_s: float = 2.0, per_s: int = 100) -> pd.DataFrame:
    """Ten seconds either side of the trigger; results of events in the stall come at its end."""
    created = np.arange(-10 * per_s, 10 * per_s) / per_s
    late = np.where((created >= 0) & (created < stall_s), (stall_s - created) * 1000, 0.0)
    return pd.DataFrame({"created_s": created, "latency_ms": late + 1.0})


METRICS = pd.DataFrame(
    [
        (0.2, "cpu_cores", "spark_jvm", 0.5),
        (0.6, "cpu_cores", "spark_jvm", 0.7),
        (0.3, "cpu_cores", "python_workers", 1.0),
        (1.3, "cpu_cores", "python_workers", 1.4),
        (0.3, "rss_mib", "spark_jvm", 700.0),
        (4.5, "fault", "kill slot", 1.0),
        (1.5, "fault", "kill coordinator", 1.0),
        (5.5, "death", "query died", 1.0),
    ],
    columns=["t_s", "metric", "instance", "value"],
)


def test_the_tail_has_the_quantiles_of_a_known_distribution():
    found = timelines.tail({"even": pd.DataFrame({"latency_ms": np.arange(100_001) / 1000}), "none": stalled()[:0]})
    even, none = found.to_dict("records")
    assert [even[name] for name in timelines.TAIL] == pytest.approx([50, 90, 99, 99.9, 99.99, 100])
    assert even["results"] == 100_001
    assert none["results"] == 0 and np.isnan(none["max"])


def test_latency_belongs_to_the_rate_that_was_offered_when_its_event_was_due():
    """The trigger is at 4 s of measured time; 1 s of warm-up at 5 events/s, then 5, 50, silence, and 5 once more."""
    run = pd.DataFrame({"created_s": [-4.5, -3.5, -3.0, -1.0, 0.5, 2.0], "latency_ms": [99.0, 1, 2, 3, 7, 99]})
    steps = [(-1.0, 5.0), (1.0, 50.0), (2.0, 0.0), (4.0, 5.0), (6.0, 0.0)]
    found = timelines.at_rates([run, run[1:2]], steps, trigger_s=4.0).set_index("rate")
    assert found["results"].to_dict() == {0.0: 1, 5.0: 3, 50.0: 1}, "not of the warm-up, and not behind the load"
    assert found["p50_ms"].to_dict() == {0.0: 3.0, 5.0: 1.0, 50.0: 2.0}
    assert found.loc[5.0, "p99_ms"] == pytest.approx(np.percentile([1, 1, 7], 99))
    with pytest.raises(BadInput, match="at_rates: no column latency_ms"):
        timelines.at_rates([run[["created_s"]]], steps, trigger_s=4.0)


def test_throughput_counts_results_when_they_come_and_ends_with_the_load():
    found = timelines.throughput(stalled()).set_index("second")["results_per_s"]
    assert (found.index[0], found.index[-1]) == (-9, 8)
    assert found[[-1, 0, 1, 2]].tolist() == [100, 0, 0, 300]
    assert timelines.throughput(stalled()[:0]).empty
    run = pd.DataFrame({"created_s": np.arange(-2.0, 9.97, 0.01), "latency_ms": 1.0})
    run.loc[len(run) - 1, "latency_ms"] = 1100.0
    found = timelines.throughput(run)
    assert found["second"].tolist() == list(range(-1, 9)) and found["results_per_s"].between(99, 101).all()


def test_what_an_instance_had_that_is_gone_stays_in_a_metric_that_only_grows():
    rows = [(t + 0.5, pod, 10.0 * t) for t in range(-4, 3) for pod in ("pod 1", "pod 2") if pod == "pod 1" or t < 0]
    sent = pd.DataFrame(rows, columns=["t_s", "instance", "value"]).assign(metric="sent_mib")
    assert timelines.so_far(sent, "sent_mib").diff().dropna().tolist() == [20, 20, 20, 10, 10, 10]
    gone = sent[(sent["instance"] == "pod 1") | (sent["t_s"] < -1)]
    assert timelines.rate_before(gone, "sent_mib", 3) == (20 + 10) / 2


def test_misses_are_counted_in_seconds():
    assert timelines.slo_misses(stalled(2.0), slo_ms=500) == 2
    assert timelines.slo_misses(stalled(2.0), slo_ms=500, since_s=1) == 1
    with pytest.raises(BadInput, match="slo_ms = 0: must be a latency above 0"):
        timelines.slo_misses(stalled(), 0)


def test_resources_are_averaged_by_second_and_added_up_and_faults_are_told_in_their_order():
    found = timelines.resources(METRICS, "cpu_cores")
    assert found.loc[0, ["spark_jvm", "python_workers", "total"]].tolist() == pytest.approx([0.6, 1.0, 1.6])
    assert np.isnan(found.loc[1, "spark_jvm"])
    assert found.loc[1, "total"] == pytest.approx(1.4)
    with pytest.raises(BadInput, match="no metric 'cpu' in this run; it has cpu_cores, death, fault, rss_mib"):
        timelines.resources(METRICS, "cpu")
    assert timelines.faults(METRICS) == [(1.5, "kill coordinator"), (4.5, "kill slot"), (5.5, "query died")]
    assert timelines.faults(METRICS, ["death"]) == [(5.5, "query died")]
    assert timelines.faults(METRICS[:3]) == []


def test_the_mean_before_the_trigger_is_of_the_seconds_right_before_it():
    rows = [
        (t_s + 0.5, "cpu_cores", name, 1.0 + t_s) for t_s in range(-4, 3) for name in ("spark_jvm", "python_workers")
    ]
    metrics = pd.DataFrame(rows, columns=["t_s", "metric", "instance", "value"])
    assert timelines.mean_before(metrics, "cpu_cores", 2) == -1.0, "of seconds -2 and -1, two processes"
    assert np.isnan(timelines.mean_before(metrics[metrics["t_s"] > 0], "cpu_cores", 2))
