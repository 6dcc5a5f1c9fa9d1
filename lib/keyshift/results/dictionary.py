"""What every column of a stored run means, and in which unit: the data dictionary of an export.

Units follow from the end of a name (``UNITS``), or its beginning (``bytes``); any other column is a number without one,
or a name.
"""

from keyshift.results.manifest import Manifest, Summary
from keyshift.results.tables import TABLES

UNITS = {
    "_per_s": "1/s",
    "_ms": "ms",
    "_s": "s",
    "_us": "µs",
    "_mib": "MiB",
    "miss_cost": "s",  # of all slots
    "_cost": "slot-seconds",
    "_bytes": "bytes",
}
PARAMETER, PHASE = "parameter.", "phase."  # begin the names of columns of runs, one per parameter and phase


def unit(column: str) -> str:
    """The unit of a column, by its name; empty if it has none."""
    if column.startswith(PHASE):
        return "s"
    if column.startswith("bytes"):
        return "bytes"
    return next((unit for end, unit in UNITS.items() if column.endswith(end)), "")


def meaning(table: str, column: str) -> str:
    """Return what a column of a table, or of ``runs``, means. Raises KeyError for a column that is not known."""
    if column.startswith(PHASE):
        return f"phase of the migration: {column.removeprefix(PHASE)}; docs/results.md"
    if column.startswith(PARAMETER):
        return "effective parameter of the run"
    if table in TABLES and column != "run_id":
        return str(TABLES[table].field(column).metadata[b"meaning"], "utf-8")
    known = {name: field.description for model in (Manifest, Summary) for name, field in model.model_fields.items()}
    return known[column] or ""


def markdown(table: str) -> str:
    """The columns of a table, or of ``runs``, as docs/results.md has them."""
    names = TABLES[table].names if table in TABLES else list(Summary.model_fields)
    rows = (f"| `{name}` | {unit(name)} | {meaning(table, name)} |\n" for name in names)
    return "| column | unit | meaning |\n|---|---|---|\n" + "".join(rows)
