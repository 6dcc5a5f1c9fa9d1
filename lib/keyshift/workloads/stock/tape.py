"""The tape of a stock exchange: what it was told, line by line. Columns are separated by ``|`` and numbered from 0.

There are two forms, with all columns and with eight. A line ``end`` closes a slice of 50 ms. A code ``D`` deletes an
order; lines whose code is ``X`` or empty tell of what the exchange did, and are dropped; all others enter an order.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.errors import BadInput
from keyshift.workloads.files import lines

SLICE_US = 50_000
END, DELETES, DROPPED = "end", "D", ("X", "")
PRICE_UNITS = 10_000  # prices are whole numbers of the fourth decimal
SHOWN = 10  # bad lines of a file that are kept to be shown


class Form(NamedTuple):
    """How many columns a line has, at the least, and the numbers of those ``columns`` that have a meaning."""

    width: int
    columns: dict[str, int]


FORMS = {
    "full": Form(
        23,
        {
            **{"order": 0, "code": 1, "date": 5, "time": 6, "price": 8, "executed": 9, "volume": 10},
            **{"security": 11, "account": 13, "side": 22},
        },
    ),
    "short": Form(
        8,
        {"order": 0, "code": 1, "updated": 2, "price": 3, "executed": 4, "volume": 5, "security": 6, "side": 7},
    ),
}

# What a router is told, before it has a time: ``order`` is a number of this file, from 0.
ORDERS = pa.schema(
    [
        pa.field("order", pa.int64()),
        pa.field("deletes", pa.bool_()),  # the order is deleted; it has no side, price and volume then
        pa.field("buys", pa.bool_()),
        pa.field("price", pa.int64()),  # limit, in ten-thousandths
        pa.field("volume", pa.int64()),  # what is to be traded: of the tape's volume, what was not executed before
        pa.field("security", pa.string()),
        pa.field("account", pa.string()),  # empty in the short form
    ]
)


class _Expected(NamedTuple):
    """What a column has to look like, as a regular expression and in words; ``always``: in deletions, too."""

    pattern: str
    words: str
    always: bool = False


_ANY = _Expected(r".", "a text", always=True)
_EXPECTED = {
    "order": _ANY,
    "date": _Expected(r"^\d{8}$", "a date as yyyyMMdd", always=True),
    "time": _Expected(r"^\d\d:\d\d:\d\d", "a time as HH:mm:ss", always=True),
    "price": _Expected(r"^\d{1,9}(\.\d{1,4})?$", "a price above 0, with 4 decimals at the most"),
    "executed": _Expected(r"^\d{1,12}$", "a whole number, not more than the volume"),
    "volume": _Expected(r"^\d{1,12}$", "a whole number"),
    "security": _ANY,
    "account": _ANY,
    "side": _Expected(r"^[BS]$", "B or S"),
}


@dataclass(frozen=True)
class Tape:
    """What a file has. ``orders``: of ``ORDERS``, in the order of their lines. ``examples``: the first bad lines, by
    their numbers from 1, and what is wrong with them.
    """

    form: Literal["full", "short"]
    orders: pa.RecordBatch
    lines: int
    slices: int
    dropped: int
    bad: int
    examples: list[str]

    @property
    def seconds(self) -> float:
        """How long it took at the exchange."""
        return self.slices * SLICE_US / 1e6


def read(path: str) -> Tape:
    """Read the file ``path``; lines that cannot be read are left out and counted.

    Memory: about ten times that of the file while it is read. Raises BadInput if the file cannot be read, is not UTF-8,
    is no tape of either form, or enters no order.
    """
    text = pa.array(lines("tape", path), pa.string())
    split = pc.split_pattern(text, "|")
    width = pc.list_value_length(split).to_numpy()
    ends = pc.equal(text, END).to_numpy(zero_copy_only=False)
    name = _form(path, width[~ends])
    form = FORMS[name]
    fits = ~ends & (width == form.width if name == "short" else width >= form.width)
    found = _Lines(split.filter(pa.array(fits)), form)
    place = np.cumsum(fits) - 1  # of each line among those that fit
    bad = ~ends & ~fits
    bad[fits] = found.bad
    examples = [
        f"line {row + 1} has "
        + (found.wrong(place[row]) if fits[row] else f"{width[row]} columns, expected {form.width}")
        for row in np.flatnonzero(bad)[:SHOWN].tolist()
    ]
    orders = found.orders()
    if not orders.num_rows:
        reason = f"; {examples[0]}" if examples else ""
        raise BadInput(f"tape = {path!r}: there is no order in it{reason}")
    return Tape(name, orders, len(text), int(ends.sum()), int(found.dropped.sum()), int(bad.sum()), examples)


def _form(path: str, width: npt.NDArray[np.int32]) -> Literal["full", "short"]:
    """The form of the first line that has one."""
    short, full = width == FORMS["short"].width, width >= FORMS["full"].width
    known = np.flatnonzero(short | full)
    if not len(known):
        found = f"the first line has {width[0]}" if len(width) else "there is no line with any"
        raise BadInput(f"tape = {path!r}: no tape; lines have 8 columns or 23 and more, separated by '|', and {found}")
    return "short" if short[known[0]] else "full"


class _Lines:
    """Lines of one form, by columns. ``bad``: those that cannot be read."""

    def __init__(self, split: pa.Array, form: Form) -> None:
        self._numbers_of = form.columns
        self._columns = {name: pc.list_element(split, column) for name, column in form.columns.items()}
        code = self._columns["code"]
        self._deletes = _numpy(pc.equal(code, DELETES))
        self.dropped = _numpy(pc.is_in(code, pa.array(DROPPED)))
        self._first_bad = np.full(len(code), "", dtype=object)  # the column; empty: none
        enters = ~self.dropped & ~self._deletes
        for name in [name for name in form.columns if name in _EXPECTED]:  # from left to right
            asked = ~self.dropped if _EXPECTED[name].always else enters
            bad = asked & ~_numpy(pc.match_substring_regex(self._columns[name], _EXPECTED[name].pattern))
            self._first_bad[bad & (self._first_bad == "")] = name
        self._numbers(enters & (self._first_bad == ""))
        self.bad: npt.NDArray[np.bool_] = self._first_bad != ""
        self._kept = ~self.dropped & ~self.bad

    def _numbers(self, orders: npt.NDArray[np.bool_]) -> None:
        """Find price and volume of the lines that enter ``orders``; others have zeros."""
        whole = {name: self._parsed(name, orders) for name in ("price", "executed", "volume")}
        self._price = np.rint(whole["price"] * PRICE_UNITS).astype(np.int64)
        self._volume = (whole["volume"] - whole["executed"]).astype(np.int64)
        self._first_bad[orders & (self._price <= 0)] = "price"
        self._first_bad[self._volume < 0] = "executed"

    def _parsed(self, name: str, orders: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """The numbers of a column; exact, as they have 13 digits at the most."""
        texts = pc.if_else(pa.array(orders), self._columns[name], "0")
        return pc.cast(texts, pa.float64()).to_numpy()  # type: ignore[no-any-return]

    def wrong(self, row: int) -> str:
        """Say what is wrong with a line that is bad."""
        name = self._first_bad[row]
        value = self._columns[name][row].as_py()
        return f"{value!r} in column {self._numbers_of[name]}, {name}: expected {_EXPECTED[name].words}"

    def orders(self) -> pa.RecordBatch:
        """The orders of the lines that can be read and are not dropped."""
        kept = pa.array(self._kept)
        number = self._columns["order"].filter(kept).dictionary_encode().indices.cast(pa.int64())
        account = self._columns.get("account", pa.repeat("", len(self._kept)))
        columns: list[Any] = [
            pa.array(self._deletes),
            pc.equal(self._columns["side"], "B"),
            *(pa.array(self._price), pa.array(self._volume)),
            *(self._columns["security"], account),
        ]
        return pa.RecordBatch.from_arrays([number, *(column.filter(kept) for column in columns)], schema=ORDERS)


def _numpy(mask: pa.Array) -> npt.NDArray[np.bool_]:
    return mask.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
