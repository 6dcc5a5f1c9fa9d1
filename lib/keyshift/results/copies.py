"""Results that came more than once: whether replicas of a job have given the same ones, and which a job that went on
from a checkpoint has given once more. Pure: the same tables give the same answer.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.model.keys import units_of

OF_A_COPY = ("log_offset", "arrived_us", "replica", "attempt", "first")  # columns in which copies of a result differ
OF_AN_ASSIGNMENT = ("slot", "version")  # and those, too, if replicas have had different ones
SLOT, UNIT = "slot", "unit"


def by_unit(results: pd.DataFrame, key_groups: int, bins: int) -> pd.DataFrame:
    """``results`` with the ``unit`` of each, those of a unit in the order of its turns, wherever it was."""
    units = units_of(results["key"].to_numpy(), key_groups, bins)
    return results.assign(**{UNIT: units}).sort_values("slot_turn", kind="stable")


def behind(results: pd.DataFrame, turns: Mapping[int, int]) -> "pd.Series[bool]":
    """Find which ``results`` are behind these turns of their slots; all of a slot that has none."""
    return results["slot_turn"] > results["slot"].map(turns).fillna(-1)  # type: ignore[no-any-return]


def between(results: pd.DataFrame, begin: Mapping[int, int], end: Mapping[int, int]) -> pd.DataFrame:
    """Those of ``results`` that are behind the turns of ``begin``, but not behind those of ``end``."""
    return results[behind(results, begin) & ~behind(results, end)]


def furthest(turns: Mapping[int, int]) -> int:
    """The last of the ``turns`` of some slots; -1 if there are none."""
    return max(turns.values(), default=-1)


def unlike(firsts: pd.DataFrame, copies: pd.DataFrame, of: str = SLOT) -> Iterator[str]:
    """A line for each slot in which a replica has not given what the first copies are; or for each unit, if replicas
    have had different assignments.

    ``firsts`` and ``copies``: the collector's columns, and that of ``of``; its rows in the order of turns. A replica
    has given all results from the beginning on, in this order, so ``copies`` are as many rows as it came to.
    """
    differ = OF_A_COPY if of == SLOT else (*OF_A_COPY, *OF_AN_ASSIGNMENT)
    columns = [name for name in firsts.columns if name not in differ]
    known = dict(list(firsts.groupby(of)))
    for number, mine in copies.groupby(of):
        theirs = known.get(number, firsts.iloc[:0])
        rows = min(len(mine), len(theirs))
        same = _digests(mine[columns].iloc[:rows]) == _digests(theirs[columns].iloc[:rows])
        if not same.all():
            row = mine.iloc[int(np.argmin(same))]
            what = "router {router} offset {offset} position {position} key {key}".format_map(row)
            yield f"{of} {number} gave another result than the first copy in turn {row['slot_turn']}: {what}"
        elif rows < len(mine):
            row = mine.iloc[rows]
            yield f"{of} {number} gave results from turn {row['slot_turn']} on of which there is no first copy"


def repeated(results: pd.DataFrame, restarts_us: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Find which results of events count for nothing, as the job that gave them went on from a checkpoint before them
    and has given them once more: all but the last of an event, which belongs to the state that was kept.
    ``restarts_us``: when it did so. What came more often than it had restarted by then is not among them: it is a
    mistake. Values may differ, as events of two routers may meet in another order.
    """
    of_event = ["router", "offset", "position"]
    found = np.zeros(len(results), bool)
    if len(restarts_us):
        log = results.reset_index(drop=True).sort_values(["arrived_us", "log_offset"], kind="stable")
        log["restarts"] = np.searchsorted(np.sort(restarts_us), log["arrived_us"], "right")
        same = log[log["position"] >= 0].groupby(of_event, sort=False)
        by_next, by_last = same["restarts"].shift(-1, fill_value=0), same["restarts"].transform("last")
        again = (by_next > 0) & (same.cumcount(ascending=False) <= by_last)
        found[again.index[again]] = True
    return found


def _digests(rows: pd.DataFrame) -> np.ndarray:
    values = rows.select_dtypes(object)
    lists = [str(name) for name in values if values[name].map(lambda value: isinstance(value, np.ndarray)).any()]
    rows = rows.assign(**{name: rows[name].map(np.ndarray.tolist).map(str) for name in lists})
    return pd.util.hash_pandas_object(rows, index=False).to_numpy()
