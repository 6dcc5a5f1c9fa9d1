"""The verdict on a run, as ``lab.outcome`` asks for it."""

from collections.abc import Collection, Iterator, Mapping

import pandas as pd

from keyshift.executor.job import Job
from keyshift.lab.final_state import judged, of_job
from keyshift.workloads import Workload

KINDS = ("lost", "duplicated", "reordered", "wrong", "foreign", "unexpected", "unread")  # of the verdict


def problems(
    workload: Workload,
    topic: tuple[pd.DataFrame, pd.DataFrame],
    offered: int,
    results: pd.DataFrame,
    job: Job,
    left_behind: Mapping[str, Collection[tuple[int, int]]],
) -> Iterator[tuple[str, str]]:
    """The kinds of mistakes that were found, and what. The last savepoint of the job is the final state."""
    events, frames = topic
    of_stages = {name: {"left_behind": units} for name, units in left_behind.items()}
    found = judged(workload, offered, events, frames, results, of_job(job, of_stages))
    for kind in KINDS:
        if count := getattr(found, kind):
            yield kind, f"{count}: {'; '.join(line for line in found.examples if line.startswith(kind))}"
