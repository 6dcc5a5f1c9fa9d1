"""Which parameters may differ between runs that are compared, and in what others differ. Pure: rows in, names out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keyshift.analysis.tables import REPETITION
from keyshift.planner import MEANINGS
from keyshift.results.index import MADE_BY

# A strategy's own parameters may differ, and those of repetitions.
FREE = {"strategy", *MEANINGS, *REPETITION}


def fixed(row: Any, free: Collection[str] = FREE) -> dict[str, Any]:
    """The parameters of a summary row but for those that are ``free`` to differ. ``one_job`` is as one of them here: a
    job that has practised does the same in less time.
    """
    told = {name: value for name, value in row["parameters"].items() if name not in free}
    return told | {"one_job": bool(row.get("one_job", False))}


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say why rows of runs (``store.row_of``) cannot be compared: names of parameters that are not free to differ, and
    of ``MADE_BY``.
    """
    every = [fixed(row) | {name: row[name] for name in MADE_BY} for row in rows]
    names = dict.fromkeys(name for each in every for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in every}) > 1]
