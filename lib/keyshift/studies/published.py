"""Numbers that publications give, each beside the same number of stored runs.

Absolute latencies of a cluster and of two cores say little about each other. What can be compared is the shape of a
curve (rank correlation: 1 if ours rises and falls where the published one does) and how far ours is above it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

import pandas as pd

from keyshift.analysis.plots.style import shown, style_of
from keyshift.analysis.tables import REPETITION, SummaryRow, correct, measured, middle
from keyshift.planner import MEANINGS
from keyshift.results.alike import FREE, fixed
from keyshift.results.anonymous import anonymous_all
from keyshift.results.index import MADE_BY

LEAST = 3  # points from which a shape can be told
_QUERIES = "nexmark"  # a workload whose single stages are queries: no publication here has numbers of them
_Values = Mapping[str, float]  # by the name of the point
# Takes stored runs. Gives, for all of one load, made alike, one of them, with the parameters that all have, and a value
# for each point.
_Found = tuple[SummaryRow, _Values]
Ours = Callable[[Sequence[SummaryRow]], Iterator[_Found]]


@dataclass(frozen=True)
class Curve:
    """Published numbers of one measure. ``differs``: in what our runs are not theirs; ``wanted``: runs that compare."""

    title: str
    source: str
    measure: str  # with its unit
    published: _Values
    differs: str
    wanted: str
    ours: Ours


@dataclass(frozen=True)
class Line:
    """Ours beside a curve: runs of one load, on machines that are alike, by one version of keyshift."""

    name: str
    points: pd.DataFrame  # columns point, published, ours, ratio; NaN where we have none

    @property
    def shape(self) -> float:
        """Spearman's rank correlation with the published numbers; NaN of fewer than ``LEAST`` points, or equal ones."""
        known = self.points.dropna()
        if len(known) < LEAST or known["ours"].nunique() == 1:
            return nan
        return float(known["published"].rank().corr(known["ours"].rank()))

    @property
    def ratio(self) -> float:
        """The median of ours ÷ published."""
        return float(self.points["ratio"].median())


def beside(curve: Curve, rows: Sequence[SummaryRow]) -> list[Line]:
    """Our lines that have the most points of a curve; none if no run has any.

    ``rows``: of ``row_of``, with how many ``stages`` the run had (1 if that is not said), of which those whose verdict
    is not ok are left out, and those that left units where they were.
    """
    found = list(curve.ours([row for row in correct(rows) if not row.get("incomplete")]))
    most = max((len(values) for _, values in found), default=0)
    lines = []
    for row, values in found:
        if len(values) == most:
            points = pd.DataFrame({"point": [*curve.published], "published": [*curve.published.values()]})
            points["ours"] = points["point"].map(values)
            points["ratio"] = points["ours"] / points["published"]
            lines.append(Line(_name(row, [other for other, _ in found]), points))
    return lines


def _name(row: SummaryRow, others: Sequence[SummaryRow]) -> str:
    """The workload, and in what the lines of one curve differ: parameters, machine, version. The page is for others:
    what tells whose machine it was is hidden, with a number that tells one line from the other.
    """
    names = sorted({name for other in others for name in fixed(other, REPETITION)} - {"workload"})
    every = [fixed(each, REPETITION) | _made_by(each) for each in (row, *others)]
    ours, *theirs = ({name: each.get(name) for name in (*names, *MADE_BY)} for each in every)
    told, words = anonymous_all({"parameters": ours})["parameters"], [row["workload"]]
    for name, value in ours.items():
        values = [*dict.fromkeys(repr(each[name]) for each in theirs)]
        number = "" if told[name] == value else f" {1 + values.index(repr(value))}"
        if len(values) > 1:
            words.append(f"{name}={shown(told[name])}{number}")
    return ", ".join(words)


def _made_by(row: SummaryRow) -> dict[str, Any]:
    told = {name: row.get(name) for name in MADE_BY}
    machine = told["machine"] or {}
    return told | {"machine": ", ".join(f"{name} {value}" for name, value in machine.items())}


