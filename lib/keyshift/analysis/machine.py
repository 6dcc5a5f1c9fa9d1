"""Whether the machine had room for what was measured on it: full processors, and time that others took away."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from keyshift.analysis.metrics import before, known
from keyshift.analysis.tables import SummaryRow

MACHINE = "machine_cores"  # metric: processors of those that the run may use, by what they did
BUSY, STOLEN, OTHERS, ALL = "busy", "stolen", "others", "all"  # its instances; others: busy for nothing of the run
DISTURBED = "disturbed"  # metric: 1 if others, or the host, had at least ``DISTURBED_FROM`` of the processors, else 0
SAMPLED_S = 1.0  # how long a sample is, which ends at its time
FULL, ROBBED = 0.9, 0.05  # shares of the processors, from which on latencies measure the machine
DISTURBED_FROM = 0.1  # of stolen and others together; a quiet machine has 0.01 to 0.04

BY_OTHERS = 1.5  # P99 of all seconds by that of undisturbed ones, from which on a note tells of it


def shares_before(metrics: pd.DataFrame, since_s: float) -> tuple[float | None, float | None]:
    """The mean share of the processors that was at work, and that a hypervisor gave to others, before the trigger.

    ``since_s``: the end of the warm-up (negative). Both 0 to 1, of the processors that the run may use; None if that
    was not sampled then.
    """
    mean = shares(metrics[metrics["t_s"].between(since_s, 0.0, inclusive="left")]).mean()
    return known(float(mean[BUSY])), known(float(mean[STOLEN]))


def shares(metrics: pd.DataFrame) -> pd.DataFrame:
    """Shares of the processors that the run may use, over time: index second (int), columns busy, stolen and others
    (of busy), each of the two NaN if not known, 0 to 1. Empty if the run has no such samples.
    """
    sampled = metrics[metrics["metric"] == MACHINE]
    second = np.floor(sampled["t_s"]).astype("int64").rename("second")
    mean = sampled.groupby([second, "instance"])["value"].mean().unstack("instance")
    found = mean.reindex(columns=[BUSY, STOLEN, OTHERS, ALL])
    return found[[BUSY, STOLEN, OTHERS]].div(found[ALL], axis=0).rename_axis(columns=None)


def disturbed(metrics: pd.DataFrame) -> set[int] | None:
    """The seconds in which others took processors away, by their beginning; None if nobody looked.

    A sample that is marked is two seconds, if it begins in the one and ends in the other.
    """
    looks = metrics[metrics["metric"] == DISTURBED]
    if looks.empty:
        return None
    marked = looks.loc[looks["value"] > 0, "t_s"]
    return set(np.floor([*marked, *(marked - SAMPLED_S)]).astype("int64").tolist())


def with_disturbed(seconds: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """``metrics.per_second``, with the column disturbed (bool) if the run knows it: then figures show it."""
    marked = disturbed(metrics)
    return seconds if marked is None else seconds.assign(disturbed=seconds["second"].isin(list(marked)))


def disturbance(latency: pd.DataFrame, metrics: pd.DataFrame, since_s: float) -> dict[str, Any]:
    """What disturbed seconds are to a run, under the names of ``results.manifest.Summary``; None if nobody looked.

    ``since_s``: the end of the warm-up (negative). P99 is None, too, if no second before the trigger is undisturbed.
    """
    marked = disturbed(metrics)
    if marked is None or latency.empty:
        return {"p99_undisturbed_ms": None, "disturbed_s": None}
    second = np.floor(latency["created_s"]).astype("int64")
    quiet = latency[~second.isin(list(marked))]
    measured = range(int(np.floor(since_s)), int(second.max()) + 1)
    return {"p99_undisturbed_ms": before(quiet, since_s)[1], "disturbed_s": float(len(marked.intersection(measured)))}


def disturbance_notes(p99_ms: float | None, found: Mapping[str, Any]) -> list[str]:
    """What a reader has to know if disturbed seconds have made the P99 before. ``found``: of ``disturbance``, or a
    summary row.
    """
    quiet_ms, seconds = found.get("p99_undisturbed_ms"), found.get("disturbed_s")
    if p99_ms is None or not seconds or (quiet_ms is not None and p99_ms < BY_OTHERS * quiet_ms):
        return []
    instead = "nobody knows without them" if quiet_ms is None else f"{quiet_ms:.0f} ms without them"
    return [
        f"others had at least {DISTURBED_FROM:.0%} of the processors in {seconds:.0f} seconds: P99 before the "
        f"migration is {p99_ms:.0f} ms, and {instead}; try again when nothing else runs here"
    ]


def machine_notes(busy: float | None, stolen: float | None, rate: float, frame_ms: float) -> list[str]:
    """What a reader has to know of a machine that was full, or not all there, and what to change."""
    notes = []
    if busy is not None and busy >= FULL:
        notes.append(
            f"the processors were {busy:.0%} busy before the migration: these latencies measure the machine; try "
            f"--set frame_ms={2 * frame_ms:g} or --set rate={rate / 2:g}"
        )
    if stolen is not None and stolen >= ROBBED:
        notes.append(
            f"{stolen:.0%} of the processors went to others on the same host before the migration: these latencies "
            "measure them, too; try again at another hour"
        )
    return notes


def doubts(rows: Sequence[SummaryRow]) -> list[str]:
    """A sentence for each thing because of which figures of ``rows`` say less: a full machine, or one that others
    disturbed, an overloaded job, and practice that some runs alone have had.
    """
    full = [row for row in rows if (row.get("cpu_busy") or 0.0) >= FULL]
    robbed = [row for row in rows if (row.get("cpu_steal") or 0.0) >= ROBBED]
    by_others = [row for row in rows if disturbance_notes(row.get("p99_ms"), row)]
    swamped = [row for row in rows if row.get("overloaded")]
    share, part = f"at least {ROBBED:.0%} of the processors", f"at least {DISTURBED_FROM:.0%} of the processors"
    told = (
        (full, "The processors were full before the migration in {}: their latencies measure the machine."),
        (robbed, f"The host gave others {share} before the migration in {{}}: their latencies measure the host."),
        (by_others, f"Others had {part} in {{}}, and that shows in P99 before the migration."),
        (swamped, "The job was overloaded in {}: their figures know nothing of the events that it had not processed."),
    )
    said = [text.format(f"{len(some)} of {len(rows)} runs") for some, text in told if some]
    if 0 < (practised := sum(bool(row.get("one_job")) for row in rows)) < len(rows):
        said.append(
            f"{practised} of {len(rows)} runs are migrations of one running job, which has practised; the others began "
            "anew."
        )
    return said
