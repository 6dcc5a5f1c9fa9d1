"""When frames passed the stations on their way, for the legs of latency that ``bench`` prints.

Each process writes the moments it sees into a file of its own. Nothing travels with the frames, and a job that is not
traced pays one comparison per frame.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

import pandas as pd


class Trace:
    """Rows of integers about one ``station``, as lines of a file in ``folder``: whatever dies, they are there."""

    def __init__(self, folder: str, station: str, columns: Sequence[str]) -> None:
        path = Path(folder) / f"{station}-{secrets.token_hex(4)}.csv"
        self._file = path.open("w", buffering=1)
        self._file.write(",".join(columns) + "\n")

    def add(self, *row: int) -> None:
        """Write one row, in the order of the columns; times in microseconds since the epoch."""
        self._file.write(",".join(map(str, row)) + "\n")


def read(folder: str, station: str) -> pd.DataFrame:
    """All rows that were written about ``station``."""
    return pd.concat([pd.read_csv(path) for path in sorted(Path(folder).glob(f"{station}-*.csv"))])
