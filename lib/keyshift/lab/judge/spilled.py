"""What went into a job and what came out of it, on disk: for a verdict on some units at a time, in bounded memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.folders import REMEDY
from keyshift.lab.judge.final_state import FinalState, judging, waited_for
from keyshift.model.errors import service_errors
from keyshift.model.keys import ALL_UNITS, units_of
from keyshift.results import verdict
from keyshift.traffic.traffic import Portions, Traffic
from keyshift.workloads import Workload

SLICES = 1 << 10  # of the units, if there are so many: none is in two files
_ROW = "_row"  # no workload has a column of this name


def spilled_of(
    workload: Workload, traffic: Traffic, offered: int, final: FinalState, overloaded: bool
) -> "Spilled | None":
    """Spill to disk what went into a job that has ended and came out of it, if it is much and nothing of it is needed
    as a whole. ``overloaded``: see ``EndedJob``.
    """
    if offered <= verdict.TOGETHER_EVENTS or workload.only(ALL_UNITS) is None:
        return None
    if traffic.portions is None or final.cuts is not None or final.repeats or final.told_of:
        return None
    if overloaded and not final.offsets:
        return None
    return Spilled(workload, traffic.portions, offered, final.offsets if overloaded else None, final.offsets)


class Spilled:
    """Events and results of a run on disk, in files for *slices* of neighbouring units, of which each part of a verdict
    has some. ``offered``: about how many events. ``before``: see ``Traffic.offered``. ``ends``: see ``waited_for``.

    ``made``: how many events, of which so many are ``left_out``, as nobody waited for them. ``frames``: all of them.
    ``begins``: of parts, see ``judge_parts``.
    Raises ServiceUnavailable if the disk is full, or what is to be read is not there any more.
    """

    def __init__(
        self,
        workload: Workload,
        portions: Portions,
        offered: int,
        before: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        self._workload, self._portions = workload, portions
        units = workload.key_groups * workload.bins
        slices = min(units, max(SLICES, 2 * offered // verdict.PART_EVENTS))
        self._events, self._results = (
            _SlicedRows(portions.folder / name, workload, slices) for name in ("events", "results")
        )
        frames, self.made = [], 0
        all_due = all(stage.due is None for stage in workload.stages)
        for some, of_some in portions.events(before):
            self.made += len(some)
            if ends and not all_due:
                some = some.take(waited_for(workload, some.to_pandas(), ends).index.to_numpy())
            self._events.add(some)
            frames.append(of_some)
        for some in portions.results():
            self._results.add(some)
        self._events.write()
        self._results.write()
        self.frames: pd.DataFrame = pd.concat(frames, ignore_index=True)
        kept = int(self._events.counts.sum())
        self.left_out = self.made - kept
        parts = max(1, -(-kept // verdict.PART_EVENTS))
        part_of, begins = verdict.shared_out(self._events.counts, parts)
        self.begins: list[int] = (-(-begins * units // slices)).tolist()
        self._parts = [np.flatnonzero(part_of == number).tolist() for number in range(len(begins) + 1)]

    def judged(self, offered: int, final: FinalState) -> verdict.Judgement:
        """The verdict; see ``final_state.judged``."""
        return verdict.judge_parts(self._workload, self.begins, self.some, judging(offered, self.frames, final))

    def some(self, *parts: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The events and results of some parts, in the order in which they came."""
        slices = [each for number in parts for each in self._parts[number]]
        found = self._events.read(slices), self._results.read(slices)
        pa.default_memory_pool().release_unused()  # what reading took
        return found

    def some_events(self) -> Iterator[pd.DataFrame]:
        """All events, some at a time."""
        return (self._events.read(slices) for slices in self._parts)

    def some_results(self) -> Iterator[pd.DataFrame]:
        """All results, some at a time, in the order in which they came."""
        return (some.to_pandas() for some in self._portions.results())


class _SlicedRows:
    """Rows of a table with a ``key``, in files of ``folder`` by the slice that it is in."""

    def __init__(self, folder: Path, workload: Workload, slices: int) -> None:
        self._folder, self._workload, self._slices = folder, workload, slices
        self._waiting: list[pa.Table] = []  # to be written together
        self._unwritten = self._row = 0
        self._schema = pa.schema([])
        self.counts = np.zeros(slices, np.int64)  # rows of each slice that are written
        with self._errors():
            folder.mkdir(parents=True)

    def add(self, rows: pa.Table) -> None:
        """Take some rows, behind those before."""
        self._waiting.append(rows)
        self._unwritten += len(rows)
        if self._unwritten >= verdict.PART_EVENTS:
            self.write()

    def write(self) -> None:
        """Write down what waits."""
        if not self._waiting:
            return
        rows, self._waiting, self._unwritten = pa.concat_tables(self._waiting), [], 0
        rows = rows.append_column(_ROW, pa.array(np.arange(self._row, self._row + len(rows))))
        self._row, self._schema = self._row + len(rows), rows.schema
        groups, bins = self._workload.key_groups, self._workload.bins
        unit_of = units_of(rows["key"].to_numpy(), groups, bins).astype(np.int64)
        slice_of = unit_of * self._slices // (groups * bins)
        counts = np.bincount(slice_of, minlength=self._slices)
        self.counts += counts
        rows, ends = rows.take(np.argsort(slice_of, kind="stable")), np.cumsum(counts)
        with self._errors():
            for number in np.flatnonzero(counts).tolist():
                with open(self._folder / str(number), "ab") as file:
                    for batch in rows.slice(ends[number] - counts[number], counts[number]).to_batches():
                        file.write(batch.serialize())

    def read(self, slices: Sequence[int]) -> pd.DataFrame:
        """The rows of some slices, in the order in which they came."""
        batches: list[pa.RecordBatch] = []
        with self._errors():
            for number in slices:
                if self.counts[number]:
                    with pa.OSFile(str(self._folder / str(number))) as file:
                        for message in pa.ipc.MessageReader.open_stream(file):
                            batches.append(pa.ipc.read_record_batch(message, self._schema))
        rows = pa.Table.from_batches(batches, self._schema).sort_by(_ROW).drop_columns(_ROW)
        return rows.to_pandas(split_blocks=True, self_destruct=True)

    def _errors(self) -> AbstractContextManager[None]:
        begin = f"what went in and came out cannot be kept in {self._folder} for its verdict"
        return service_errors(OSError, lambda error: f"{begin}: {error.strerror or error}; {REMEDY}")
