"""What changed between two runs: parameters, versions, machine, figures. Pure: manifests as dicts in, a frame out."""

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

import pandas as pd

from keyshift.analysis.metrics import known
from keyshift.analysis.tables import MEASURES

_OF_RUN = ("workload", "strategy", "status", "error")
COLUMNS = ["kind", "name", "one", "other", "ratio"]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> pd.DataFrame:
    """One row per thing that differs between two manifests, and per figure that either of them has.

    Columns: kind ("run", "parameter", "version", "machine", "figure"), name, one and other (the values; None: has
    none), ratio (of two figures: other ÷ one, NaN if either is not known or one is 0).
    """
    rows: list[dict[str, Any]] = []
    for kind, name, left, right in _pairs(one, other):
        if kind == "figure":
            ratio = right / left if left and right is not None else nan
            rows.append({"kind": kind, "name": name, "one": left, "other": right, "ratio": ratio})
        elif left != right:
            rows.append({"kind": kind, "name": name, "one": left, "other": right, "ratio": nan})
    return pd.DataFrame(rows, columns=COLUMNS)


def _pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for name in _OF_RUN:
        yield "run", name, one.get(name), other.get(name)
    for kind, part in (("parameter", "parameters"), ("version", "versions"), ("machine", "machine")):
        for name in sorted({*one[part], *other[part]} - set(_OF_RUN)):  # parameters have some of them, too
            yield kind, name, one[part].get(name), other[part].get(name)
    for name, measure in MEASURES.items():
        left, right = (known(measure(run.get("summary") or {})) for run in (one, other))
        if left is not None or right is not None:
            yield "figure", name, left, right
