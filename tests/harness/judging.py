"""The verdict on a run and on its snapshots, as ``lab.judge.evaluation`` asks for them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from keyshift.driver.job import Job
from keyshift.lab.judge.final_state import FinalState, cuts_of, judged, judged_cuts, of_job
from keyshift.results.verdict import Judgement
from keyshift.wire.savepoint import SavepointStore
from keyshift.workloads import Workload

KINDS = ("lost", "duplicated", "reordered", "wrong", "foreign", "unexpected", "unread")  # of the verdict
Topic = tuple[pd.DataFrame, pd.DataFrame]  # events, and frames


def final_state(job: Job, left_behind: Mapping[str, Collection[tuple[int, int]]]) -> FinalState:
    """Of a job that has stopped: its last savepoint, and the way there."""
    return of_job(job, left_behind)


def problems(
    workload: Workload, topic: Topic, offered: int, results: pd.DataFrame, final: FinalState
) -> Iterator[tuple[str, str]]:
    """The kinds of mistakes that were found, and what."""
    found = judged(workload, offered, *topic, results, final)
    for kind in KINDS:
        if count := getattr(found, kind):
            yield kind, f"{count}: {'; '.join(line for line in found.examples if line.startswith(kind))}"


def snapshots(
    workload: Workload, topic: Topic, results: pd.DataFrame, final: FinalState, store: SavepointStore
) -> dict[str, Judgement]:
    """The verdict on each snapshot in the ``store``, by its name."""
    return judged_cuts(workload, *topic, results, replace(final, cuts=cuts_of(store, final)))


def none_is_bad(outcomes: Collection[Any], seen: Counter[str] | None = None) -> None:
    """``seen`` adds up what they had."""
    for outcome in outcomes if seen is not None else ():
        seen.update(outcome.seen)
    bad = [outcome for outcome in outcomes if outcome.problems]
    assert not bad, "\n\n".join(map(str, bad))
