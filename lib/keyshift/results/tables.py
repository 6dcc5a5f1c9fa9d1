"""The tables of a stored run: their columns and types, and what an older version stored with the columns of today.

A change that removes, renames or redefines a column is a new ``SCHEMA_VERSION`` of ``results.manifest``.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.errors import BadInput
from keyshift.registry import unknown


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


# Where a row comes from: the place of its stage in ``Manifest.stages`` (or NO_STAGE), and which of the queries that
# process the same input, from 0. Version 1 knew neither.
PLACE = {"stage": pa.int16(), "replica": pa.int16()}
NO_STAGE = -1  # of a process that works for all stages, or for none
NOT_JUDGED = "not judged"  # of a snapshot

# Times are seconds relative to the trigger of the migration, negative before it. Unknown times are NaN.
TABLES: dict[str, pa.Schema] = {
    "latency": _schema(created_s=pa.float64(), latency_ms=pa.float32(), slot=pa.int16(), **PLACE),
    "metrics": _schema(t_s=pa.float64(), metric=pa.string(), instance=pa.string(), value=pa.float64(), **PLACE),
    "migration": _schema(
        step=pa.int32(),
        unit=pa.int32(),
        source=pa.int32(),
        destination=pa.int32(),
        bytes=pa.int64(),
        prepared_s=pa.float64(),
        switched_s=pa.float64(),
        aligned_s=pa.float64(),
        sent_s=pa.float64(),
        received_s=pa.float64(),
        installed_s=pa.float64(),
        drained_s=pa.float64(),
        **PLACE,
    ),
    # Of the n-th migration of a run, in the order in which they were made; step -1: put off or refused.
    "decisions": _schema(
        migration=pa.int32(), unit=pa.int32(), step=pa.int32(), reason=pa.string(), stage=PLACE["stage"]
    ),
    # Of each look of an autoscaler, for each stage; no row without one.
    "scaling": _schema(
        t_s=pa.float64(),
        slots=pa.int32(),
        wanted=pa.int32(),
        target=pa.int32(),
        migrating=pa.bool_(),
        reason=pa.string(),
        offered_per_s=pa.float64(),
        demand_per_s=pa.float64(),
        true_per_s=pa.float64(),
        utilisation=pa.float64(),
        worth=pa.float64(),
        backlog=pa.float64(),
        missed_s=pa.float64(),
        stay_cost=pa.float64(),
        move_cost=pa.float64(),
        migration_s=pa.float64(),
        migration_missed_s=pa.float64(),
        stage=PLACE["stage"],
    ),
    # Of each complete snapshot of a running job, for each stage, in the order in which they were complete.
    "snapshots": _schema(
        snapshot=pa.int32(),
        begun_s=pa.float64(),
        completed_s=pa.float64(),
        bytes_written=pa.int64(),
        bytes_state=pa.int64(),
        stage=PLACE["stage"],
        verdict=pa.string(),
    ),
}

LATER = ("scaling", "snapshots")  # tables that runs did not have at first: for those they are empty


def make_table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """The table ``name`` (one of ``TABLES``) from one array, list or Series per column.

    ``stage`` and ``replica`` are 0 where they are left out. Raises BadInput if another column is missing, one is not
    known, or holds values of another type.
    """
    schema = table_schema(name)
    rows = len(next(iter(columns.values()), ()))
    columns = {place: _zeros(rows) for place in PLACE if place in schema.names} | dict(columns)
    wrong = set(columns) ^ set(schema.names)
    if wrong:
        raise BadInput(f"table {name}: columns {sorted(wrong)} are missing or not known; it has {schema.names}")
    try:
        table = pa.table({column: columns[column] for column in schema.names}, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadInput(f"table {name}: {error}") from None
    check_table(name, table)
    return table


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
    """``table`` with the columns of today. What version 1 stored is of one stage and one query; before version 3 no
    snapshot was judged.
    """
    schema = table_schema(name)
    if name == "snapshots" and "verdict" not in table.schema.names:
        return table.append_column(schema.field("verdict"), pa.repeat(NOT_JUDGED, table.num_rows))
    if not PLACE.keys().isdisjoint(table.schema.names):
        return table
    for place in PLACE:
        if place in schema.names:
            table = table.append_column(schema.field(place), _zeros(table.num_rows))
    if name == "metrics":
        of_slot = pc.starts_with(table["instance"], "slot-")
        stages = pc.if_else(of_slot, 0, NO_STAGE).cast(PLACE["stage"])
        table = table.set_column(schema.get_field_index("stage"), schema.field("stage"), stages)
    return table


def _zeros(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int16()), rows)
