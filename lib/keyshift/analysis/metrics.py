"""The measures of a run, computed from its tables (columns: docs/results.md). Pure: frames in, numbers or frames out.

Times are seconds relative to the trigger. Latency is result available minus *scheduled* creation, and a result belongs
to the second in which its event was created: a stall shows where it hurt, not where it ended. What cannot be computed
from the data is None (in a frame NaN), never 0.
"""

from collections.abc import Iterable
from itertools import chain
from math import ceil, floor, isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.model.errors import BadInput

FAULT = "fault"  # the metric whose rows are faults that were made: their moment, and what was hit as instance
DEATH = "death"  # likewise, deaths of the query, whatever it died of
HOLD_S = 3  # so many seconds in a row under the objective count as recovered
CCDF_POINTS = 2000
# The moments of a unit on its way, in order; each ends the phase in the same place of the list below.
MOMENTS = ("switched_s", "aligned_s", "received_s", "installed_s", "drained_s")
MOMENT_PHASES = ("prepare", "align", "transfer", "install", "catch_up")
PHASES = ("plan", "replicate", *MOMENT_PHASES)


class Offered(NamedTuple):
    """What was offered to a job. Times in seconds relative to the trigger."""

    begin_s: float
    end_s: float
    took_s: float  # from the beginning until the last event was offered: longer than planned if the generator was late
    events: int  # that were offered
    unprocessed: int  # of them: those for which the run did not wait any more
    due: int  # results that the others must have
    planned: int = 0  # events that were to be offered
    rate_changed: bool = False  # by a command or a search, which no parameter tells


