"""Savepoints and snapshots in MinIO: segments of state written by the slots, a manifest written last by the job.

A segment holds parts of many units, one after the other. A part is three Arrow IPC streams, each behind its length: the
unit's timers, the keys that were deleted since the part before, the values that were set (nothing at all where there
are none). The slot's index has beginning, length and CRC of each part, so that the slots of a query with another number
of slots read just the units they own. In a savepoint a unit is one part; in a snapshot it may be several, the first of
which is the whole, and those of earlier snapshots are not written again. Each part names the one that it follows, as
the slot knew it when it took the part out of its state: a snapshot in which one is missing is not committed.
"""

import json
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, TypeAdapter, ValidationError

from keyshift.endpoints import Endpoints
from keyshift.model import frames
from keyshift.model.errors import BadInput, Damaged, NotThere, ProtocolViolation
from keyshift.model.keys import Assignment, SlotId, UnitId, Versions, VersionsInJson
from keyshift.objects import Bucket, ByteProgress
from keyshift.ordering import Position
from keyshift.refusals import refusal
from keyshift.runtime.snapshots import SnapshotPart
from keyshift.state import UnitState, rows
from keyshift.state.timers import TIMER_SCHEMA
from keyshift.wire.config import JobConfig
from keyshift.wire.nodes import Location, RouterSaved, Saved, of_router, of_slot
from keyshift.workloads import Workload

FORMAT = 2  # of manifests and segments; another one is not read
SEGMENT_BYTES = 64 << 20
PORTION_BYTES, PORTION_UNITS = 8 << 20, 4096  # of the state that is read together, more or less
GAP_BYTES = 64 << 10  # between two parts that are read together: to ask twice takes longer than to read so much more
_LENGTH_BYTES = 8
_MANIFEST = "manifest.json"
_DELETED = pa.schema([pa.field("key", pa.int64())])


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A committed savepoint: where each router continues, and how much state it holds, by stage and unit.

    ``turns``: the last one of each slot, by stage, if they work in turns.
    """

    name: str
    offsets: dict[int, int]
    unit_bytes: dict[str, dict[int, int]]
    turns: dict[str, dict[int, int]] = field(default_factory=dict)


class SavedUnit(NamedTuple):
    """A unit as it was written, all its parts together."""

    unit: UnitId
    values: list[pa.RecordBatch]
    timers: pa.RecordBatch


@dataclass
class SavedStage:
    """One stage in a savepoint or a snapshot. ``locations``: where each slot wrote the parts of its units, which
    belong to ``assignment``; ``places`` in a manifest. ``positions``: where each slot stood in its order, if they work
    in turns.
    """

    assignment: Assignment
    locations: Annotated[dict[SlotId, list[Location]], Field(alias="places")]
    positions: dict[SlotId, Position] = field(default_factory=dict)

    def placed(self, slots: int, routers: int) -> dict[SlotId, Position]:
        """Return where each of so many slots goes on, if they work in turns: all stand behind the same turn. A slot
        that was not there has no turns to be compared with those of other replicas, so its chain begins anew. The stage
        before may have another number of slots now: they are so many ``routers``, and stand behind one turn, too.
        """
        known = next(iter(self.positions.values()), None)
        if known is None:
            return {}
        placed = {slot: self.positions.get(slot, replace(known, chain=0)) for slot in map(SlotId, range(slots))}
        return {slot: position.of_channels(routers) for slot, position in placed.items()}

    def by_unit(self) -> dict[UnitId, list[Location]]:
        """The locations of the parts of each unit, whoever wrote them, in their order."""
        found: dict[UnitId, list[Location]] = {}
        for locations in self.locations.values():
            for location in locations:
                found.setdefault(location.unit, []).append(location)
        return found


@dataclass
class SavepointManifest:
    """What is in a savepoint or a snapshot. ``offsets``: where each router continues, and ``watermarks`` that they had
    come to. ``workload``: of the job that made it. ``revoked``: versions whose results count for nothing.
    """

    workload: str = ""
    revoked: VersionsInJson = field(default_factory=Versions)
    offsets: dict[int, int] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    stages: dict[str, SavedStage] = field(default_factory=dict)
    format: int = FORMAT

    def add(self, stage: str, said: Mapping[str, Saved], assignment: Assignment) -> None:
        """Add what the ``participants`` of ``stage`` have ``said``: where routers of the input go on, and where slots
        have written their parts, which belong to ``assignment``.
        """
        self.stages[stage] = saved = SavedStage(assignment, {})
        for who, answer in said.items():
            _, number = who.split("-")
            if isinstance(answer, RouterSaved):
                self.offsets[int(number)], self.watermarks[int(number)] = answer.offset, answer.watermark
                continue
            saved.locations[SlotId(int(number))] = list(answer.locations)
            if answer.position is not None:
                saved.positions[SlotId(int(number))] = answer.position

    @property
    def turns(self) -> dict[str, dict[int, int]]:
        """The last turn of each slot, by stage, if they work in turns."""
        return {
            stage: {slot: position.turn for slot, position in saved.positions.items()}
            for stage, saved in self.stages.items()
        }

    @property
    def unit_bytes(self) -> dict[str, dict[int, int]]:
        """The bytes of each unit's parts together, by stage and unit."""
        return {
            stage: {unit: sum(each.length for each in locations) for unit, locations in saved.by_unit().items()}
            for stage, saved in self.stages.items()
        }

    @property
    def segments(self) -> set[str]:
        """The names of all segments that it refers to."""
        locations = (some for saved in self.stages.values() for some in saved.locations.values())
        return {location.segment for some in locations for location in some}


