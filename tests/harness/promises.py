"""What a job that lives owes: snapshots in its journal that can be read, and that hold what a sequential run gives."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import judging
import numpy as np
import pandas as pd
import pyarrow as pa
from engine import Bucket
from memory_kafka import LoggedTopic

from keyshift import frames
from keyshift.executor.config import result_schema
from keyshift.executor.savepoint import Location, SavepointStore
from keyshift.keys import Assignment, Assignments
from keyshift.lab.final_state import FinalState, StageEnd, judged
from keyshift.results.verdict import Course
from keyshift.workloads import Workload

MANIFEST = "manifest.json"


class _Kept:
    """Objects of a bucket, for a ``SavepointStore``."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def get(self, name: str, offset: int = 0, length: int = 0) -> bytes:
        return self._objects[name][offset : offset + length if length else None]


@dataclass
class Promise:
    """A snapshot that a journal names: another process may go on from there. ``objects``: that were there then."""

    name: str
    run: str
    snapshot: dict[str, Any]
    journal: dict[str, Any]
    objects: dict[str, bytes]

    @property
    def store(self) -> SavepointStore:
        """With what was there when it was promised."""
        store = SavepointStore.__new__(SavepointStore)
        store._bucket = _Kept(self.objects)  # type: ignore[assignment]
        return store

    def missing(self) -> list[str]:
        """Objects that it needs and that were not there."""
        if f"{self.name}/{MANIFEST}" not in self.objects:
            return [MANIFEST]
        stages = self.store.manifest(self.name)["stages"].values()
        needed = {row[1] for stage in stages for rows in stage["places"].values() for row in rows}
        return sorted(needed - self.objects.keys())


def promised(bucket: Bucket, journal: dict[str, Any], snapshot: dict[str, Any]) -> Promise:
    """What ``snapshot`` of ``journal`` consists of now."""
    prefix = f"savepoints/{journal['run_id']}/"
    objects = {name.removeprefix(prefix): data for name, data in bucket.objects.copy().items()}
    return Promise(snapshot["name"], journal["run_id"], snapshot, copy.deepcopy(journal), objects)


class Input:
    """All that went into a job, and what came out of it."""

    def __init__(self, workload: Workload, events: LoggedTopic, results: LoggedTopic) -> None:
        self.workload, self.topic, self.results = workload, events.read(workload), _results(workload, results)


def broken(promise: Promise, given: Input) -> Iterator[str]:
    """What it restores to otherwise than a sequential run of the events before it, and results that are to be there."""
    if missing := promise.missing():
        yield f"{missing} of it is not there"
        return
    manifest, version = promise.store.manifest(promise.name), promise.snapshot["version"]
    offsets = {int(router): offset for router, offset in manifest["offsets"].items()}
    table, seen = (each[each["offset"] < each["router"].map(offsets)] for each in given.topic)
    revoked, workload, results = set(promise.journal["revoked"]), given.workload, given.results
    results = results[(results["version"] < version) & ~results["version"].isin(list(revoked))]

    def end(name: str) -> StageEnd:
        assignments = Assignments.from_json(promise.journal["stages"][name]["assignments"])
        known = Assignment.from_json(manifest["stages"][name]["assignment"])
        before = [each for each in assignments if each.version < known.version]
        begins = [begin for begin in promise.journal["stages"][name]["begins"] if begin <= known.version]
        return StageEnd(name, Course([*before, known]), begins, {}, [])

    final = FinalState(
        offsets=offsets,
        parts=partial(_parts, promise.store, manifest),
        stages=[end(stage.name) for stage in workload.stages],
        revoked=revoked,
        troubles=[],
    )
    found = judged(workload, len(table), table, seen, results, final)
    for kind in judging.KINDS:
        if count := getattr(found, kind):
            yield f"{count} {kind}: {'; '.join(line for line in found.examples if line.startswith(kind))}"


def _results(workload: Workload, topic: LoggedTopic) -> pd.DataFrame:
    """All that came out, as a collector has it."""
    schema = result_schema(workload.stages[-1])
    batches, origins = [], []
    for slot, values in enumerate(topic.partitions):
        for offset in range(len(values)):
            record = topic.record(slot, offset)
            batch, _ = frames.decode(record.value, schema)
            batches.append(batch.replace_schema_metadata(None))
            origins.append((slot, offset, record.timestamp * 1000))
    rows = [batch.num_rows for batch in batches]
    where = np.repeat(np.array(origins, np.int64).reshape(-1, 3), rows, axis=0)
    names = ("slot", "log_offset", "arrived_us")
    table = pa.Table.from_batches(batches, schema).to_pandas()
    return table.assign(**{name: where[:, number] for number, name in enumerate(names)})


def _parts(store: SavepointStore, manifest: dict[str, Any], timers: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for number, stage in enumerate(manifest["stages"].values()):
        for slot, rows in stage["places"].items():
            places: dict[int, list[Location]] = {}
            for row in rows:
                places.setdefault(row[0], []).append(Location(*row))
            for unit, parts in places.items():
                values, timed = store.read(*parts)
                if number == 0:
                    timers.append(timed.to_pandas().assign(unit=unit, slot=int(slot)))
                for batch in values:
                    yield batch.to_pandas().assign(stage=number, unit=unit, slot=int(slot))
