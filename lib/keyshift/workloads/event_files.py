"""Event files: events of all sources of a workload in one Parquet file, which a run is offered in place of drawn ones.

A row is an event: ``source`` and ``partition`` say whose, all other columns are those of the sources, null where a
source has no such column. A row group has events of one partition, in their order, so each partition is read by itself,
and never more of it than a few thousand events at once. What the events are of is in the metadata (``FileHead``).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from keyshift.model.errors import BadInput
from keyshift.model.frames import empty
from keyshift.refusals import refusal
from keyshift.registry import unknown
from keyshift.workloads.contract import Partition, Source, Workload
from keyshift.workloads.files import input_files, new_file

HEAD = b"keyshift.events"  # in the metadata: a ``FileHead``, as JSON
WHOSE = pa.schema([pa.field("source", pa.string()), pa.field("partition", pa.int32())])
READ_EVENTS = 1 << 13  # at once, by each partition
REMEDY = "`keyshift events write` makes one"


class FileHead(BaseModel):
    """``parameters``: of the workload, those that its events depend on. ``partitions``: of each source, how many."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    workload: str
    parameters: dict[str, Any]
    partitions: dict[str, int]


def parameters_of(workload: Workload) -> dict[str, Any]:
    """The parameters that the events depend on, as others may see them."""
    known = workload.model_dump(mode="json")
    drawn = [known if source.drawn_with is None else source.drawn_with for source in workload.sources]
    return {name: known[name] for name in known if name != "bins" and any(name in names for names in drawn)}


# -- to read -----------------------------------------------------------------------------------------------------------


class EventFile:
    """What is in a file, without its events. Raises BadInput if it is no event file."""

    def __init__(self, path: str) -> None:
        self._path = path
        with _opened(path) as file:
            self._schema, metadata = file.schema_arrow, file.metadata
        raw = (self._schema.metadata or {}).get(HEAD)
        self._require(raw is not None, f"is no event file: there is no {HEAD.decode()!r} in its metadata; {REMEDY}")
        try:
            self.head = FileHead.model_validate_json(raw or b"")
        except ValidationError as error:
            said = f"{HEAD.decode()!r} in its metadata is wrong: {refusal(error.errors(), FileHead)}; {REMEDY}"
            raise BadInput(f"events = {path!r}: {said}") from None
        leaves = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
        missing = [name for name in (*WHOSE.names, "t") if name not in leaves]
        self._require(not missing, f"is no event file: there is no column {', '.join(missing)}; {REMEDY}")
        self._groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.events: defaultdict[tuple[str, int], int] = defaultdict(int)  # how many, by source and partition
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            *whose, t = (group.column(leaves.index(name)).statistics for name in (*WHOSE.names, "t"))
            one = all(each is not None and each.has_min_max and each.min == each.max for each in whose)
            self._require(
                one, f"row group {number} does not say of which one partition of a source its events are; {REMEDY}"
            )
            self._require(t is not None and t.null_count == 0, f"row group {number} has events without a time t")
            of = whose[0].min, whose[1].min
            self._groups[of].append(number)
            self.events[of] += group.num_rows

    def _require(self, holds: bool, said: str) -> None:
        if not holds:
            raise BadInput(f"events = {self._path!r}: {said}")

    def require(self, workload: Workload, routers: Mapping[str, int]) -> None:
        """Refuse a file whose events are not of ``workload`` with its parameters, or have no partition for each of the
        ``routers`` of each source: BadInput.
        """
        head = self.head
        same = head.workload == workload.name
        self._require(same, f"events of workload {head.workload}, and the run has workload = {workload.name}")
        known, files = workload.model_dump(mode="json"), input_files(type(workload))
        for name, value in head.parameters.items():
            own = known.get(name)
            # Files may be in other folders there.
            alike = Path(str(value)).name == Path(str(own)).name if name in files else value == own
            self._require(alike, f"events of {name} = {value}, and the run has {own}; set {name}={value}")
        for source in workload.sources:
            for field in source.schema:
                found = self._schema.field(field.name).type if field.name in self._schema.names else None
                self._require(
                    found == field.type,
                    f"column {field.name} of source {source.name} is {found or 'missing'}, expected {field.type}",
                )
            count, wanted = head.partitions.get(source.name, 0), routers[source.name]
            self._require(
                count == wanted,
                f"source {source.name} has {count} partitions there, and {wanted} routers in the run; set "
                f"source_routers={source.name}:{count}",
            )

    def require_enough(self, source: str, needed: list[int]) -> None:
        """Refuse a file in which a partition of ``source`` has fewer events than are ``needed`` of it: BadInput."""
        for number, count in enumerate(needed):
            there = self.events[source, number]
            self._require(
                there >= count,
                f"{there} events in partition {number} of source {source}, and the load needs {count} there, "
                f"{sum(needed)} in all; lower its rate, seconds or warmup_s, or write more",
            )

    def partition(self, source: Source, number: int) -> Partition:
        """The events of a partition of ``source``."""
        return Replayed(self._path, self._groups[source.name, number], source, number)