_MANIFESTS = TypeAdapter(SavepointManifest)


class SavepointStore:
    """The savepoints and snapshots of one job, below ``savepoints/JOB/`` in the bucket. ``client``: see ``Bucket``."""

    def __init__(self, endpoints: Endpoints, job: str, client: Any = None) -> None:
        self._bucket = Bucket(endpoints, f"savepoints/{job}/", client=client)

    def write(
        self,
        name: str,
        slot: str,
        parts: Iterable[SnapshotPart],
        schema: pa.Schema,
        chunk_bytes: int,
        progress: ByteProgress = lambda more: None,
    ) -> list[Location]:
        """Write parts of a slot's units for the savepoint or snapshot ``name``. Raises ServiceUnavailable.

        ``slot``: its stage and number. ``schema``: of values, with their keys. ``progress`` hears of bytes that were
        made, and of bytes that were sent.

        A slot may write the same savepoint again in its next batch, and the first of its acknowledgements counts: what
        is written has names of its own each time.
        """
        locations: list[Location] = []
        segment = bytearray()
        prefix = f"{name}/{slot}-{secrets.token_hex(4)}"
        segment_name = f"{prefix}-0"
        for part in parts:
            data = _encoded(part, schema, chunk_bytes)
            if len(segment) > SEGMENT_BYTES:
                self._bucket.put(segment_name, segment, in_parts=True, progress=progress)
                segment, segment_name = bytearray(), f"{prefix}-{len(locations)}"
            where = segment_name, len(segment), len(data), zlib.crc32(data)
            locations.append(Location(part.unit, *where, part.number, part.follows))
            segment += data
            progress(len(data))
        if segment:
            self._bucket.put(segment_name, segment, in_parts=True, progress=progress)
        return locations

    def read(self, units: Mapping[UnitId, Sequence[Location]]) -> Iterator[list[SavedUnit]]:
        """Read ``units``, some at a time, in the order in which they were written; of each its parts' locations are
        given, in their order.

        What lies side by side is read with one request: one for each of many units would take longer than what it
        brings. Raises NotThere if a segment is not there, Damaged if it is not as it was written, and else
        ServiceUnavailable.
        """
        for some in _portions(units):
            found: dict[Location, memoryview] = {}
            for locations in _side_by_side(location for unit in some for location in units[unit]):
                begin = locations[0].offset
                data = memoryview(self._bucket.get(locations[0].segment, begin, _end(locations[-1]) - begin))
                found |= {each: data[each.offset - begin : _end(each) - begin] for each in locations}
            yield [_joined(unit, [_decoded(location, found[location]) for location in units[unit]]) for unit in some]

    def commit(self, savepoint: str, manifest: SavepointManifest) -> None:
        """Write the manifest: only now does the savepoint exist.

        Raises ProtocolViolation unless every unit of each assignment was written by exactly one slot, and each part of
        it follows the one before; NotThere if a part is in the store no more, as that has begun anew or expires some.
        """
        for stage, saved in manifest.stages.items():
            for locations in saved.locations.values():
                _require_chains(f"savepoint {savepoint}", stage, locations)
            written: Counter[int] = Counter(
                unit for locations in saved.locations.values() for unit in {location.unit for location in locations}
            )
            units = Counter(range(len(saved.assignment.owner)))
            if wrong := sorted((written - units) + (units - written)):
                what = f"units {wrong[:5]} of {stage} are missing, or in it more than once"
                raise ProtocolViolation(f"savepoint {savepoint}: {what}")
        if gone := manifest.segments.difference(self._bucket.names()):
            said = f"{len(gone)} of its segments are in the store no more, such as {min(gone)}"
            raise NotThere(f"savepoint {savepoint}: {said}")
        self._bucket.put(f"{savepoint}/{_MANIFEST}", _MANIFESTS.dump_json(manifest, by_alias=True))

    def manifest(self, savepoint: str) -> SavepointManifest:
        """Read what was committed. Raises NotThere if there is no such savepoint, Damaged if it is damaged, and
        BadInput if another keyshift has written it.
        """
        raw = self._bucket.get(f"{savepoint}/{_MANIFEST}")
        try:
            found = dict(json.loads(raw))
        except (ValueError, TypeError):
            raise Damaged(f"savepoint {savepoint}: its {_MANIFEST} is damaged, it is no JSON") from None
        if (written := found.get("format")) != FORMAT:
            raise BadInput(
                f"savepoint {savepoint}: format = {written}, and this keyshift reads {FORMAT}; use the one that made it"
            )
        try:
            return _MANIFESTS.validate_python(found)
        except ValidationError as error:
            raise Damaged(f"savepoint {savepoint}: its {_MANIFEST} is damaged: {refusal(error.errors())}") from None

    def require_of(self, savepoint: str, workload: Workload) -> None:
        """Refuse a savepoint of other state than that of ``workload``: BadInput. Raises what ``manifest`` does, too."""
        found = self.manifest(savepoint)
        stages = {name: len(saved.assignment.owner) for name, saved in found.stages.items()}
        units = workload.key_groups * workload.bins
        said = f"{found.workload} with {_units(stages)}"
        wanted = f"{workload.name} with {_units({stage.name: units for stage in workload.stages})}"
        if said != wanted:
            raise BadInput(f"savepoint {savepoint}: it is of {said}, and this job is of {wanted}")

    def require_whole(self, savepoint: str) -> None:
        """Read all of it. Raises what ``manifest`` and ``read`` do."""
        for stage in self.manifest(savepoint).stages.values():
            for _ in self.read(stage.by_unit()):
                pass

    def locations(self, savepoint: str, stage: str) -> dict[UnitId, list[Location]]:
        """Read where the state of each unit of ``stage`` is, part by part. Raises what ``manifest`` does, and BadInput
        if there is no such stage.
        """
        stages = self.manifest(savepoint).stages
        if stage not in stages:
            raise BadInput(f"savepoint {savepoint}: it has no stage {stage}, but {', '.join(stages)}")
        return stages[stage].by_unit()

    def committed(self, of: str) -> list[str]:
        """Names of what was committed and is there, if they begin with ``of``; ascending. Raises ServiceUnavailable."""
        names = (name.partition("/") for name in self._bucket.names(of))
        return sorted(name for name, _, rest in names if rest == _MANIFEST)

    def keep_only(self, snapshots: Sequence[str], of: str) -> None:
        """Remove snapshots whose names begin with ``of``, but these, what they refer to, and all newer ones.

        ``snapshots``: names, oldest first; names are ascending. Raises ServiceUnavailable.
        """
        needed = {segment for name in snapshots for segment in self.manifest(name).segments}
        old = [name for name in self._bucket.names(of) if name.split("/")[0] < snapshots[0] and name not in needed]
        self._bucket.remove(sorted(old, key=lambda name: not name.endswith(_MANIFEST)))  # it goes first

    def remove_state(self, savepoint: str) -> None:
        """Remove the state, to which no other savepoint refers; the manifest stays. Raises ServiceUnavailable."""
        names = self._bucket.names(f"{savepoint}/")
        self._bucket.remove([name for name in names if name != f"{savepoint}/{_MANIFEST}"])

    def delete_all(self) -> None:
        """Remove every savepoint of the job. Raises ServiceUnavailable."""
        self._bucket.remove(self._bucket.names())


