"""What every column of a stored run means, and in which unit: the data dictionary of an export.

Units follow from the end of a name (``UNITS``); a column that ends otherwise is a number without one, or a name.
"""

from keyshift.results.manifest import Manifest, Summary
from keyshift.results.tables import TABLES

UNITS = {
    "_per_s": "1/s",
    "_ms": "ms",
    "_s": "s",
    "_us": "µs",
    "_mib": "MiB",
    "bytes": "bytes",
    "bytes_moved": "bytes",
    "bytes_copied": "bytes",
    "bytes_minimum": "bytes",
    "bytes_written": "bytes",
    "bytes_state": "bytes",
    "_cost": "slot-seconds",
}
_OF_ANY = {
    "run_id": "the run",
    "stage": "place of the keyed stage in the run's stages, from 0; -1: of a process that belongs to none",
    "replica": "number of the query among those that process the same input, from 0",
}
_OF_TABLES = {
    "latency": {
        "created_s": "when the event was scheduled to be created, relative to the trigger",
        "latency_ms": "from then until its result was available",
        "slot": "which gave the result",
    },
    "metrics": {
        "t_s": "when it was measured, relative to the trigger",
        "metric": "what: cpu_cores (processors), rss_mib (MiB), throughput_per_s (1/s), fault, …; docs/results.md",
        "instance": "of which process, slot or task",
        "value": "in the unit of the metric",
    },
    "migration": {
        "step": "of the run, from 0",
        "unit": "of state that moved",
        "source": "slot that it left",
        "destination": "slot to which it went",
        "bytes": "of state sent",
        "prepared_s": "source and destination have acknowledged the step",
        "switched_s": "the new assignment is published",
        "aligned_s": "the source has the barriers of all routers",
        "sent_s": "the source has sent the last byte",
        "received_s": "the destination has the last byte",
        "installed_s": "the state is in place",
        "drained_s": "the records queued meanwhile are processed",
    },
    "decisions": {
        "migration": "of the run, from 0",
        "unit": "of state that the decision is about",
        "step": "of that migration; -1: put off, or not copied",
        "reason": "why",
    },
    "scaling": {
        "t_s": "when the autoscaler looked, relative to the trigger",
        "slots": "that own state",
        "wanted": "slots, by this look alone",
        "target": "slots, as decided",
        "migrating": "whether a migration is under way",
        "reason": "why",
        "offered_per_s": "events",
        "demand_per_s": "events of the stage, with its part of the backlog",
        "true_per_s": "records that one slot processes at work",
        "utilisation": "demand by what all slots can take",
        "worth": "part of the capacity promised by more slots that came when it was tried, 0 to 1",
        "backlog": "events offered and not answered",
        "missed_s": "seconds whose P99 was above the objective",
        "stay_cost": "of staying, until the horizon",
        "move_cost": "of moving, until the horizon",
        "migration_s": "how long the migration is expected to take",
        "migration_missed_s": "seconds expected to be missed because of it",
    },
    "snapshots": {
        "snapshot": "number in the run, from 0",
        "begun_s": "when it was requested, relative to the trigger",
        "completed_s": "from when on a job could go on from it",
        "bytes_written": "what had changed",
        "bytes_state": "all state then",
        "verdict": "ok or bad, if the run up to there was compared with the oracle (verify = snapshots), or not judged",
    },
}
_OF_RUNS = {
    "verdict": "ok or bad: whether all results and the final state are as of a sequential run",
    "lost": "expected results that never came",
    "duplicated": "results that came more than once",
    "reordered": "results out of order within one router and key",
    "wrong": "results or final values that differ from the oracle's",
    "workload": "what the job computes",
    "strategy": "how its state moves",
    "started_at": "UTC",
}
PARAMETER, PHASE = "parameter.", "phase."  # begin the names of columns of runs, one per parameter and phase


def unit(column: str) -> str:
    """The unit of a column, by its name; empty if it has none."""
    if column.startswith(PHASE):
        return "s"
    return next((unit for end, unit in UNITS.items() if column.endswith(end)), "")


def meaning(table: str, column: str) -> str:
    """What a column of a table, or of ``runs``, means. Raises KeyError for a column that is not known."""
    if column.startswith(PHASE):
        return f"phase of the migration: {column.removeprefix(PHASE)}; docs/results.md"
    if column.startswith(PARAMETER):
        return "effective parameter of the run"
    if table in TABLES:
        return (_OF_TABLES[table] | _OF_ANY)[column]
    known = {name: field.description for model in (Manifest, Summary) for name, field in model.model_fields.items()}
    return (_OF_ANY | _OF_RUNS).get(column) or known[column] or ""
