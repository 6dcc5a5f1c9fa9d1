"""What Prometheus reads of a live job: the labels ``stage`` and ``slot`` wherever a slot is meant, and ``replica`` if
one of several has counted something.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from keyshift.lab.live.job import LiveJob
from keyshift.lab.live.status import REPLICA_STATES, JobState, ReplicaStatus, ScalingStatus, StageStatus
from keyshift.lab.run_metrics import states_at
from keyshift.traffic.messages import BUCKETS_MS

LABELS = ("stage", "slot")
# Name, kind, what a slot measures by that name, and what that means.
OF_A_SLOT = (
    ("records", CounterMetricFamily, "records", "records processed in the attempt under way"),
    ("busy_seconds", CounterMetricFamily, "busy_s", "time spent processing in the attempt under way"),
    ("queue_bytes", GaugeMetricFamily, "queue_bytes", "bytes of records that wait in the slot"),
    ("queue_peak_bytes", GaugeMetricFamily, "queue_peak_bytes", "most bytes of records that have waited in the slot"),
    ("memory_peak_bytes", GaugeMetricFamily, "rss_peak_bytes", "largest resident memory of the slot's process"),
    ("state_bytes", GaugeMetricFamily, "state_bytes", "bytes of state in the newest complete snapshot"),
    ("units", GaugeMetricFamily, "units", "units of state that the slot owns"),
    ("moving", GaugeMetricFamily, "moving", "1 while a step under way moves state from or to the slot"),
)


class Metrics(Collector):
    """The metrics of a live job, which is read anew at each scrape."""

    def __init__(self, job: LiveJob) -> None:
        self._job = job

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``."""
        told = self._job.status()
        states = {each.value: each == told["state"] for each in JobState}
        yield StateSetMetricFamily("keyshift_job_state", "state of the job", states)
        if not told["stages"]:
            return
        yield CounterMetricFamily("keyshift_events_offered", "events sent to Kafka", told["offered"])
        # No counter: what came out of an attempt that died counts no more. Prometheus would see one that began anew.
        yield GaugeMetricFamily("keyshift_results", "results that count so far", told["results"])
        yield CounterMetricFamily("keyshift_deaths", "deaths of the query, or of replicas", told["deaths"])
        yield CounterMetricFamily("keyshift_snapshots", "complete snapshots", told["snapshots"])
        yield GaugeMetricFamily("keyshift_offered_rate", "events per second that are offered", told["rate"])
        yield GaugeMetricFamily("keyshift_results_rate", "results of the last second", told["results_per_s"])
        activity = StateSetMetricFamily("keyshift_activity", "what happens to the state now", labels=("stage",))
        for stage, now in self._job.activities.items():
            activity.add_metric((stage,), states_at(now))
        yield activity
        if "replicas" in told:
            yield from _of_replicas(told["replicas"])
        if told["autoscaler"]:
            yield from _scaling(told["autoscaler"])
        yield from _of_slots(told["stages"], "replicas" in told)
        yield self._latencies(list(told["stages"])[-1])

    def _latencies(self, stage: str) -> Metric:
        """Latencies of the last stage, whose results come out."""
        family = HistogramMetricFamily("keyshift_latency_seconds", "event due to result in Kafka's log", labels=LABELS)
        bounds = [*(str(bound_ms / 1000) for bound_ms in BUCKETS_MS), "+Inf"]
        for slot, (sum_ms, within) in sorted(self._job.latencies.items()):
            buckets = list(zip(bounds, accumulate(within), strict=True))
            family.add_metric((stage, str(slot)), buckets, sum_ms / 1000)
        return family


def _of_slots(stages: Mapping[str, StageStatus], replicas: bool) -> Iterator[Metric]:
    """Metrics of slots. ``replicas``: whether there are several, one of which has told of its slots."""
    for name, kind, measure, meaning in OF_A_SLOT:
        # Of another replica it is another counter: it may be far below, and Prometheus would see one that began anew.
        whose = ("replica",) if replicas and kind is CounterMetricFamily else ()
        family = kind(f"keyshift_{name}", meaning, labels=(*LABELS, *whose))
        for stage, told in stages.items():
            for slot, of_slot in told["of_slot"].items():
                if (value := of_slot.get(measure)) is not None:
                    family.add_metric((stage, str(slot), *(str(of_slot[label]) for label in whose)), float(value))
        if family.samples:
            yield family


def _of_replicas(replicas: Mapping[int, ReplicaStatus]) -> Iterator[Metric]:
    """Metrics of replicas, with the label ``replica``, its number."""
    labels = ("replica",)
    state = StateSetMetricFamily("keyshift_replica_state", "state of the replica", labels=labels)
    meaning = "how far the newest results of the replica are behind those of the one that has come furthest"
    lag = GaugeMetricFamily("keyshift_replica_lag_seconds", meaning, labels=labels)
    deaths = CounterMetricFamily("keyshift_replica_deaths", "deaths of the replica", labels=labels)
    for number, how in replicas.items():
        of = (str(number),)
        state.add_metric(of, {each.replace(" ", "_"): each == how["state"] for each in REPLICA_STATES})
        deaths.add_metric(of, how["deaths"])
        if (lag_ms := how["lag_ms"]) is not None:
            lag.add_metric(of, lag_ms / 1000)
    yield state
    yield deaths
    if lag.samples:
        yield lag


def _scaling(autoscaler: ScalingStatus) -> Iterator[Metric]:
    yield CounterMetricFamily("keyshift_autoscaler_looks", "decisions of the autoscaler", autoscaler["looks"])
    yield CounterMetricFamily("keyshift_autoscaler_moves", "decisions that moved state", autoscaler["moves"])
    target = GaugeMetricFamily("keyshift_target_slots", "slots that the autoscaler has decided on", labels=("stage",))
    for decision in autoscaler["decisions"][-1:]:
        for stage, decided in decision["stages"].items():
            target.add_metric((stage,), decided["target"])
    if target.samples:
        yield target
