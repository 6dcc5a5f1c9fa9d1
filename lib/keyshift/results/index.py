"""The index of a store: one row per run, so that a list of runs reads no manifest.

It is never the truth, only faster: a run is there if its folder is, and what the index does not say of it is read from
its manifest (``ResultStore.list_runs``). So nothing is lost if it is incomplete, damaged or deleted.

Each change is an object of its own with a new name, so that writers at the same time do not overwrite each other: an
entry (one run) or a page (many). A reader that finds many objects puts what they say into one page, writes it, and
removes only those that it has read. Of several rows of a run the one written last counts.
"""

import gzip
import json
import secrets
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from keyshift.clock import now_us
from keyshift.model.errors import Damaged, KeyshiftError, NotThere
from keyshift.objects import Bucket
from keyshift.results.manifest import NEW_NAMES, SCHEMA_VERSION, Summary

IndexRow = Mapping[str, Any]
MOST = 32  # objects that are read one by one: a list takes about 5 ms for each
TRIES = 3
MADE_BY = ["machine", "keyshift"]  # of a row, beside the summary: the manifest's machine, and keyshift's version
# Another keyshift has rows with other fields, or with parameters by other names: it keeps an index of its own, and each
# reads what the other stored.
VERSION = f"{SCHEMA_VERSION}-{zlib.crc32(' '.join([*Summary.model_fields, *MADE_BY, *NEW_NAMES]).encode()):08x}"


class Index:
    """``bucket``: of the index alone. Every method may raise ServiceUnavailable, but for what is said."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def add(self, rows: Iterable[IndexRow]) -> None:
        """Add rows as JSON has them, with ``run_id``; raise nothing if the store refuses: the manifest has it, too."""
        with suppress(KeyshiftError):
            self._write({row["run_id"]: (now_us(), row) for row in rows})

    def forget(self, run_id: str) -> None:
        """Let what the index says of a run count no more; to be called before anything of the run is removed."""
        self._write({run_id: (now_us(), None)})

    def rows(self, runs: Collection[str]) -> dict[str, IndexRow | None]:
        """Return what is known of each of ``runs``, by its id; None of one that is to be looked at.

        Writes a page if many objects are there. What is not of ``runs`` is left out of it.
        """
        there = set(runs)
        for _ in range(TRIES):
            names = self._bucket.names(f"{VERSION}/")
            with suppress(NotThere):  # another reader has put them into a page just now
                known: dict[str, tuple[int, IndexRow | None]] = {}
                for name in names:
                    for run_id, (at_us, row) in self._read(name).items():
                        if run_id in there and (run_id not in known or known[run_id][0] <= at_us):
                            known[run_id] = at_us, row
                if len(names) > MOST:
                    with suppress(KeyshiftError):  # who may not write may read
                        self._write(known)
                        self._bucket.remove(names)
                return {run_id: row for run_id, (_, row) in known.items()}
        return {}

    def _write(self, known: Mapping[str, tuple[int, IndexRow | None]]) -> None:
        if known:
            content = gzip.compress(json.dumps(known).encode(), compresslevel=3)
            self._bucket.put(f"{VERSION}/{now_us()}-{secrets.token_hex(4)}", content)

    def _read(self, name: str) -> dict[str, tuple[int, IndexRow | None]]:
        try:
            content = self._bucket.read(name)
            found: dict[str, tuple[int, IndexRow | None]] = json.loads(gzip.decompress(content))
        except (Damaged, EOFError, OSError, ValueError, zlib.error):
            return {}  # damaged: as if it were not there
        return found