def _loads(rows: Sequence[SummaryRow], free: set[str]) -> list[list[SummaryRow]]:
    """Rows that differ in parameters of ``free`` alone, and were made by the same, together."""
    loads: dict[str, list[SummaryRow]] = {}
    for row in rows:
        loads.setdefault(repr((sorted(fixed(row, free).items(), key=str), _made_by(row))), []).append(row)
    return list(loads.values())


def _plain(row: SummaryRow) -> bool:
    """Whether a run is of one stage, which is no query, at a rate that stays."""
    other = row.get("stages", 1) > 1 or row["workload"] == _QUERIES
    return not (other or row["parameters"].get("rate_steps"))


def _ordered(row: SummaryRow) -> bool:
    return bool(row["parameters"].get("ordering", "none") != "none")


def _at_points(
    columns: Mapping[str, str],
    points: Mapping[str, Mapping[str, Any]],
    rows: Sequence[SummaryRow],
    kept: Callable[[SummaryRow], bool] = _plain,
) -> Iterator[_Found]:
    """Columns of the summary (by the name of the point) in runs with the parameters of each point; of those that are
    ``kept``. A job without an order has no replicas: it is beside those with any number of them.
    """
    free = {*REPETITION, *(name for where in points.values() for name in where)}
    for alike in _loads([row for row in rows if kept(row)], free | {"replicas"}):
        alone = [row for row in alike if not _ordered(row)]
        for load in _loads([row for row in alike if _ordered(row)], free) or [[]]:
            values = {}
            for name, where in points.items():
                some = [row for row in [*load, *alone] if where.items() <= row["parameters"].items()]
                if (found := _middle(some, columns[name])) is not None:
                    values[name] = found
            if values:
                row = next(some[0] for some in (load, alone) if some)
                yield {**row, "parameters": fixed(row, free)}, values


def _against(strategy: str, baseline: str, rows: Sequence[SummaryRow]) -> Iterator[_Found]:
    """Columns of runs of a preset, divided by those of runs of another one under the same load."""
    presets = [row for row in rows if all(row["parameters"].get(name) is None for name in MEANINGS)]
    for load in _loads(presets, FREE):
        one, other = ([row for row in load if row["strategy"] == name] for name in (strategy, baseline))
        values = {}
        for name, column in _OF_MIGRATION.items():
            above, below = (_middle(some, column) for some in (one, other))
            if above is not None and below:
                values[name] = above / below
        if values:
            yield one[0], values


def _middle(rows: Sequence[SummaryRow], column: str) -> float | None:
    """The median over runs, of which one may have been disturbed; None if none of them knows the column."""
    values = measured(rows, lambda row: row.get(column))
    return middle(values) if values else None


# Active replication: the published figures of KaZoo and LiveRobin, as their authors give them.

_REPLICAS = "KaZoo and LiveRobin: active replication"
_ONE_COPY = (
    "Theirs is of a cluster, with several replicas. Ours is on the machine of the runs: a job with one replica has the "
    "latency of the order alone, and replicas of one machine share its processors and have no network between them."
)
_PUBLISHED_SET = "keyshift batch data/replication/02_orders-published.yaml"
_PASSIVE = {"ordering": "none", "snapshot_s": 30.0}
_ACTIVE = {name: {"ordering": name, "snapshot_s": 0.0} for name in ("live_robin", "kazoo")}
_OVER_RATE = {
    f"{name}, {rate:g}/s": {**where, "rate": rate}
    for rate in (10.0, 10_000.0)
    for name, where in (("passive", _PASSIVE), ("LiveRobin", _ACTIVE["live_robin"]), ("KaZoo", _ACTIVE["kazoo"]))
}
_OVER_HEARTBEAT = {f"{ms:g} ms": {"ordering": "live_robin", "heartbeat_ms": ms} for ms in (5.0, 10.0, 50.0, 100.0)}
_BEFORE = {"P50 (ms)": "p50_ms", "P99 (ms)": "p99_ms"}  # of events before the trigger: nothing moves, nothing fails
_RATES = {"P50 (ms)": (5.9, 6.7, 8.8, 6.9, 11.9, 8.7), "P99 (ms)": (10.3, 15.6, 15.2, 21.4, 31.9, 150.3)}
_HEARTBEATS = {"P50 (ms)": (6.7, 7.6, 13.6, 21.5), "P99 (ms)": (20.1, 21.5, 55.9, 104.4)}
_DIES = _PASSIVE | {"fault": "kill:slot@150", "seconds": 300.0, "trigger_s": 150.0}

