"""What must come out of ``keycount``, told from the events. Not by the operator's code."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.workloads.keyed import Keyed


def wrong(workload: Keyed, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame]) -> Iterator[str]:
    """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state.

    Events of several routers have no single order, so any order of a key's events is right that keeps the order of
    each router: the counts of a key are 1..n, each once, growing along each router's events.
    """
    counts = np.bincount(events["key"], minlength=workload.keys)
    yield from wrong_results(counts, results)
    check = StateCheck(workload, counts)
    for part in final:
        yield from check.wrong(part)
    yield from check.missing()


def wrong_results(counts: npt.NDArray[np.int64], results: pd.DataFrame) -> Iterator[str]:
    """One line for each result that cannot be. ``counts``: of the events of each key."""
    key, router, count, stamp = (results[c].to_numpy() for c in ("key", "router", "count", "stamp"))
    known = (key >= 0) & (key < len(counts))
    bad = ~known | (count < 1) | (count > counts[np.where(known, key, 0)]) | (stamp != count - 1)
    order = np.lexsort((count, key))
    bad[order[1:]] |= (np.diff(key[order]) == 0) & (np.diff(count[order]) == 0)
    order = np.lexsort((results["position"], results["offset"], router, key))
    same = (np.diff(key[order]) == 0) & (np.diff(router[order]) == 0)
    bad[order[1:]] |= same & (np.diff(count[order]) <= 0)
    for row in np.flatnonzero(bad):
        r = results.iloc[row]
        offered = counts[key[row]] if known[row] else 0
        yield (
            f"result of router {r.router} offset {r.offset} position {r.position}: key {r.key} has count"
            f" {r['count']} and stamp {r.stamp}; expected stamp = count - 1, and counts 1..{offered}, each once,"
            " in event order"
        )


class StateCheck:
    """The final state of one counter, part by part: every key is in its unit, with the ``counts`` it must have."""

    def __init__(self, workload: Keyed, counts: npt.NDArray[np.int64]) -> None:
        self._workload, self._counts = workload, counts
        self._seen = np.zeros(workload.keys, dtype=np.int64)

    def wrong(self, part: pd.DataFrame) -> Iterator[str]:
        """One line for each key of ``part`` that is not as it must be."""
        workload, counts = self._workload, self._counts
        for rows in workload.slices(iter([part])):
            key, unit, count = (rows[c].to_numpy() for c in ("key", "unit", "count"))
            known = (key >= 0) & (key < workload.keys)
            home = np.where(known, key, 0)
            np.add.at(self._seen, key[known], 1)
            bad = ~known | (workload.units[home] != unit) | (counts[home] != count) | workload.damaged(rows, count)
            for row in np.flatnonzero(bad):
                k = key[row]
                expected = f"count {counts[k]} in unit {workload.units[k]}" if known[row] else "no such key"
                yield (
                    f"final state of key {k} in unit {unit[row]}, slot {rows['slot'].iloc[row]}: count {count[row]}"
                    f" and payload {rows['payload'].iloc[row][:16].hex()}...; expected {expected}"
                )

    def missing(self) -> Iterator[str]:
        """One line for each key that was not seen once, behind all parts."""
        for k in np.flatnonzero(self._seen != 1):
            yield f"final state of key {k}: in {self._seen[k]} places, expected 1"
