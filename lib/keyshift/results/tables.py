"""The tables of a stored run: their columns, with types and meanings, and what an older version stored as of today.

A change that removes, renames or redefines a column is a new ``SCHEMA_VERSION`` of ``results.manifest``.
"""

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.analysis.metrics import DEATH, FAULT
from keyshift.model.errors import BadInput
from keyshift.registry import unknown

NO_STAGE = -1  # of a process that works for all stages, or for none
NOT_JUDGED = "not judged"  # of a snapshot


def column(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    """A column that is never null. Its meaning goes into files, the dictionary of an export and docs/results.md."""
    return pa.field(name, kind, nullable=False, metadata={"meaning": meaning})


# Where a row comes from; version 1 knew neither.
_STAGE = column(
    "stage",
    pa.int16(),
    f"place of the keyed stage in the run's stages, from 0; {NO_STAGE}: of a process that belongs to none",
)


def _replica(what: str) -> pa.Field:
    return column("replica", pa.int16(), f"number among the jobs that process the same input, from 0: {what}")


_REPLICA = _replica("of a result, whose copy came first")
PLACE = {field.name: field.type for field in (_STAGE, _REPLICA)}

# Times are seconds relative to the trigger of the migration, negative before it. Unknown times are NaN.
_COLUMNS: dict[str, list[pa.Field]] = {
    "latency": [
        column(
            "created_s",
            pa.float64(),
            "when the generator was scheduled to create the event, relative to the trigger",
        ),
        column("latency_ms", pa.float32(), "from then until its result was available"),
        column("slot", pa.int16(), "which gave the result"),
        _STAGE,
        _REPLICA,
    ],
    "metrics": [
        column("t_s", pa.float64(), "when it was measured, relative to the trigger"),
        column(
            "metric",
            pa.string(),
            "what: cpu_cores and rss_mib (processors and MiB of the job; of pods without files that could be "
            "dropped), sent_mib and received_mib (MiB that the job has sent and received over the network since it "
            "was sampled first), harness_cores (processors of what the job is measured with: generator, collector, "
            "embedded services, the driver's process; a Redis server that was started for the run, and a Spark that "
            "stands idle, are counted here, too), machine_cores (processors that the run may use: all, busy, busy for "
            "others, stolen; in a container with a quota: of how many it may have the time, and busy for the run), "
            "disturbed (1 if others and the host had at least a tenth of them in the second before, else 0; with "
            "executors in pods nobody knows of others, and neither is there), "
            "run_queue (processes that run or could), throughput_per_s (1/s), fault (something was made to "
            "fail), death (of the query), replicas (how many are full, where that changes), …",
        ),
        column("instance", pa.string(), "of which process, slot or task; of a fault or a death, what happened"),
        column("value", pa.float64(), "in the unit of the metric"),
        _STAGE,
        _replica("that was measured; 0, too, of what is not of one alone"),
    ],
    "migration": [
        column("step", pa.int32(), "of the run, from 0"),
        column("unit", pa.int32(), "of state that moved"),
        column("source", pa.int32(), "slot that it left"),
        column("destination", pa.int32(), "slot to which it went"),
        column("bytes", pa.int64(), "of state sent, the last time; 0 if its source has not told"),
        column("prepared_s", pa.float64(), "source and destination have acknowledged the step"),
        column("switched_s", pa.float64(), "the new assignment is published"),
        column(
            "aligned_s",
            pa.float64(),
            "the source has the barriers of all routers: its state is final, or it has lent what stays there",
        ),
        column("sent_s", pa.float64(), "the source has sent the last byte"),
        column("received_s", pa.float64(), "the destination has the last byte"),
        column("installed_s", pa.float64(), "the state is in place"),
        column("drained_s", pa.float64(), "the records queued meanwhile are processed, the unit runs as usual"),
        _STAGE,
        _replica("whose move it is; the others move, too"),
    ],
    # In the order in which decisions were made.
    "decisions": [
        column("migration", pa.int32(), "of the run, from 0"),
        column("unit", pa.int32(), "of state that the decision is about"),
        column("step", pa.int32(), "of that migration; -1: put off, or not copied"),
        column("reason", pa.string(), "why"),
        _STAGE,
    ],
    # Of each look of an autoscaler, for each stage; no row without one.
    "scaling": [
        column("t_s", pa.float64(), "when the autoscaler looked, relative to the trigger"),
        column("slots", pa.int32(), "that own state"),
        column("wanted", pa.int32(), "slots, by this look alone"),
        column("target", pa.int32(), "slots, as decided; as slots if it stays"),
        column("migrating", pa.bool_(), "whether a migration is under way, or a service is away"),
        column("reason", pa.string(), "why"),
        column("offered_per_s", pa.float64(), "events"),
        column("demand_per_s", pa.float64(), "events of the stage, with its part of the backlog"),
        column("true_per_s", pa.float64(), "records that one slot processes at work"),
        column("utilisation", pa.float64(), "demand by what all slots can take"),
        column(
            "worth", pa.float64(), "part of the capacity promised by more slots that came when it was tried, 0 to 1"
        ),
        column("backlog", pa.float64(), "events offered and not answered"),
        column(
            "missed_s",
            pa.float64(),
            "seconds whose P99 was above the objective slo_ms, or without any result while some were due",
        ),
        column("stay_cost", pa.float64(), "of staying, until the horizon, with what missed seconds cost"),
        column("move_cost", pa.float64(), "of moving, until the horizon, with what missed seconds cost"),
        column("migration_s", pa.float64(), "how long the migration is expected to take"),
        column("migration_missed_s", pa.float64(), "seconds expected to be missed because of it"),
        _STAGE,
    ],
    # Of each complete snapshot of a running job, for each stage, in the order in which they were complete.
    "snapshots": [
        column("snapshot", pa.int32(), "number in the run, from 0"),
        column(
            "begun_s", pa.float64(), "when it was requested, relative to the trigger: it waits for a step under way"
        ),
        column("completed_s", pa.float64(), "from when on a job could go on from it"),
        column("bytes_written", pa.int64(), "what had changed"),
        column("bytes_state", pa.int64(), "all state then"),
        _STAGE,
        column(
            "verdict",
            pa.string(),
            "ok or bad, if the run up to there was compared with the oracle (verify = snapshots), or not judged",
        ),
    ],
}
TABLES = {name: pa.schema(columns) for name, columns in _COLUMNS.items()}

LATER = ("scaling", "snapshots")  # tables that runs did not have at first: for those they are empty


def table_schema(name: str) -> pa.Schema:
    """The columns and types of the table ``name``. Raises BadInput for an unknown name."""
    if name not in TABLES:
        raise unknown("table", name, list(TABLES))
    return TABLES[name]


def check_table(name: str, table: pa.Table) -> None:
    """Raise BadInput unless ``table`` has exactly the columns and types of the table ``name``, and no null."""
    schema = table_schema(name)
    if table.schema.names != schema.names:
        raise BadInput(f"table {name}: columns are {table.schema.names}, expected {schema.names}")
    for field in schema:
        column = table.column(field.name)
        if column.type != field.type:
            raise BadInput(f"table {name}: column {field.name} has type {column.type}, expected {field.type}")
        if column.null_count:
            raise BadInput(f"table {name}: column {field.name} has {column.null_count} nulls; an unknown time is NaN")


def upgraded(name: str, table: pa.Table) -> pa.Table:
    """``table`` with the columns and values of today. What version 1 stored is of one stage and one query; before
    version 3 no snapshot was judged; at first a death of the query was a fault.
    """
    schema = table_schema(name)
    if name == "snapshots" and "verdict" not in table.schema.names:
        return table.append_column(schema.field("verdict"), pa.repeat(NOT_JUDGED, table.num_rows))
    if PLACE.keys().isdisjoint(table.schema.names):
        for place in PLACE:
            if place in schema.names:
                table = table.append_column(schema.field(place), _zeros(table.num_rows))
        if name == "metrics":
            of_slot = pc.starts_with(table["instance"], "slot-")
            stages = pc.if_else(of_slot, 0, NO_STAGE).cast(PLACE["stage"])
            table = table.set_column(schema.get_field_index("stage"), schema.field("stage"), stages)
    if name == "metrics" and (table.schema.names, table.schema.types) == (schema.names, schema.types):
        died = pc.and_(pc.equal(table["metric"], FAULT), pc.equal(table["instance"], "query died"))
        if pc.any(died).as_py():
            place, field = schema.get_field_index("metric"), schema.field("metric")
            table = table.set_column(place, field, pc.if_else(died, DEATH, table["metric"]))
    return table


def _zeros(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int16()), rows)
