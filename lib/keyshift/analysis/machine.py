"""Whether the machine had room for what was measured on it: full processors, and time that others took away."""

from math import isnan

import numpy as np
import pandas as pd

from keyshift.analysis.metrics import need

MACHINE = "machine_cores"  # metric: processors of those that the run may use, by what they did
BUSY, STOLEN, ALL = "busy", "stolen", "all"  # its instances
FULL, ROBBED = 0.9, 0.05  # shares of the processors, from which on latencies measure the machine


def shares_before(metrics: pd.DataFrame, since_s: float) -> tuple[float | None, float | None]:
    """The mean share of the processors that was at work, and that a hypervisor gave to others, before the trigger.

    ``since_s``: the end of the warm-up (negative). Both 0 to 1, of the processors that the run may use; None if nothing
    was sampled then.
    """
    need(metrics, ["t_s", "metric", "instance", "value"], "shares_before")
    mean = shares(metrics[metrics["t_s"].between(since_s, 0.0, inclusive="left")]).mean()
    busy, stolen = (float(mean[kind]) for kind in (BUSY, STOLEN))
    return (None, None) if isnan(busy) else (busy, stolen)


def shares(metrics: pd.DataFrame) -> pd.DataFrame:
    """Shares of the processors that the run may use, over time: index second (int), columns busy and stolen, 0 to 1.

    Empty if the run has no such samples.
    """
    sampled = metrics[metrics["metric"] == MACHINE]
    second = np.floor(sampled["t_s"]).astype("int64").rename("second")
    mean = sampled.groupby([second, "instance"])["value"].mean().unstack("instance")
    found = mean.reindex(columns=[BUSY, STOLEN, ALL])
    return found[[BUSY, STOLEN]].div(found[ALL], axis=0).rename_axis(columns=None)


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
