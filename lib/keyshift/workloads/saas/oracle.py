"""What must come out of ``saas``, told by SQL over the events, from what it means alone. Not by the operators' code.

Which rules a document meets depends on what came before it, and routers interleave as they like. So each result tells
which place its event had, and it is checked that there is an order with these places, and what it gives.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from keyshift.workloads.contract import ORIGIN
from keyshift.workloads.tables import Tables, misplaced
from keyshift.workloads.times import Times

if TYPE_CHECKING:
    from keyshift.workloads.saas import Saas

# Statements. ``events`` are those of the first stage; ``results`` tell of each of them its number at the join (``seq``)
# and at the qualifier (``turn``). ``$employees`` and ``$spread`` are parameters. Documents are of kind 0, rules of a
# customer 1, global ones 2.

_TOLD = """
    SELECT e.router, e."offset", e."position", e.key AS customer, e.key % $spread AS bucket, e.kind, e.alert, e.path,
           e.value, e.body, e.key * $employees + greatest(e.employee, 0) AS home,
           r.key AS told_key, r.kind AS told_kind, r.seq, r.turn, r.raised, r.count
    FROM events e JOIN results r ON e.router = r.router AND e."offset" = r."offset" AND e."position" = r."position"
"""

_FIRST = """
    SELECT {by}, alert, min({number}) AS since, arg_min(path, {number}) AS path, arg_min(value, {number}) AS value
    FROM told WHERE kind = {kind} GROUP BY {by}, alert
"""
_LOCAL = _FIRST.format(by="customer", number="seq", kind=1)
_SHARED = _FIRST.format(by="bucket", number="turn", kind=2)

_LOCATION = """'result of router ' || router || ' offset ' || "offset" || ' position ' || "position" || ': '"""

# 1, 2, ... of each customer, or key of the qualifier; a router's events of one customer keep their order on the way to
# both. What is of kind ``other`` does not come there.
_NUMBERED = f"""
    SELECT {_LOCATION} || '{{number}} ' || {{number}} || ' {{whose}} cannot be' AS wrong FROM (
        SELECT *, row_number() OVER (PARTITION BY {{by}}, kind = {{other}} ORDER BY {{number}}) AS place,
               lag({{number}}) OVER (PARTITION BY customer, router, kind = {{other}} ORDER BY "offset", "position")
               AS before
        FROM told
    ) WHERE CASE WHEN kind = {{other}} THEN {{number}} <> 0
                 ELSE {{number}} <> place OR coalesce(before >= {{number}}, false) END
"""

# Each gives a line (``wrong``) for each result that cannot be.
_RESULTS = (
    f"""
    SELECT {_LOCATION} || 'key ' || told_key || ' and kind ' || told_kind || ', expected ' || home || ' and ' || kind
           AS wrong
    FROM told WHERE told_key <> home OR told_kind <> kind
    """,
    _NUMBERED.format(number="seq", by="customer", whose="of customer ' || customer || '", other=2),
    _NUMBERED.format(number="turn", by="bucket", whose="of key ' || bucket || ' of the qualifier", other=1),
    # The rules that were there before: the first of each alert.
    f"""
    WITH met AS (
        SELECT d.router, d."offset", d."position", r.alert FROM told d JOIN local r ON d.customer = r.customer
        WHERE d.kind = 0 AND r.since < d.seq AND json_extract_string(d.body, r.path) = r.value
        UNION
        SELECT d.router, d."offset", d."position", r.alert FROM told d JOIN shared r ON d.bucket = r.bucket
        WHERE d.kind = 0 AND r.since < d.turn AND json_extract_string(d.body, r.path) = r.value
    ), expected AS (
        SELECT router, "offset", "position", list_sort(list(alert)) AS alerts FROM met GROUP BY ALL
    )
    SELECT {_LOCATION} || 'alerts ' || raised::VARCHAR || ', expected ' || coalesce(alerts, [])::VARCHAR AS wrong
    FROM told LEFT JOIN expected USING (router, "offset", "position") WHERE raised <> coalesce(alerts, [])
    """,
    # The alerts of an employee add up in some order, which is that of each router.
    f"""
    WITH counted AS (
        SELECT *, len(raised) AS many,
               sum(len(raised)) OVER (PARTITION BY home, many > 0 ORDER BY count ROWS UNBOUNDED PRECEDING) AS total,
               lag(count) OVER (PARTITION BY home, router ORDER BY "offset", "position") AS before
        FROM told WHERE kind = 0
    )
    SELECT {_LOCATION} || 'count ' || count || ' of employee ' || home || ' cannot be' AS wrong FROM counted c
    WHERE coalesce(before > count - many, false) OR CASE
        WHEN many > 0 THEN count <> total
        ELSE count <> 0 AND NOT EXISTS (FROM counted o WHERE o.home = c.home AND o.many > 0 AND o.count = c.count)
    END
    """,
    f"""
    SELECT {_LOCATION} || 'a rule has count ' || count || ' and raises ' || raised::VARCHAR AS wrong
    FROM told WHERE kind <> 0 AND (count <> 0 OR len(raised) > 0)
    """,
)

_RULES = """
    WITH counts AS (SELECT {by} AS key, count(*) AS count FROM told WHERE kind <> {other} GROUP BY {by}),
    lists AS (
        SELECT {by} AS key, list(alert ORDER BY since) AS alerts, list(path ORDER BY since) AS paths,
               list(value ORDER BY since) AS values
        FROM {rules} GROUP BY {by}
    )
    SELECT key, count, coalesce(alerts, []) AS alerts, coalesce(paths, []) AS paths, coalesce(values, []) AS values
    FROM counts LEFT JOIN lists USING (key)
"""
# The final state of each stage, by key.
_STATES = (
    _RULES.format(by="customer", other=2, rules="local"),
    _RULES.format(by="bucket", other=1, rules="shared"),
    "SELECT home AS key, sum(len(raised))::BIGINT AS count FROM told WHERE kind = 0 GROUP BY home HAVING count > 0",
)
_UNLIKE = """
    SELECT 'final state of key ' || key || ' of the {stage}: '
           || coalesce((SELECT count FROM state f WHERE f.key = u.key LIMIT 1)::VARCHAR, 'nothing')
           || ' events, alerts or rules, expected '
           || coalesce((SELECT count FROM wanted w WHERE w.key = u.key LIMIT 1)::VARCHAR, 'nothing') AS wrong
    FROM (SELECT DISTINCT key FROM (
        (FROM state EXCEPT ALL FROM wanted) UNION ALL (FROM wanted EXCEPT ALL FROM state)
    )) u
"""


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
    ask.derive(told=_TOLD, local=_LOCAL, shared=_SHARED)
    for statement in _RESULTS:
        yield from ask.lines(statement, "{wrong}")

    parts: list[list[pd.DataFrame]] = [[] for _ in workload.stages]
    for part in final:
        yield from misplaced(workload, part)
        for number, some in enumerate(parts):
            if len(mine := part[part["stage"] == number]):  # it has the columns of another stage otherwise
                some.append(mine)
    for stage, some, expected in zip(workload.stages, parts, _STATES, strict=True):
        schema = pa.schema([pa.field("key", pa.int64()), *stage.operator().state_schema])
        found = pa.concat_tables([schema.empty_table(), *(_typed(part, schema) for part in some)])
        ask.derive(wanted=expected)
        yield from ask.lines(_UNLIKE.format(stage=stage.name), "{wrong}", state=found)


def _typed(table: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """The table with its types: those of lists cannot be seen where all are empty."""
    return pa.Table.from_pandas(table[schema.names], schema.remove_metadata(), preserve_index=False)
