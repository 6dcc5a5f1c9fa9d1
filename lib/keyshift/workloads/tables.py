"""What oracles ask of a run's tables: one line for each row that is wrong. With pandas, or in SQL (DuckDB)."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from keyshift.workloads.keyed import Grouped

RESULT = "result of router {router} offset {offset} position {position}"


def lines(table: pd.DataFrame, bad: Any, text: str) -> Iterator[str]:
    """``text`` for each row that is ``bad``; it may name columns."""
    for row in table[bad].to_dict("records"):
        yield text.format_map(row)


def lengths(table: pd.DataFrame, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return how long the lists of each row are, a line of numbers for each of the columns ``names``; -1: none."""
    return np.stack([table[name].str.len().fillna(-1).astype(np.int64) for name in names])


def misplaced(workload: Grouped, part: pd.DataFrame) -> Iterator[str]:
    """One line for each row of ``part``, of a final state, whose key is of another unit."""
    text = "final state of key {key} is in unit {unit}, slot {slot}"
    yield from lines(part, part["unit"] != workload.units_of(part["key"]), text)


AnyTable: TypeAlias = pd.DataFrame | pa.Table  # of the latter types are known, also of lists that are empty


class Tables:
    """Answers statements about tables by their names. ``parameters``: what ``$name`` is in statements that have it."""

    def __init__(self, parameters: dict[str, int], **tables: AnyTable) -> None:
        import duckdb  # here: slots load the modules of oracles too, and need no database

        # Of the one database of this process: to make another takes longer than most statements.
        self._connection, self._parameters = duckdb.cursor(), parameters
        self.add(**tables)

    def add(self, **tables: AnyTable) -> None:
        """Add tables, or others in place of those of the same names. They must not change."""
        for name, table in tables.items():
            self._connection.register(name, table)

    def __call__(self, statement: str, **tables: AnyTable) -> pd.DataFrame:
        """The answer. Sums of integers are floats, unless the statement casts them."""
        answer: pd.DataFrame = self._run(statement, tables).df()
        return answer

    def derive(self, **statements: str) -> None:
        """Add the answers to these statements as tables, or in place of those of the same names."""
        for name, statement in statements.items():
            self._run(f"CREATE OR REPLACE TEMP TABLE {name} AS {statement}", {})

    def lines(self, statement: str, text: str, **tables: AnyTable) -> Iterator[str]:
        """``text`` for each row of the answer, exact. It may name columns, and so may the text in column ``wrong``."""
        answer = self._run(statement, tables)
        names = [column[0] for column in answer.description]
        for row in answer.fetchall():
            values = dict(zip(names, row, strict=True))
            yield text.replace("{wrong}", values.get("wrong", "")).format_map(values)

    def _run(self, statement: str, tables: dict[str, AnyTable]) -> Any:
        self.add(**tables)
        used = {name: value for name, value in self._parameters.items() if f"${name}" in statement}
        return self._connection.execute(statement, used)