# Spark: its own measurement of stateful operators in real-time mode.
_SPARK = "Spark, stateful operators in real-time mode: 1000 records/s, 5 + 5 partitions, RocksDB"
_WINDOWS = {"P50": 103.0, "P99": 138.0}
_SPARK_STATE = {"strategy": "spark_state", "rate": 1000.0}

# DRRS: what its paper says it saves, as recalled from there: "-81 %" is a point at 0.19. Of a range, the middle.
_SAVED = {"peak latency": 0.19, "average latency": 0.05, "duration": 0.205}
_OF_MIGRATION = {"peak latency": "spike_ms", "average latency": "mean_ms", "duration": "completion_s"}
BASELINES = ("meces", "fluid", "matched")
COMPARED = ("drrs", *BASELINES)  # of whose runs ``mean_ms`` has to be known, too: latency while state moves

CURVES = (
    *(
        Curve(
            f"{measure.partition(' ')[0]} over {what}",
            f"{_REPLICAS}{of}",
            measure,
            dict(zip(points, numbers[measure], strict=True)),
            _ONE_COPY,
            _PUBLISHED_SET,
            partial(_at_points, dict.fromkeys(points, column), points),
        )
        for what, of, points, numbers in (
            ("the heartbeat of LiveRobin", ", a chain of one stage", _OVER_HEARTBEAT, _HEARTBEATS),
            ("the rate, passive and active", "; passive has a checkpoint every 30 s", _OVER_RATE, _RATES),
        )
        for measure, column in _BEFORE.items()
    ),
    Curve(
        "silence of a passive job that dies",
        f"{_REPLICAS}; passive has a checkpoint every 30 s and is killed after 150 s of 300 s: about 80 s without "
        "output (active: flat)",
        "silence (ms)",
        {"passive": 80_000.0},
        "Theirs is of a cluster, and of a job and rate that we do not know. Ours is of any job and rate: the query "
        "begins anew in the same Spark, from its newest snapshot. One number is no curve.",
        "notebook replication/01_deaths, with snapshot_s=30, seconds=300 and trigger_s=150",
        partial(_at_points, {"passive": "silence_ms"}, {"passive": _DIES}, kept=lambda row: True),
    ),
    Curve(
        "Spark's own state in real-time mode",
        f"{_SPARK}; a window aggregation (P50 and P99 of transformWithState are 104 and 141 ms)",
        "latency (ms)",
        _WINDOWS,
        "Ours is groupBy().agg() in Spark on the machine of the runs, without windows, with as many partitions as "
        "they have routers and slots, and a shuffle that flushes every millisecond. Two measures are no curve.",
        "notebook compare/05_engines, with rate=1000, routers=5 and slots=5",
        partial(_at_points, {"P50": "p50_ms", "P99": "p99_ms"}, dict.fromkeys(_WINDOWS, _SPARK_STATE)),
    ),
    *(
        Curve(
            f"DRRS against {style_of(baseline).label}",
            "DRRS: peak latency 81 % below that of what it is compared with, average latency 95 %, duration 73 to "
            "86 % (as we recall the paper)",
            "DRRS ÷ the other",
            _SAVED,
            "Theirs are the best of many cases on a cluster, ours are medians over runs of one load. Peak is the "
            "largest P99 of a second. Three measures are no curve: the rank correlation says whether they have the "
            "same order.",
            f"keyshift run --strategy drrs and --strategy {baseline}, with the same parameters",
            partial(_against, "drrs", baseline),
        )
        for baseline in BASELINES
    ),
)
