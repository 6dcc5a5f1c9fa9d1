"""Stored runs for a notebook that compares them: the store, and which of its runs can be compared."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd

from keyshift.analysis.tables import REPETITION, SummaryRow
from keyshift.lab.environment import open_services
from keyshift.model.errors import BadInput
from keyshift.progress import Say, progress
from keyshift.results.alike import FREE, fixed
from keyshift.results.index import MADE_BY
from keyshift.results.manifest import Summary
from keyshift.results.store import ResultStore
from keyshift.services.stack import STORE


@contextmanager
def open_store(profile: str | None = None, say: Say | None = None) -> Iterator[ResultStore]:
    """The store of a profile, and no other service; see ``open_services``."""
    with progress(say) as shown, open_services(profile, shown, needs=STORE) as endpoints:
        yield ResultStore(endpoints)


def comparable(runs: pd.DataFrame, workload: str = "", like: str = "", anywhere: bool = False) -> list[dict[str, Any]]:
    """Summary rows that differ in strategy, its settings and the seed only: of one load, on the same parameters, made
    on machines that are alike by one version of keyshift; all of them migrations of one running job, or none.

    ``runs``: of ``ResultStore.list_runs``. Those that died have no summary and are left out. ``like``: (the beginning
    of) the id of a run of ``workload``, or of any; the others are like it. Empty: like the newest of those runs. None
    if there is no such run. ``anywhere``: made wherever, and by any version. Raises BadInput for a run that is not
    among them.
    """
    ended = _ended(runs)
    chosen = ended[ended["workload"] == workload] if workload else ended
    among = len(chosen)
    if like and (chosen := chosen[chosen["run_id"].str.startswith(like)]).empty:
        of = f" of workload = {workload}" if workload else ""
        raise BadInput(f"like = {like!r}: no run{of} with a verdict begins so, of {among}; `keyshift results list`")
    if chosen.empty:
        return []
    made_by, first = [] if anywhere else MADE_BY, chosen.iloc[0]
    return [_summary(row) for row in reversed(ended.to_dict("records")) if _are_alike(row, first, FREE, made_by)]


def over_rates(runs: pd.DataFrame, rows: Sequence[SummaryRow]) -> list[dict[str, Any]]:
    """``rows``, of one rate, and those of stored runs that differ from one of them in rate and repetition only, under
    the same strategy. All get a parameter more, "events in a frame": so many keyshift has in one at that rate.

    ``runs``: of ``ResultStore.list_runs``, with those of ``rows``. As in ``comparable``, runs that died are left out,
    and what was made on other machines or by other versions. Other runs at the rate of ``rows`` are, too.
    """
    given = {row["run_id"]: row["strategy"] for row in rows}
    rates = {row["parameters"]["rate"] for row in rows}
    ended = _ended(runs).to_dict("records")
    measured = [row for row in reversed(ended) if row["run_id"] in given]
    others = []
    for row in reversed(ended):
        alike = (one for one in measured if _are_alike(row, one, {*REPETITION, "rate"}, MADE_BY))
        if row["parameters"]["rate"] not in rates and (one := next(alike, None)):
            others.append(_summary(row) | {"strategy": given[one["run_id"]]})
    return [{**row, "parameters": _with_frames(row["parameters"])} for row in (*rows, *others)]


def _ended(runs: pd.DataFrame) -> pd.DataFrame:
    """Those that did not die."""
    return runs[runs["status"].isin(["ok", "bad"])]


def _are_alike(row: Any, other: Any, free: Collection[str], made_by: Iterable[str]) -> bool:
    """Whether rows differ in parameters of ``free`` only, and were made by the same."""
    one, another = ([fixed(each, free), *(each[name] for name in made_by)] for each in (row, other))
    return one == another


def _with_frames(parameters: Mapping[str, Any]) -> dict[str, Any]:
    events = parameters["rate"] * parameters["frame_ms"] / 1000 / parameters["routers"]
    return {**parameters, "events in a frame": max(1.0, events)}  # who has any has one


def _summary(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The row as it was before it stood in a table beside others, which know more or less: no NaN, counts are whole."""
    summary = Summary.model_validate({name: row[name] for name in Summary.model_fields})
    return {**row, **summary.model_dump(mode="json")}
