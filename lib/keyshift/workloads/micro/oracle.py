"""What must come out of ``micro``, told from the events. Not by the operator's code."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from keyshift.workloads.keycount.oracle import StateCheck, wrong_results
from keyshift.workloads.keyed import Keyed
from keyshift.workloads.times import lines

_ORIGIN = ["router", "offset", "position"]


def wrong(workload: Keyed, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame]) -> Iterator[str]:
    """See ``Workload.wrong``. Records that write are counted as in ``keycount``.

    One that reads has the count of writes that its payload has, too, at most as many as there are; and for the events
    of a router and key the count never shrinks, and grows with each write.
    """
    counts = np.bincount(events.loc[events["writes"], "key"], minlength=workload.keys)
    results = results.merge(events[[*_ORIGIN, "writes"]], on=_ORIGIN)
    writes = results["writes"]
    yield from wrong_results(counts, results[writes])

    key = results["key"]
    most = pd.Series(counts[key.where(key.between(0, workload.keys - 1), 0)], results.index)
    odd = (results["count"] != results["stamp"]) | ~results["count"].between(0, most)
    text = (
        "result of router {router} offset {offset} position {position}, which reads: key {key} has count {count} and"
        " stamp {stamp}; expected both the same, and not more than {most} writes"
    )
    yield from lines(results.assign(most=most), ~writes & odd, text)
    ordered = results.sort_values(["key", *_ORIGIN])
    behind = ordered.groupby(["key", "router"])["count"].diff() < ordered["writes"]
    text = (
        "result of router {router} offset {offset} position {position}: key {key} has count {count}, which its router"
        " had left behind"
    )
    yield from lines(ordered, behind & ~ordered["writes"], text)

    check = StateCheck(workload, counts)
    for part in final:
        yield from check.wrong(part)
    yield from check.missing()
