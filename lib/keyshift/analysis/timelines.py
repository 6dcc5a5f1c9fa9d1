"""What happened second by second beside latency: results, processors, memory, faults. Pure: tables in, frames out.

Seconds are relative to the trigger, as in ``metrics``. What cannot be computed is NaN or None, never 0.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from keyshift.analysis.metrics import DEATH, FAULT, need, per_second
from keyshift.analysis.tables import MIB
from keyshift.model.errors import BadInput

TAIL = {"P50": 0.5, "P90": 0.9, "P99": 0.99, "P99.9": 0.999, "P99.99": 0.9999, "max": 1.0}


def tail(latencies: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The ends of some distributions: a row per name, with the columns of ``TAIL`` in ms, and ``results``.

    ``latencies``: name to a latency table. Quantiles of few results are interpolated: P99.9 of 100 is near the largest.
    """
    rows = []
    for name, latency in latencies.items():
        need(latency, ["latency_ms"], f"tail, {name}")
        values = latency["latency_ms"].to_numpy("float64")
        ends = np.quantile(values, list(TAIL.values())) if len(values) else np.full(len(TAIL), np.nan)
        rows.append({"name": name, **dict(zip(TAIL, ends.tolist(), strict=True)), "results": len(values)})
    return pd.DataFrame(rows, columns=["name", *TAIL, "results"])


def slo_misses(latency: pd.DataFrame, slo_ms: float, since_s: float = -np.inf) -> int:
    """In how many seconds events created from ``since_s`` on missed ``slo_ms``: their P99 was above it."""
    if not slo_ms > 0:
        raise BadInput(f"slo_ms = {slo_ms}: must be a latency above 0, in ms")
    need(latency, ["created_s", "latency_ms"], "slo_misses")
    return int((per_second(latency[latency["created_s"] >= since_s])["p99_ms"] > slo_ms).sum())


def at_rates(latencies: Sequence[pd.DataFrame], steps: Sequence[tuple[float, float]], trigger_s: float) -> pd.DataFrame:
    """Latency of all events that were due while a source had each of its rates: columns rate (ascending), results,
    p50_ms, p99_ms. The warm-up is left out.

    ``latencies``: tables of runs. ``steps``: seconds of measured time from which on so many events per second are
    offered, ascending; the last one ends the load. ``trigger_s``: when the trigger is in measured time.
    """
    together = pd.concat(latencies)
    need(together, ["created_s", "latency_ms"], "at_rates")
    moments, rates = (np.array(column, dtype="float64") for column in zip(*steps, strict=True))
    due_s = together["created_s"].to_numpy("float64") + trigger_s
    stretch = np.searchsorted(moments, due_s, side="right") - 1
    chosen = (due_s >= 0) & (stretch < len(steps) - 1)
    latency = together.loc[chosen, "latency_ms"].astype("float64")
    by_rate = latency.groupby(pd.Series(rates[stretch[chosen]], index=latency.index, name="rate"))
    measures = {"results": by_rate.size(), "p50_ms": by_rate.quantile(0.5), "p99_ms": by_rate.quantile(0.99)}
    return pd.DataFrame(measures).reset_index()


def throughput(latency: pd.DataFrame) -> pd.DataFrame:
    """Results by the second in which they *came*: columns second (int), results_per_s; 0 where none came.

    The seconds in which the load began and ended are left out, as they are not whole, and all behind it.
    """
    need(latency, ["created_s", "latency_ms"], "throughput")
    came = np.floor(latency["created_s"].to_numpy("float64") + latency["latency_ms"].to_numpy("float64") / 1e3)
    if not len(came):
        return pd.DataFrame({"second": np.empty(0, "int64"), "results_per_s": np.empty(0, "int64")})
    first, ended = int(came.min()), math.floor(latency["created_s"].max())
    counts = np.bincount((came - first).astype("int64"))
    seconds = pd.DataFrame({"second": np.arange(len(counts)) + first, "results_per_s": counts}).iloc[1:]
    return seconds[seconds["second"] < ended]


def resources(metrics: pd.DataFrame, metric: str) -> pd.DataFrame:
    """``metric`` (``rss_mib``, ``cpu_cores``, …) over time, a column for each instance and one for their ``total``.

    Index: second (int). Samples of one second are averaged; an instance that was not sampled then is NaN, and so is
    the total only if none was. Raises BadInput naming the metrics there are if there is none of this name.
    """
    need(metrics, ["t_s", "metric", "instance", "value"], "resources")
    chosen = metrics[metrics["metric"] == metric]
    if chosen.empty:
        raise BadInput(f"no metric {metric!r} in this run; it has {', '.join(sorted(metrics['metric'].unique()))}")
    second = np.floor(chosen["t_s"]).astype("int64").rename("second")
    frame = chosen.groupby([second, "instance"])["value"].mean().unstack("instance")
    return frame.assign(total=frame.sum(axis=1, min_count=1)).rename_axis(columns=None)


def so_far(metrics: pd.DataFrame, metric: str) -> "pd.Series[float]":
    """The total of a ``metric`` that only grows (``sent_mib``, …) over time, also of instances that are gone."""
    return resources(metrics, metric).drop(columns="total").ffill().sum(axis=1, min_count=1)


def grown(metrics: pd.DataFrame, metric: str) -> pd.DataFrame:
    """By how much a ``metric`` that only grows (``sent_mib``, …) has grown, with the columns of ``resources``: that of
    an instance since its first sample. One that is gone stays at what it had.
    """
    frame = resources(metrics, metric).drop(columns="total").ffill()
    frame -= frame.bfill().iloc[0]
    return frame.assign(total=frame.sum(axis=1, min_count=1))


def mean_before(metrics: pd.DataFrame, metric: str, seconds: float) -> float:
    """The mean of the ``total`` of ``resources`` over so many seconds before the trigger; NaN if it is not known."""
    total = resources(metrics, metric)["total"]
    return float(total[(total.index < 0) & (total.index >= -seconds)].mean())


def rate_before(metrics: pd.DataFrame, metric: str, seconds: float) -> float:
    """Compute what was added per second to a ``metric`` that only grows (``sent_mib``, …) in so many seconds before the
    trigger; NaN if it is not known.
    """
    if metric not in set(metrics["metric"]):
        return math.nan
    total = so_far(metrics, metric)
    total = total[(total.index < 0) & (total.index >= -seconds)]
    return float((total.iloc[-1] - total.iloc[0]) / (total.index[-1] - total.index[0])) if len(total) > 1 else math.nan


def faults(metrics: pd.DataFrame, of: Sequence[str] = (FAULT, DEATH)) -> list[tuple[float, str]]:
    """List when something was made to fail (``FAULT``), or the query died (``DEATH``), and what: seconds relative to
    the trigger, ascending.
    """
    need(metrics, ["t_s", "metric", "instance"], "faults")
    chosen = metrics[metrics["metric"].isin(of)].sort_values("t_s")
    return list(zip(chosen["t_s"].tolist(), chosen["instance"].tolist(), strict=True))


def snapshots(table: pd.DataFrame) -> pd.DataFrame:
    """The snapshots of a run, from its table of that name: columns snapshot, begun_s, took_s, written_mib.

    ``took_s``: from the request until a job could go on from it, in all stages.
    """
    need(table, ["snapshot", "begun_s", "completed_s", "bytes_written"], "snapshots")
    of = table.groupby("snapshot")
    took, written = of["completed_s"].max() - of["begun_s"].min(), of["bytes_written"].sum() / MIB
    return pd.DataFrame({"begun_s": of["begun_s"].min(), "took_s": took, "written_mib": written}).reset_index()