def _opened(path: str) -> pq.ParquetFile:
    # Not buffered as a whole row group, which may be large in a file of others.
    try:
        return pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False, page_checksum_verification=True)
    except OSError as error:
        said = error.strerror or str(error).partition("\n")[0]
        raise BadInput(f"events = {path!r}: cannot be read ({said}); give an event file, {REMEDY}") from None
    except pa.ArrowInvalid:
        raise BadInput(f"events = {path!r}: is no Parquet file, or not a whole one; {REMEDY}") from None


class Replayed:
    """Events as they are in these row ``groups``, at other times: all that are points in time move as ``t`` does. See
    ``Partition``.
    """

    def __init__(self, path: str, groups: list[int], source: Source, number: int) -> None:
        self._source, self._where = source, f"events = {path!r}: partition {number} of source {source.name}"
        self._batches: Iterator[pa.RecordBatch] = _opened(path).iter_batches(
            READ_EVENTS, row_groups=groups, columns=source.schema.names, use_threads=False
        )
        self._left = empty(source.schema)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before. Raises BadInput if there are not so many,
        or the file is damaged.
        """
        while (missing := len(times) - self._left.num_rows) > 0:
            self._left = pa.concat_batches([self._left, self._read(missing)])
        whole, self._left = self._left.slice(0, len(times)), self._left.slice(len(times))
        return self._source.moved(whole, pa.array(times - whole["t"].to_numpy()))

    def _read(self, missing: int) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except StopIteration:
            raise BadInput(f"{self._where} is over, and {missing} more of its events are due") from None
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"{self._where} is damaged: {str(error).partition(chr(10))[0]}") from None
        return batch.select(self._source.schema.names)


# -- to write ----------------------------------------------------------------------------------------------------------


class EventWriter:
    """A writer of the events of ``sources``, each with so many ``partitions``, by the ``writer`` of their file."""

    def __init__(self, writer: pq.ParquetWriter, sources: Sequence[Source], partitions: Mapping[str, int]) -> None:
        self._writer, self._partitions = writer, partitions
        self._sources = {source.name: source for source in sources}

    def write(self, source: str, partition: int, events: pa.RecordBatch) -> None:
        """Write the next events of a partition, which a reader gets in the order in which they were written.

        Raises BadInput if they are not such as the source has, or their partition is none of it.
        """
        if (of := self._sources.get(source)) is None:
            raise unknown("source", source, list(self._sources))
        if not 0 <= partition < (count := self._partitions[source]):
            raise BadInput(f"partition = {partition}: source {source} has partitions 0 to {count - 1}")
        try:
            table = pa.Table.from_batches([events]).select(of.schema.names).cast(of.schema)
        except (KeyError, ValueError) as error:  # what Arrow raises, too
            raise BadInput(f"events of source {source}: {error}") from None
        rows, schema = table.num_rows, self._writer.schema
        whose = pa.repeat(source, rows), pa.repeat(pa.scalar(partition, pa.int32()), rows)
        known = dict(zip([*WHOSE.names, *of.schema.names], [*whose, *table.columns], strict=True))
        columns = [known[each.name] if each.name in known else pa.nulls(rows, each.type) for each in schema]
        if rows:
            self._writer.write_table(pa.table(columns, schema=schema), row_group_size=rows)


def _schema_of(sources: Sequence[Source]) -> pa.Schema:
    """All columns of a file. Raises BadInput if two have the same name and not the same type."""
    fields = {field.name: field.type for field in WHOSE}
    for source in sources:
        for name, kind in zip(source.schema.names, source.schema.types, strict=True):
            if name in WHOSE.names or fields.setdefault(name, kind) != kind:
                raise BadInput(
                    f"column {name} of source {source.name}: an event file has another column of this name, which is "
                    f"{fields[name]}; rename it"
                )
    return pa.schema(list(fields.items()))


@contextmanager
def event_writer(path: Path, workload: Workload, partitions: Mapping[str, int]) -> Iterator[EventWriter]:
    """Writes a new file of events of ``workload``, with so many ``partitions`` of each source. Nothing is left of one
    that was not completed. Raises BadInput if there is such a file, or none can be there.
    """
    head = FileHead(workload=workload.name, parameters=parameters_of(workload), partitions=dict(partitions))
    schema = _schema_of(workload.sources).with_metadata({HEAD: head.model_dump_json()})
    with (
        new_file(repr(str(path)), path) as out,
        pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        yield EventWriter(writer, workload.sources, partitions)