def need(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raise BadInput if ``frame`` lacks one of ``columns``, saying which it has."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise BadInput(f"{what}: no column {', '.join(missing)}; the frame has {', '.join(map(str, frame.columns))}")


def per_second(latency: pd.DataFrame) -> pd.DataFrame:
    """Latency by second of creation: one row per second that has results, ascending.

    Columns: second (int; 0 begins at the trigger), count, p50_ms, p99_ms, max_ms.
    """
    need(latency, ["created_s", "latency_ms"], "per_second")
    second = np.floor(latency["created_s"]).astype("int64").rename("second")
    groups = latency["latency_ms"].astype("float64").groupby(second)
    measures = {"p50_ms": groups.quantile(0.5), "p99_ms": groups.quantile(0.99), "max_ms": groups.max()}
    return pd.DataFrame({"count": groups.size(), **measures}).reset_index()


def over_repetitions(runs: list[pd.DataFrame]) -> pd.DataFrame:
    """Several per-second frames of one point as one: medians, with the range in ``<measure>_low_ms`` and ``_high_ms``.

    Columns: second, runs (how many had results then), p50_ms, p50_low_ms, p50_high_ms, p99_ms, ..., max_high_ms; if all
    know it, disturbed: whether half of them were (``machine.with_disturbed``).
    """
    if not runs:
        raise BadInput("over_repetitions: no run given")
    for run in runs:
        need(run, ["second", "p50_ms", "p99_ms", "max_ms"], "over_repetitions")
    seconds = pd.concat(runs).groupby("second")
    values = seconds[["p50_ms", "p99_ms", "max_ms"]]
    low = values.min().rename(columns=lambda name: name.replace("_ms", "_low_ms"))
    high = values.max().rename(columns=lambda name: name.replace("_ms", "_high_ms"))
    found = pd.concat([seconds.size().rename("runs"), values.median(), low, high], axis=1)
    if all("disturbed" in run for run in runs):
        found["disturbed"] = seconds["disturbed"].mean() >= 0.5
    return found.reset_index()


def without_warm_up(latency: pd.DataFrame, since_s: float) -> pd.DataFrame:
    """Latency of the events that were due from ``since_s`` on (negative: the end of the warm-up)."""
    need(latency, ["created_s"], "without_warm_up")
    return latency[latency["created_s"] >= since_s]


def before(latency: pd.DataFrame, since_s: float) -> tuple[float | None, float | None]:
    """P50 and P99 in ms of events created from ``since_s`` on (negative: the end of the warm-up) whose results came
    before the trigger. One that was still on its way has what the migration did to it.
    """
    warm = without_warm_up(latency, since_s)
    quiet_ms = warm.loc[warm["created_s"] + warm["latency_ms"] / 1000 < 0, "latency_ms"]
    if quiet_ms.empty:
        return None, None
    p50, p99 = np.percentile(quiet_ms, (50, 99)).tolist()
    return p50, p99


def objective_ms(p99_before_ms: float) -> float:
    """The P99 a run has to come back under: twice what it was before, but at least 50 ms above it.

    Twice, because per-second P99 scatters around the P99 of a longer time; 50 ms, because a base of a few
    milliseconds doubles at every hiccup of the machine.
    """
    return max(2 * p99_before_ms, p99_before_ms + 50)


def recover_s(seconds: pd.DataFrame, objective: float, not_before_s: float = 0.0) -> float | None:
    """Seconds from the trigger until the per-second P99 is back under ``objective`` (ms) and stays.

    It stays if it holds for ``HOLD_S`` seconds in a row of which the first is not over before ``not_before_s`` (the end
    of the migration, or the last fault: quiet between two steps is no recovery). The time is the end of the last second
    before those that was above, 0.0 if none was, None if the run ended first. A second without results is neither good
    nor above.
    """
    p99 = seconds.set_index("second")["p99_ms"]
    p99 = p99[p99.index >= 0]
    good = set(p99.index[p99 <= objective])
    start = max(floor(not_before_s), 0)
    held = [s for s in sorted(good) if s >= start and all(s + later in good for later in range(HOLD_S))]
    if not held:
        return None
    above = p99.index[(p99 > objective) & (p99.index < held[0])]
    return float(above.max() + 1) if len(above) else 0.0


def spike_ms(seconds: pd.DataFrame, until_s: float | None) -> float | None:
    """The largest per-second P99 from the trigger to ``until_s`` (None: to the end), at least of the first second."""
    until = np.inf if until_s is None else max(until_s, 1.0)
    during = seconds.loc[(seconds["second"] >= 0) & (seconds["second"] < until), "p99_ms"].dropna()
    return None if during.empty else float(during.max())


def longest_ms(latency: pd.DataFrame) -> float | None:
    """The latency of the slowest event whose result arrived after the trigger; Megaphone's "maximum latency"."""
    behind = latency["created_s"] + latency["latency_ms"] / 1000 > 0
    return _known(latency.loc[behind, "latency_ms"].max())


def mean_ms(latency: pd.DataFrame, migration: pd.DataFrame) -> float | None:
    """Mean latency of events created from the trigger until the last unit is drained; None if none moved."""
    until_s = migration["drained_s"].max()
    return _known(latency.loc[latency["created_s"].between(0, until_s), "latency_ms"].mean())


def silence_ms(latency: pd.DataFrame) -> float | None:
    """The longest time between two results arriving one after the other, of those that end after the trigger.

    A result arrives at its creation plus its latency. The time after the very last result does not count.
    """
    arrivals = arrivals_ms(latency)
    gaps = np.diff(arrivals)[arrivals[1:] > 0]
    return float(gaps.max()) if len(gaps) else None


def arrivals_ms(latency: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """When results arrived, ascending, in ms from the trigger."""
    return np.sort(latency["created_s"].to_numpy("float64") * 1e3 + latency["latency_ms"].to_numpy("float64"))


def migration_of(migration: pd.DataFrame, decisions: pd.DataFrame) -> "pd.Series[float]":
    """The number of the migration that each row of ``migration`` is of, from 0; NaN where no unit of a step moved.

    Steps come in the order of the plans, each with the units that were planned for it. The last ones of a migration may
    have been left out, if it was cancelled.
    """
    moved = migration[migration["source"] != migration["destination"]]
    planned = decisions[decisions["step"] >= 0]
    numbers: dict[Any, int] = {}
    for stage, mine in moved.groupby("stage"):
        plans = planned[planned["stage"] == stage].groupby(["migration", "step"])["unit"].agg(set)
        steps: list[Any] = list(plans.items())
        first = [n for n, ((_, step), _) in enumerate(steps) if step == 0]
        place, number = 0, 0
        for step, units in mine.groupby("step")["unit"].agg(set).items():
            # Most often the next one; else the first of a later migration.
            later = range(place, len(steps))
            likely = chain(later[:1], (n for n in first if n >= place), later)
            found = next((n for n in likely if steps[n][1] >= units), None)
            if found is not None:
                place, number = found + 1, steps[found][0][0]
            numbers[step] = number
    return migration["step"].map(numbers).astype("float64")


def left_out(migration: pd.DataFrame, decisions: pd.DataFrame) -> bool:
    """Whether a unit of the last plan of a stage is in no step: steps that had not begun were taken back, or dropped as
    one before them was late.
    """
    planned, of_unit = decisions[decisions["step"] >= 0], ["stage", "unit"]
    last = planned[planned["migration"] == planned.groupby("stage")["migration"].transform("max")]
    begun = pd.MultiIndex.from_frame(migration[of_unit])
    return not pd.MultiIndex.from_frame(last[of_unit]).isin(begun).all()


def completion_s(migration: pd.DataFrame, decisions: pd.DataFrame | None = None) -> float | None:
    """Seconds from the first routing switch to the last installed unit; None if nothing moved, or a step did not
    install a unit: it may have been cancelled by a death, and what it was to move is installed by a later one.

    With ``decisions``, which tell one migration from the next, that of each migration, added up: the pauses between
    migrations are in none of them, and time in which two go on at once (in two stages) counts once. None, too, if the
    last one was ``left_out`` in part, which is not seen here if one before it has moved the same units.
    """
    if migration.empty or migration["installed_s"].isna().any():
        return None
    if decisions is not None and left_out(migration, decisions):
        return None
    by = pd.Series(0, migration.index) if decisions is None else migration_of(migration, decisions).fillna(-1)
    of = migration.groupby([by, migration["stage"]])
    spans = pd.DataFrame({"begin": of["switched_s"].min(), "end": of["installed_s"].max()}).sort_values("begin")
    reached = spans["end"].cummax().shift(fill_value=-np.inf)
    return _known((spans["end"] - np.maximum(spans["begin"], reached)).clip(lower=0).sum(skipna=False))


def bytes_sent(migration: pd.DataFrame) -> int | None:
    """Bytes of state sent with units of ``migration``; None if a step switched and the source of a unit never told."""
    if (migration["switched_s"].notna() & migration["sent_s"].isna()).any():
        return None
    return int(migration["bytes"].sum())


def phases(
    migration: pd.DataFrame, planned_s: float | None = None, replicate_s: float | None = None
) -> dict[str, float | None]:
    """Say where the time of a migration went: phase to seconds, one number per name in ``PHASES``.

    Units of a step overlap, so a phase of a step ends when its *last* unit ends it, and begins where the phase before
    it ended: *prepare* until the last switch, *align* until the last unit is aligned, *transfer* until the last one is
    received, *install* until the last one is installed, *catch_up* until the last queue is drained, at which the next
    step begins to prepare. Each is added up over the steps. The first step prepares from ``planned_s`` (when the plan
    was ready), or from the trigger if that was not measured; *plan* is ``planned_s``.

    So plan + prepare + align + transfer + install + catch_up is exactly the time from the trigger to the last drained
    unit; with several migrations the pauses between them are in *prepare*. *replicate* happens beside the others and is
    passed through. A phase that begins or ends at a moment unknown for some unit is None.
    """
    result: dict[str, float | None] = dict.fromkeys(PHASES)
    result |= {"plan": planned_s, "replicate": replicate_s}
    if migration.empty:
        return result
    steps = migration.groupby("step")[list(MOMENTS)]
    last = steps.max().where(steps.count().eq(steps.size(), axis=0))  # unknown if it is for one unit
    moments = np.concatenate([[planned_s or 0.0], last.to_numpy("float64").ravel()])
    # A moment may precede an earlier phase's last one, e.g. where units are fetched on demand: time is counted once.
    reached = np.where(np.isnan(moments), nan, np.fmax.accumulate(moments))
    lengths = np.diff(reached).reshape(-1, len(MOMENTS)).sum(axis=0)
    return result | {name: _known(length) for name, length in zip(MOMENT_PHASES, lengths, strict=True)}


def peak(metrics: pd.DataFrame, metric: str) -> float | None:
    """The largest sum over all instances of ``metric``, each instance at its largest within the second."""
    need(metrics, ["t_s", "metric", "instance", "value"], "peak")
    chosen = metrics[metrics["metric"] == metric]
    if chosen.empty:
        return None
    largest = chosen.groupby([np.floor(chosen["t_s"]), "instance"])["value"].max()
    return _known(largest.groupby(level=0).sum().max())


def pace(latency: pd.DataFrame, load: Offered) -> dict[str, Any]:
    """Measure how a job kept pace with its load, under the names of ``results.manifest.Summary``.

    ``backlog``: events without a result at the end of the load; some are always on their way. ``worked_off_s``: from
    then until the last result, None if the run did not wait for it.
    """
    arrived = latency["created_s"].to_numpy("float64") + latency["latency_ms"].to_numpy("float64") / 1e3
    answered = int((arrived <= load.end_s).sum())
    load_s = load.end_s - load.begin_s
    events_of_a_result = (load.events - load.unprocessed) / load.due if load.due else nan
    return {
        "offered_per_s": load.events / max(load_s, load.took_s),
        "sustained_per_s": _known(answered * events_of_a_result / load_s),
        "results_due": load.due,
        "backlog": load.unprocessed + (round((load.due - answered) * events_of_a_result) if load.due > answered else 0),
        "worked_off_s": None if load.unprocessed or not len(arrived) else max(0.0, float(arrived.max()) - load.end_s),
        "unprocessed": load.unprocessed,
        "overloaded": load.unprocessed > 0,
        "rate_changed": load.rate_changed,
    }


def ccdf(latency: pd.DataFrame, runs: int = 1) -> pd.DataFrame:
    """Latency's complementary distribution: columns latency_ms, fraction (of results that took at least that long) and
    results (so many of a run, on average). ``runs``: so many of them are together in ``latency``.

    At most ``CCDF_POINTS`` rows, dense where it matters on a log axis; the last row is the maximum.
    """
    need(latency, ["latency_ms"], "ccdf")
    if latency.empty:
        return pd.DataFrame({"latency_ms": [], "fraction": [], "results": []}, dtype="float64")
    ordered = np.sort(latency["latency_ms"].to_numpy("float64"))
    ranks = np.unique(np.geomspace(1, len(ordered), CCDF_POINTS).round().astype(int))[::-1]
    values = np.unique(ordered[len(ordered) - ranks])
    at_least = len(ordered) - np.searchsorted(ordered, values, side="left")
    return pd.DataFrame({"latency_ms": values, "fraction": at_least / len(ordered), "results": at_least / runs})


def summarise(
    latency: pd.DataFrame,
    migration: pd.DataFrame,
    metrics: pd.DataFrame,
    *,
    load: Offered,
    since_s: float,
    decisions: pd.DataFrame | None = None,
    planned_s: float | None = None,
    replicate_s: float | None = None,
    bytes_minimum: int | None = None,
    bytes_beside: int | None = 0,
    bytes_copied: int | None = None,
    copy_bytes_per_s: float | None = None,
    fewer_replicas_s: float | None = None,
    one_job: bool = False,
    incomplete: bool = False,
) -> dict[str, Any]:
    """The figures of a summary row that follow from the tables, under the names of ``results.manifest.Summary``.

    ``since_s``: the end of the warm-up (negative). ``decisions``: of its migrations, for ``completion_s``.
    ``bytes_beside``: sent beside those of its rows, None if not known. ``copy_bytes_per_s``: measured bandwidth of a
    bare copy, for ``floor_s``. ``bytes_copied``, ``fewer_replicas_s``, ``one_job`` and ``incomplete`` are as they are
    in the row.
    """
    p50, p99 = before(latency, since_s)
    seconds = per_second(latency)
    # A fault or death behind the load hits no event of it.
    hit = metrics["metric"].isin([FAULT, DEATH]) & (metrics["t_s"] < load.end_s)
    moments = (migration["installed_s"], migration["drained_s"], metrics.loc[hit, "t_s"])
    end = float(np.nanmax([0.0, *(some.max() for some in moments)]))
    recovered = None if p99 is None else recover_s(seconds, objective_ms(p99), end)
    until = None if recovered is None else max(recovered, ceil(end))
    sent = bytes_sent(migration)
    return {
        "measured_from_s": since_s,
        "events": load.events,
        "rate_per_s": load.events / (load.end_s - load.begin_s),
        "p50_ms": p50,
        "p99_ms": p99,
        "spike_ms": spike_ms(seconds, until),
        "silence_ms": silence_ms(latency),
        "longest_ms": longest_ms(latency),
        "completion_s": None if incomplete else completion_s(migration, decisions),
        "incomplete": incomplete,
        "phases": phases(migration, planned_s, replicate_s),
        "recover_s": recovered,
        "bytes_moved": None if sent is None or bytes_beside is None else sent + bytes_beside,
        "bytes_copied": bytes_copied,
        "bytes_minimum": bytes_minimum,
        "units_moved": int(migration["installed_s"].notna().sum()),
        "steps": int(migration["step"].nunique()),
        "floor_s": bytes_minimum / copy_bytes_per_s if bytes_minimum is not None and copy_bytes_per_s else None,
        "peak_rss_mib": peak(metrics, "rss_mib"),
        "fewer_replicas_s": fewer_replicas_s,
        "one_job": one_job,
        **pace(latency, load),
    }


def known(value: float | None) -> float | None:
    """The value; None if it is not known: there is none, or it is no finite number."""
    return None if value is None or not isfinite(value) else value


def _known(value: npt.ArrayLike) -> float | None:
    return known(float(value))  # type: ignore[arg-type]