def participants(config: JobConfig) -> set[str]:
    """Name who of the stage of ``config`` answers when a savepoint or a snapshot is taken."""
    routers = config.routers if config.number == 0 else 0  # where others continue nobody has to know
    return set(map(of_router, range(routers))) | set(map(of_slot, range(config.slots)))


def _require_chains(what: str, stage: str, locations: Iterable[Location]) -> None:
    """Require that each unit's first part is a whole, and each follows the one before; else ProtocolViolation."""
    last: dict[UnitId, int] = {}
    for location in locations:
        if location.follows != (before := last.get(location.unit, 0)):
            wanted, found = (f"part {number}" if number else "nothing" for number in (location.follows, before))
            raise ProtocolViolation(
                f"{what}: part {location.number} of unit {location.unit} of {stage} follows {wanted}, not {found}"
            )
        last[location.unit] = location.number


def _units(stages: Mapping[str, int]) -> str:
    return ", ".join(f"{units} units of {stage}" for stage, units in stages.items())


def wholes(states: Iterable[tuple[UnitId, UnitState]]) -> Iterator[SnapshotPart]:
    """Units and their states, each as its only part."""
    return (SnapshotPart(unit, 1, 0, state.timers, state, [], []) for unit, state in states)


def _encoded(part: SnapshotPart, schema: pa.Schema, chunk_bytes: int) -> bytes:
    deleted = [pa.RecordBatch.from_arrays([pa.array(part.deleted, pa.int64())], schema=_DELETED)]
    values: Iterable[pa.RecordBatch] = [rows.pack(schema, part.changed)] if part.changed else []
    if part.whole is not None:
        values = part.whole.export(chunk_bytes)
    streams = frames.encode(part.timers.export()), _stream(deleted if part.deleted else []), _stream(values)
    return b"".join(piece for data in streams for piece in (len(data).to_bytes(_LENGTH_BYTES, "big"), data))


