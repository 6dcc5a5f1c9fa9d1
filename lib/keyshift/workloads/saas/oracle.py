"""What must come out of ``saas``, told by SQL over the events (``sql``). Not by the operators' code.

Which rules a document meets depends on what came before it, and routers interleave as they like. So each result tells
which place its event had, and it is checked that there is an order with these places, and what it gives.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from keyshift.workloads.contract import ORIGIN
from keyshift.workloads.saas.sql import LOCAL, RESULTS, SHARED, STATES, TOLD, UNLIKE
from keyshift.workloads.tables import Tables, misplaced
from keyshift.workloads.times import Times

if TYPE_CHECKING:
    from keyshift.workloads.saas import Saas


def wrong(
    workload: "Saas",
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterator[pd.DataFrame],
    times: Times | None = None,
) -> Iterator[str]:
    """See ``Workload.wrong``. One line for each result, and each key of the final state, that cannot be."""
    first, *_, last = workload.stages
    ask = Tables({"employees": workload.employees, "spread": workload.spread})
    ask.add(
        events=_typed(events, pa.schema([*first.events, *ORIGIN])),
        results=_typed(results, pa.schema([pa.field("key", pa.int64()), *ORIGIN, *last.result_fields])),
    )
    ask.derive(told=TOLD)
    ask.derive(local=LOCAL, shared=SHARED)
    for statement in RESULTS:
        yield from ask.lines(statement, "{wrong}")

    parts: list[list[pd.DataFrame]] = [[] for _ in workload.stages]
    for part in final:
        yield from misplaced(workload, part)
        for number, some in enumerate(parts):
            if len(mine := part[part["stage"] == number]):  # it has the columns of another stage otherwise
                some.append(mine)
    for stage, some, expected in zip(workload.stages, parts, STATES, strict=True):
        schema = pa.schema([pa.field("key", pa.int64()), *stage.operator().state_schema])
        found = pa.concat_tables([schema.empty_table(), *(_typed(part, schema) for part in some)])
        ask.derive(wanted=expected)
        yield from ask.lines(UNLIKE.format(stage=stage.name), "{wrong}", state=found)


def _typed(table: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """The table with its types: those of lists cannot be seen where all are empty."""
    return pa.Table.from_pandas(table[schema.names], schema.remove_metadata(), preserve_index=False)
