"""One event or result per record of Kafka, as JSON: for systems under test that cannot read frames.

An event has the columns of its source. One whose ``t`` is 0 is none of the load: it is there so that the system has
the state of its key, and has no result that counts (``position`` -1).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from pyarrow import json

from keyshift.model.errors import ProtocolViolation
from keyshift.traffic.topics import Topic
from keyshift.traffic.writer import Writer, producer_of


def encode(batch: pa.RecordBatch) -> Iterator[bytes]:
    """A line for each row, of integer columns."""
    text = "{" + ",".join(f'"{name}":%d' for name in batch.schema.names) + "}"
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield (text % row).encode()


def decode(values: Sequence[bytes], expected: pa.Schema) -> pa.RecordBatch:
    """The rows of some lines. Raises ProtocolViolation if a column is missing or of another type."""
    try:
        read = json.read_json(
            pa.BufferReader(b"\n".join(values)),
            parse_options=json.ParseOptions(explicit_schema=expected, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid as error:
        raise ProtocolViolation(f"a record cannot be read as a line of {expected.names}: {error}") from error
    batch = pa.RecordBatch.from_arrays([c.combine_chunks() for c in read.columns], schema=expected)
    if any(column.null_count for column in batch.columns):
        raise ProtocolViolation(f"a record lacks one of {expected.names}")
    return batch


def fill(topic: Topic, keys: int) -> None:
    """Write an event of ``t`` 0 for each key, in turn over the partitions. Raises ServiceUnavailable."""
    writer = Writer(topic, producer_of(topic), lambda partition, offset: None)
    for key in range(keys):
        writer.write(key % topic.partitions, b'{"key":%d,"t":0}' % key)
    writer.flush()


def read(topic: Topic, schema: pa.Schema) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Events of the load and their records, as ``Topic.read`` has events and frames: each is one of its own."""
    found = [_events(router, some, schema) for router, some in topic.records()]
    columns = ["router", "offset", "position", *schema.names]
    events = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns, dtype=np.int64)
    return events, events[["router", "offset"]].assign(watermark=0, events=1)


def _events(router: int, some: Sequence[ConsumerRecord], schema: pa.Schema) -> pd.DataFrame:
    table = decode([record.value for record in some], schema).to_pandas()
    table.insert(0, "router", np.int32(router))
    table.insert(1, "offset", [record.offset for record in some])
    table.insert(2, "position", np.int32(0))
    return table[table["t"] > 0]