def _portions(units: Mapping[UnitId, Sequence[Location]]) -> Iterator[list[UnitId]]:
    """Units by the locations of their first parts, as many as are read together."""
    some: list[UnitId] = []
    size = 0
    for unit in sorted(units, key=lambda unit: (units[unit][0].segment, units[unit][0].offset)):
        some.append(unit)
        size += sum(location.length for location in units[unit])
        if size >= PORTION_BYTES or len(some) == PORTION_UNITS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _side_by_side(locations: Iterable[Location]) -> Iterator[list[Location]]:
    """Locations in one segment that lie close together, ascending."""
    near: list[Location] = []
    for location in sorted(locations, key=lambda location: (location.segment, location.offset)):
        if near and (near[-1].segment != location.segment or location.offset - _end(near[-1]) > GAP_BYTES):
            yield near
            near = []
        near.append(location)
    if near:
        yield near


def _end(location: Location) -> int:
    return location.offset + location.length


SavedPart = tuple[pa.RecordBatch, list[pa.RecordBatch], list[pa.RecordBatch]]  # timers, deleted keys, values


def _decoded(location: Location, data: memoryview) -> SavedPart:
    if zlib.crc32(data) != location.crc:
        raise Damaged(f"savepoint segment {location.segment}: unit {location.unit} does not have its checksum")
    streams, begin = [], 0
    for _ in range(3):
        begin, length = begin + _LENGTH_BYTES, int.from_bytes(data[begin : begin + _LENGTH_BYTES], "big")
        streams.append(data[begin : begin + length])
        begin += length
    timers, _ = frames.decode(pa.py_buffer(streams[0]), TIMER_SCHEMA)
    return timers, *(list(pa.ipc.open_stream(stream)) if len(stream) else [] for stream in streams[1:])


def _joined(unit: UnitId, parts: Sequence[SavedPart]) -> SavedUnit:
    *_, (timers, _, _) = parts
    seen = pa.array([], pa.int64())  # keys of which a later part has told
    batches: list[pa.RecordBatch] = []
    for _, deleted, values in reversed(parts):
        batches += (_without(batch, seen) for batch in values)
        seen = pa.concat_arrays([seen, *(batch["key"] for batch in [*deleted, *values])]) if parts[1:] else seen
    return SavedUnit(unit, [batch for batch in batches if batch.num_rows], timers)


def _stream(batches: Iterable[pa.RecordBatch]) -> bytes:
    """One Arrow IPC stream; nothing at all if there is no batch."""
    sink, writer = pa.BufferOutputStream(), None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _without(batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
    return batch.filter(pc.invert(pc.is_in(batch["key"], keys))) if len(keys) else batch
