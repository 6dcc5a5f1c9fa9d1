"""What must come out of ``chain``, told from the events. Not by the operators' code."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.workloads.keycount.oracle import StateCheck, wrong_results
from keyshift.workloads.keyed import Keyed

Keys = npt.NDArray[np.int64]
_ORIGIN = ["router", "offset", "position"]


def wrong(
    workload: Keyed,
    kinds: Sequence[str],
    key_at: Callable[[int, Keys], Keys],
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterator[pd.DataFrame],
) -> Iterator[str]:
    """See ``Workload.wrong``. ``kinds``: of the stages. ``key_at``: the key of events at a stage.

    Each counter has seen each event once, so its counts are those of its keys among all events. Events of one key are
    of one key at every stage, and keep the order of each router.
    """
    keys = events["key"].to_numpy()
    counts = [np.bincount(key_at(stage, keys), minlength=workload.keys) for stage in range(len(kinds))]
    last = len(kinds) - 1
    yield from _wrong_keys(results, events, key_at(last, keys))
    if kinds[last] == "counter":
        yield from wrong_results(counts[last], results)
    checks = {stage: StateCheck(workload, counts[stage]) for stage, kind in enumerate(kinds) if kind == "counter"}
    for part in final:
        for stage in np.unique(part["stage"].to_numpy()).tolist():
            rows = part[part["stage"] == stage]
            if stage in checks:
                yield from (f"stage {stage + 1}: {line}" for line in checks[stage].wrong(rows))
            else:
                yield f"stage {stage + 1}: there are {len(rows)} keys in the final state of a stage without state"
    for stage, check in checks.items():
        yield from (f"stage {stage + 1}: {line}" for line in check.missing())


def _wrong_keys(results: pd.DataFrame, events: pd.DataFrame, expected: Keys) -> Iterator[str]:
    known = events[_ORIGIN].assign(expected=expected)
    found = results[[*_ORIGIN, "key"]].merge(known, on=_ORIGIN)
    for row in found[found["key"] != found["expected"]].itertuples():
        yield (
            f"result of router {row.router} offset {row.offset} position {row.position}: key {row.key}, expected"
            f" {row.expected}"
        )
