"""Whether replicas of a job have given the same results. Pure: the same tables give the same answer."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

OF_A_COPY = ("log_offset", "arrived_us", "replica", "first")  # columns in which copies of a result differ


def unlike(firsts: pd.DataFrame, copies: pd.DataFrame) -> Iterator[str]:
    """A line for each slot in which a replica has not given what the first copies are.

    ``firsts`` and ``copies``: the collector's columns, rows of a slot in the order of its turns. A replica has given
    all results from the beginning on, in this order, so ``copies`` are as many rows of each slot as it came to.
    """
    columns = [name for name in firsts.columns if name not in OF_A_COPY]
    by_slot = dict(list(firsts.groupby("slot")))
    for slot, mine in copies.groupby("slot"):
        theirs = by_slot.get(slot, firsts.iloc[:0])
        rows = min(len(mine), len(theirs))
        same = _digests(mine[columns].iloc[:rows]) == _digests(theirs[columns].iloc[:rows])
        if not same.all():
            row = mine.iloc[int(np.argmin(same))]
            what = "router {router} offset {offset} position {position} key {key}".format_map(row)
            yield f"slot {slot} gave another result than the first copy at epoch {row['epoch']}: {what}"
        elif rows < len(mine):
            row = mine.iloc[rows]
            yield f"slot {slot} gave results from epoch {row['epoch']} on of which there is no first copy"


def _digests(rows: pd.DataFrame) -> np.ndarray:
    lists = [str(name) for name in rows.select_dtypes(object) if rows[name].map(_is_list).any()]
    rows = rows.assign(**{name: rows[name].map(np.ndarray.tolist).map(str) for name in lists})
    return pd.util.hash_pandas_object(rows, index=False).to_numpy()


def _is_list(value: object) -> bool:
    return isinstance(value, np.ndarray)
