"""What goes into ``saas``: messages about what consumers do, rules of the control source, and how routers take them.

Proportions as published: 5 % of the documents are publishable and half of those are public; 5 % of all others are
public, too, and have leaked; 20 % of the rules are global.
"""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import EVENT_FIELDS

if TYPE_CHECKING:
    from keyshift.workloads.saas import Saas

DOCUMENT, RULE, GLOBAL = 0, 1, 2  # kinds of events of the first stage
PUBLISHABLE, PUBLIC_OF_PUBLISHABLE, LEAKED = 0.05, 0.5, 0.05
DOCUMENT_SHARED, OTHERS = "document.shared", ("user.login", "comment.added")
LABELS = ("offer", "contract", "payroll", "minutes")
# What rules look for: a JSON path of a document, and the text that is to be there.
CONDITIONS = (
    ("$.document.visibility", "public"),
    ("$.document.visibility", "public"),
    ("$.document.publishable", "yes"),
    ("$.document.label", "contract"),
    ("$.document.label", "payroll"),
)
NOBODY = -1  # the customer of a global rule, and the employee of a rule

_INTS, _TEXTS = pa.int64(), pa.string()
# A message is JSON: the customer, the employee, and, if it is about a document, its JSON as a text in ``payload``.
CONSUMER = pa.schema([pa.field("t", _INTS), pa.field("type", _TEXTS), pa.field("message", _TEXTS)])
_RULE_FIELDS = (pa.field("alert", _INTS), pa.field("path", _TEXTS), pa.field("value", _TEXTS))
CONTROL = pa.schema([pa.field("t", _INTS), pa.field("customer", _INTS), *_RULE_FIELDS])
# By customer. What a kind does not have is 0, NOBODY or empty.
EVENTS = pa.schema(
    [
        *(*EVENT_FIELDS, pa.field("kind", pa.int8()), pa.field("employee", _INTS)),
        *(*_RULE_FIELDS, pa.field("body", _TEXTS)),
    ]
)


class ConsumerPartition:
    """See ``Partition``."""

    def __init__(self, workload: "Saas", number: int) -> None:
        self._workload, self._number, self._next = workload, number, 0
        self._random = np.random.default_rng((workload.seed, number, 0))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        workload = self._workload
        draws = self._random.random((len(times), 7)).T
        types = [
            DOCUMENT_SHARED if share < workload.document_share else OTHERS[int(which * len(OTHERS))]
            for share, which in zip(draws[0], draws[1], strict=True)
        ]
        customers, employees = _drawn(draws[2], workload.customers), _drawn(draws[3], workload.employees)
        publishable = draws[4] < PUBLISHABLE
        public = draws[5] < np.where(publishable, PUBLIC_OF_PUBLISHABLE, LEAKED)
        labels = _drawn(draws[6], len(LABELS)).tolist()
        ids = range(self._next, self._next + len(times))
        self._next += len(times)
        messages = [
            _message(customer, employee, f"{self._number}-{number}", may, shared, LABELS[label])
            if of_type == DOCUMENT_SHARED
            else f'{{"customer": {customer}, "employee": {employee}}}'
            for of_type, customer, employee, number, may, shared, label in zip(
                types, customers.tolist(), employees.tolist(), ids, publishable, public, labels, strict=True
            )
        ]
        columns = [pa.array(times), pa.array(types, _TEXTS), pa.array(messages, _TEXTS)]
        return pa.RecordBatch.from_arrays(columns, schema=CONSUMER)


def _message(customer: int, employee: int, name: str, publishable: bool, public: bool, label: str) -> str:
    document = {
        "id": name,
        "visibility": "public" if public else "private",
        "publishable": "yes" if publishable else "no",
        "label": label,
    }
    payload = json.dumps({"document": document})
    return json.dumps({"customer": customer, "employee": employee, "payload": payload})


class ControlPartition:
    """See ``Partition``. Alerts are few, so that most rules are of an alert that has one already."""

    def __init__(self, workload: "Saas", number: int) -> None:
        self._workload = workload
        self._random = np.random.default_rng((workload.seed, number, 1))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` rules, whatever was taken at once before."""
        draws = self._random.random((len(times), 4)).T
        of_one = _drawn(draws[1], self._workload.customers)
        customer = np.where(draws[0] < self._workload.global_share, NOBODY, of_one)
        conditions = [CONDITIONS[number] for number in _drawn(draws[3], len(CONDITIONS)).tolist()]
        paths, values = ([condition[part] for condition in conditions] for part in (0, 1))
        columns: list[Any] = [times, customer, _drawn(draws[2], self._workload.alerts), paths, values]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, CONTROL, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=CONTROL)


def _drawn(draws: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Numbers below ``count``."""
    return (draws * count).astype(np.int64)


# -- in the routers ----------------------------------------------------------------------------------------------------


def documents(events: pa.RecordBatch) -> pa.RecordBatch:
    """Filter and unwrap: what is about a document, by customer."""
    kept = events.filter(pc.equal(events["type"], DOCUMENT_SHARED))
    messages = list(map(json.loads, kept["message"].to_pylist()))
    customers, employees, bodies = ([each[name] for each in messages] for name in ("customer", "employee", "payload"))
    nothing = [""] * kept.num_rows
    columns = [customers, kept["t"], [DOCUMENT] * kept.num_rows, employees, [0] * kept.num_rows]
    return _events([*columns, nothing, nothing, bodies])


def rules(spread: int, events: pa.RecordBatch) -> pa.RecordBatch:
    """Rules by customer. A global one is there once for each key of the qualifier, which the customers of the first
    numbers stand for.
    """
    customers = events["customer"].to_numpy()
    copies = np.where(customers == NOBODY, spread, 1)
    rows = np.repeat(np.arange(len(customers)), copies)
    copy = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    everybody = customers[rows] == NOBODY
    taken = events.take(pa.array(rows))
    kinds = np.where(everybody, GLOBAL, RULE)
    columns = [np.where(everybody, copy, customers[rows]), taken["t"], kinds, [NOBODY] * len(rows)]
    return _events([*columns, *(taken[field.name] for field in _RULE_FIELDS), [""] * len(rows)])


def _events(columns: list[Any]) -> pa.RecordBatch:
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, EVENTS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)
