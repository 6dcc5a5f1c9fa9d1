"""What a job that lives owes: snapshots in its journal that can be read, and that hold what a sequential run gives."""

import copy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import judging
import numpy as np
import pandas as pd
import pyarrow as pa
from memory_kafka import Broker, Consumer, LoggedTopic

from keyshift.endpoints import Endpoints
from keyshift.lab.judge.final_state import FinalState, StageEnd
from keyshift.lab.live.journal import journal_from_json
from keyshift.model import frames
from keyshift.results.verdict import Ownership
from keyshift.traffic import topics
from keyshift.wire.config import result_schema
from keyshift.wire.savepoint import SavepointStore
from keyshift.workloads import Workload
from memory_bucket import MemoryBucket

MANIFEST = "manifest.json"


@dataclass
class Promise:
    """A snapshot that a journal names: another process may go on from there. ``kept``: the objects that were there."""

    name: str
    run: str
    journal: dict[str, Any]
    kept: dict[str, bytes]

    @property
    def store(self) -> SavepointStore:
        """With what was there when it was promised, and no other snapshot."""
        bucket = MemoryBucket()
        bucket.objects = self.kept
        return SavepointStore(Endpoints("kafka:1", "zookeeper:1", "minio:1", "a", "s"), self.run, bucket)

    def needed(self) -> set[str]:
        """The names of all objects that it consists of; of its manifest only, if that is not there."""
        prefix = f"savepoints/{self.run}/"
        if (manifest := f"{prefix}{self.name}/{MANIFEST}") not in self.kept:
            return {manifest}
        stages = self.store.manifest(self.name).stages.values()
        locations = [location for saved in stages for some in saved.locations.values() for location in some]
        return {manifest, *(prefix + location.segment for location in locations)}

    def missing(self) -> list[str]:
        """Those that were not there."""
        return sorted(self.needed() - self.kept.keys())


def promised(bucket: MemoryBucket, journal: dict[str, Any], name: str) -> Promise:
    """What the snapshot of this ``name``, in ``journal``, consists of now."""
    begin, run = f"savepoints/{journal['run_id']}/", journal["run_id"]
    mine = {each: data for each, data in bucket.objects.copy().items() if each.startswith(begin)}
    others = {each for each in mine if each.endswith(MANIFEST) and not each.startswith(f"{begin}{name}/")}
    return Promise(name, run, copy.deepcopy(journal), {each: mine[each] for each in mine.keys() - others})


class Input:
    """All that went into the job of a run, and what came out of it."""

    def __init__(self, workload: Workload, run: str, routers: int, kafka: Broker) -> None:
        archive, [source] = kafka.archive(), workload.sources
        with patch.object(topics, "KafkaConsumer", lambda **_: Consumer(archive)):
            events = topics.Topic("kafka:1", f"{run}-events", routers)
            self.topic = events.read(source, stage=workload.stages[0])
        self.workload, self.results = workload, _results(workload, archive.topic(f"{run}-results"))


def broken(promise: Promise, given: Input) -> str:
    """What it restores to otherwise than a sequential run of the events before it, and results that are not there."""
    if missing := promise.missing():
        return f"{missing} of it is not there"
    past = journal_from_json(promise.journal).past
    stages = [
        StageEnd(name, Ownership(stage.assignments), stage.begins, {}, stage.records)
        for name, stage in past.stages.items()
    ]
    final = FinalState({}, lambda timers, units: iter(()), stages, past.revoked, ())
    judged = judging.snapshots(given.workload, given.topic, given.results, final, promise.store)
    return "" if judged[promise.name].ok else "; ".join(judged[promise.name].examples)


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
