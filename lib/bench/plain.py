"""The job keyshift is compared with: the plain one, with the shortest counter that does the same as ``keycount``."""

from typing import Any

import numpy as np
import pyarrow as pa

from keyshift.peers.plain_job import AnswerRow, PlainJob, result_frame, slot_schema
from keyshift.runtime.row import Row
from keyshift.wire.config import JobConfig, result_schema

_WORD = 8  # bytes of the count at the beginning of a payload


def counting(config: JobConfig, slot: int) -> AnswerRow:
    """Count each key beside a payload of ``state_bytes``, in a dictionary."""
    schema, results = slot_schema(config), result_schema(config.make_stage())
    fresh = (0, bytes(config.parameters["state_bytes"]))
    state: dict[int, tuple[int, bytes]] = {}

    def answer(row: Row) -> bytes:
        events = pa.ipc.read_record_batch(row.payload, schema)
        counts, stamps = [], []
        for key in events["key"].to_numpy().tolist():
            total, payload = state.get(key) or fresh
            stamps.append(int.from_bytes(payload[:_WORD], "little"))
            total += 1
            state[key] = (total, total.to_bytes(_WORD, "little") + payload[_WORD:])
            counts.append(total)
        columns: dict[str, Any] = {name: events[name] for name in ("key", "t", "position")}
        columns |= {"count": pa.array(np.array(counts, np.int64)), "stamp": pa.array(np.array(stamps, np.int64))}
        return result_frame(columns, events.num_rows, row, results)

    return answer


class ShortestJob(PlainJob):
    """The plain job without the operator of the workload, and without state before the first event."""

    answering = staticmethod(counting)
    begin = PlainJob.start
