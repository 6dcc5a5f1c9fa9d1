"""What the slots of ``saas`` compute: which rules are known, which of them a document meets, how many alerts it raises.

An event has a number among those of its key at the join (``seq``) and at the qualifier (``turn``), 0 where it is none:
so it is known which rules were there before a document.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.model.keys import UnitId
from keyshift.state import UnitState
from keyshift.workloads.contract import KeyedStage, Operator
from keyshift.workloads.operators import ResultMaker
from keyshift.workloads.saas.source import DOCUMENT, EVENTS, GLOBAL, RULE

if TYPE_CHECKING:
    from keyshift.workloads.saas import Saas

_INTS, _TEXTS = pa.int64(), pa.string()
_RULES = (
    pa.field("alerts", pa.list_(_INTS)),
    pa.field("paths", pa.list_(_TEXTS)),
    pa.field("values", pa.list_(_TEXTS)),
)
# Events of the key so far, and the rules that are known, in the order in which they came.
RULES_STATE = pa.schema([pa.field("count", _INTS), *_RULES])

_KIND, _SEQ, _EMPLOYEE = pa.field("kind", pa.int8()), pa.field("seq", _INTS), pa.field("employee", _INTS)
_CUSTOMER, _TURN, _RAISED = pa.field("customer", _INTS), pa.field("turn", _INTS), pa.field("raised", pa.list_(_INTS))
# Of a document ``_RULES`` are the customer's, of a global rule they are that rule.
JOINED = (_KIND, _SEQ, _EMPLOYEE, *_RULES, pa.field("body", _TEXTS))
QUALIFIED = (_KIND, _SEQ, _TURN, _CUSTOMER, _EMPLOYEE, _RAISED)
COUNTED = (_KIND, _SEQ, _TURN, _RAISED, pa.field("count", _INTS))
TO_QUALIFIER = pa.schema([*EVENT_FIELDS, _CUSTOMER, *JOINED])
TO_COUNTER = pa.schema([*EVENT_FIELDS, _KIND, _SEQ, _TURN, _RAISED])

Known = tuple[int, list[int], list[str], list[str]]
_NOTHING: Known = 0, [], [], []


def chain(workload: "Saas") -> tuple[KeyedStage, ...]:
    """The join by customer, the qualifier by ``spread`` keys, the counter by employee."""
    return (
        KeyedStage("rules", EVENTS, JOINED, Join),
        KeyedStage("qualifier", TO_QUALIFIER, QUALIFIED, Qualifier, partial(_to_qualifier, workload.spread)),
        KeyedStage("counter", TO_COUNTER, COUNTED, Counter, partial(_to_counter, workload.employees)),
    )


def _to_qualifier(spread: int, results: pa.RecordBatch) -> pa.RecordBatch:
    customer = results["key"]
    return results.set_column(0, "key", pa.array(customer.to_numpy() % spread)).append_column("customer", customer)


def _to_counter(employees: int, results: pa.RecordBatch) -> pa.RecordBatch:
    """Events of the counter, by employee; a rule, which is of no employee, is with the first one."""
    customer, employee = (results[name].to_numpy() for name in ("customer", "employee"))
    return results.set_column(0, "key", pa.array(customer * employees + np.maximum(employee, 0)))


def _rows(events: pa.RecordBatch, schema: pa.Schema) -> Iterable[Sequence[Any]]:
    """The rows of ``events``: unit, and the columns of ``schema`` but for the time."""
    names = ["unit", *(name for name in schema.names if name != "t")]
    return zip(*(events[name].to_pylist() for name in names), strict=True)


def _learned(known: Known, alert: int, path: str, value: str) -> Known:
    """Return what is known with one event more, a rule. One of an alert that is known changes nothing else."""
    count, alerts, paths, values = known
    if alert in alerts:
        return count + 1, alerts, paths, values
    return count + 1, [*alerts, alert], [*paths, path], [*values, value]


class Join(Operator):
    """A document gets the rules of its customer."""

    state_schema = RULES_STATE
    _results = ResultMaker(JOINED)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event."""
        rows = []
        for unit, key, kind, employee, alert, path, value, body in _rows(events, EVENTS):
            if kind == GLOBAL:
                rows.append((kind, 0, employee, [alert], [path], [value], body))
                continue
            states = state_of(unit).values
            known = states[key] or _NOTHING
            if kind == RULE:
                states[key] = known = _learned(known, alert, path, value)
                rows.append((kind, known[0], employee, [], [], [], body))
            else:
                count, *some = known
                states[key] = count + 1, *some
                rows.append((kind, count + 1, employee, *some, body))
        return self._results.of_events(events, rows)


class Qualifier(Operator):
    """A document raises the alerts of all its rules and the global ones that it meets, each once."""

    state_schema = RULES_STATE
    _results = ResultMaker(QUALIFIED)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event."""
        rows = []
        for unit, key, customer, kind, seq, employee, alerts, paths, values, body in _rows(events, TO_QUALIFIER):
            turn, raised = 0, list[int]()
            if kind != RULE:
                states = state_of(unit).values
                count, *known = states[key] or _NOTHING
                turn = count + 1
                if kind == GLOBAL:
                    states[key] = _learned((count, *known), alerts[0], paths[0], values[0])
                else:
                    states[key] = turn, *known
                    together = zip([*alerts, *known[0]], [*paths, *known[1]], [*values, *known[2]], strict=True)
                    raised = _raised(body, together)
            rows.append((kind, seq, turn, customer, employee, raised))
        return self._results.of_events(events, rows)


def _raised(body: str, rules: Iterable[tuple[int, str, str]]) -> list[int]:
    """The alerts of those of ``rules`` that the document meets, ascending."""
    document = json.loads(body)
    return sorted({alert for alert, path, value in rules if _at(document, path) == value})


def _at(document: Any, path: str) -> Any:
    """Find what is there at a JSON path of names, ``$.name.name``; None if nothing is."""
    for name in path.split(".")[1:]:
        document = document.get(name) if isinstance(document, dict) else None
    return document


class Counter(Operator):
    """The alerts of each employee; who has raised none has no state."""

    state_schema = pa.schema([pa.field("count", _INTS)])
    _results = ResultMaker(COUNTED)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event."""
        rows = []
        for unit, key, kind, seq, turn, raised in _rows(events, TO_COUNTER):
            count = 0
            if kind == DOCUMENT:
                counts = state_of(unit).values
                (count,) = counts[key] or (0,)
                if raised:
                    count += len(raised)
                    counts[key] = (count,)
            rows.append((kind, seq, turn, raised, count))
        return self._results.of_events(events, rows)
