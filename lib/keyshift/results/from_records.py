"""The tables of a run from what was written down while it ran. Pure: records in, tables out (``results.tables``).

``trigger_us``: the moment that is 0 in the tables, microseconds since the epoch.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.analysis.fired_windows import BIN_S, TIMER_MOMENTS, TIMER_RESULTS
from keyshift.analysis.metrics import migration_of
from keyshift.clock import SECOND_US
from keyshift.histogram import quantile
from keyshift.model.records import Instance, Measured, Sample, Second, SnapshotRecord, StepRecord
from keyshift.planner import Decision
from keyshift.planner.scaling import Scaling
from keyshift.results.tables import NO_STAGE, NOT_JUDGED, TABLES

OF_A_SLOT = (
    *("queue_peak_bytes", "rss_peak_bytes"),
    *("fetched_bytes", "fetched_keys", "written_bytes", "copied_bytes", "lent_bytes"),
)
SHARES = (50, 99)  # in percent: the quantiles of a stage's latency


def latency_table(results: Iterable[pd.DataFrame], trigger_us: int, first_only: bool, stage: int = 0) -> pa.Table:
    """The latency of the results of events: nobody waits for a timer's. ``results``: some at a time, or all of them.
    ``first_only``: an event may have several; one counts. ``stage``: that gave them, the last one.
    """
    columns = ["t", "arrived_us", "slot", "replica"]
    event = ["router", "offset", "position", "t"]  # where Kafka has lost one, another one has its place
    needed = [*dict.fromkeys(columns + event)] if first_only else columns
    parts: Iterable[pd.DataFrame] = (some[needed][(some["position"] >= 0).to_numpy()] for some in results)
    if first_only:
        parts = [pd.concat(parts).sort_values("arrived_us").drop_duplicates(event)]
    return pa.concat_tables(_latency(part, trigger_us, stage) for part in parts)


def _latency(results: pd.DataFrame, trigger_us: int, stage: int) -> pa.Table:
    created = (results["t"].to_numpy() - trigger_us) / SECOND_US
    latency = (results["arrived_us"].to_numpy() - results["t"].to_numpy()) / 1000
    columns = {
        "created_s": created,
        "latency_ms": latency.astype("f4"),
        "slot": results["slot"].to_numpy().astype("i2"),
        "stage": np.full(len(results), stage, "i2"),
        "replica": results["replica"].to_numpy().astype("i2"),
    }
    return pa.table(columns, schema=TABLES["latency"])


def metrics_table(
    samples: Iterable[Sample],
    measures: Sequence[Mapping[int, Measured]],
    measured_at: float,
    seconds: Iterable[Second],
    trigger_us: int,
    replica: int = 0,
) -> pa.Table:
    """Make the table of what was sampled, measured and told of each second. ``measures``: of each stage, what each slot
    of the ``replica`` measured until ``measured_at``. ``seconds``: what the collector said of each. Times in seconds
    since the epoch.
    """
    rows: list[dict[str, Any]] = []

    def add(at_s: float, metric: str, instance: str, value: float, stage: int = NO_STAGE, of: int = 0) -> None:
        row = {"t_s": at_s - trigger_us / SECOND_US, "metric": metric, "instance": instance, "value": float(value)}
        rows.append(row | {"stage": stage, "replica": of})

    for at_s, metric, instance, value in samples:
        add(at_s, metric, str(instance), value, of=instance.replica or 0)
    for stage, slots in enumerate(measures):
        for slot, measured in slots.items():
            for name in OF_A_SLOT:
                add(measured_at, name, f"slot-{slot}", getattr(measured, name), stage, replica)
        counts = latencies(slots)
        for share in SHARES:
            add(measured_at, f"latency_p{share}_ms", "slots", quantile(counts, share / 100), stage, replica)
    for each in seconds:
        add(each.second, "throughput_per_s", "collector", each.results)
    return pa.Table.from_pylist(rows, schema=TABLES["metrics"])


def fired(results: pd.DataFrame) -> list[Sample]:
    """Samples for ``metrics_table`` of what timers gave, by the tenth of a second in which they were *due*.

    How many results, and how many different moments (at which windows closed) they were due at. Event time that runs
    faster than the clock is on the clock here.
    """
    due = results.loc[results["position"] < 0, "t"]
    moments = due.groupby(np.floor(due / SECOND_US / BIN_S)).agg(["size", "nunique"])
    rows = zip((moments.index * BIN_S).tolist(), moments["size"], moments["nunique"], strict=True)
    return [
        Sample(at, name, Instance("timers"), float(value))
        for at, many, distinct in rows
        for name, value in ((TIMER_RESULTS, many), (TIMER_MOMENTS, distinct))
    ]


def latencies(measures: Mapping[int, Measured]) -> Counter[int]:
    """Times from an event's due time to its result at a stage, as its slots counted: by class, see ``histogram``."""
    counts: Counter[int] = Counter()
    for measured in measures.values():
        for each, number in measured.latency:
            counts[each] += number
    return counts


def stage_latencies(stages: Mapping[str, Mapping[int, Measured]]) -> list[str]:
    """A line for a job of several stages: how long after its due time an event has its result at each of them.

    ``stages``: what each slot of each measured.
    """
    if len(stages) == 1:
        return []
    words = []
    for name, measures in stages.items():
        half, most = (quantile(latencies(measures), share / 100) for share in SHARES)
        words.append(f"{name} {half:.1f} and {most:.1f} ms")
    return [f"latency at each stage, from an event's due time to its result there, P50 and P99: {', '.join(words)}"]


def migration_table(records: Sequence[Sequence[StepRecord]], trigger_us: int, replica: int = 0) -> pa.Table:
    """One row for each unit that a step was to move, in the order of the steps and of the moves of each.

    ``records``: of each stage, of the ``replica``. Steps are numbered through all stages, as they were begun.
    """

    def since(us: float | None) -> float:
        return math.nan if us is None else (us - trigger_us) / SECOND_US

    rows = []
    begun = [(record, stage) for stage, some in enumerate(records) for record in some]
    begun.sort(key=lambda each: each[0].published_us)
    for number, (record, stage) in enumerate(begun):
        lefts = {(slot, unit.unit): unit for slot, said in record.released.items() for unit in said.units}
        cames = {(slot, unit.unit): unit for slot, said in record.installed.items() for unit in said.units}
        for move in record.step.moves:
            installed = record.installed.get(move.destination)
            left, came = lefts.get((move.source, move.unit)), cames.get((move.destination, move.unit))
            rows.append(
                {
                    "step": number,
                    **move._asdict(),
                    "bytes": left.bytes if left else 0,
                    "prepared_s": since(record.prepared_us),
                    "switched_s": since(record.switched_us),
                    "aligned_s": since(left.aligned_us if left else None),
                    "sent_s": since(left.sent_us if left else None),
                    "received_s": since(came.received_us if came else None),
                    "installed_s": since(came.installed_us if came else None),
                    "drained_s": since(installed.drained_us if installed else None),
                    "stage": stage,
                    "replica": replica,
                }
            )
    return pa.Table.from_pylist(rows, schema=TABLES["migration"])


def decisions_table(decisions: Sequence[Iterable[tuple[int, Decision]]]) -> pa.Table:
    """Each decision of a plan, with the number of the migration that it was made for. ``decisions``: of each stage."""
    rows = [
        asdict(decision) | {"migration": number, "step": -1 if decision.step is None else decision.step, "stage": stage}
        for stage, some in enumerate(decisions)
        for number, decision in some
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["decisions"])


def scaling_table(scalings: Iterable[Scaling], trigger: float) -> pa.Table:
    """Each look of an autoscaler, stage by stage. ``trigger``: seconds since the epoch, as in ``Look.at_s``."""
    rows = []
    for made in scalings:
        told = {"t_s": made.look.at_s - trigger, **asdict(made.look), **asdict(made)}
        rows += [told | asdict(stage) | {"stage": number} for number, stage in enumerate(made.stages)]
    return pa.Table.from_pylist(rows, schema=TABLES["scaling"])


def snapshots_table(
    taken: Iterable[SnapshotRecord], stages: Sequence[str], trigger_us: int, judged: Mapping[str, bool]
) -> pa.Table:
    """Each complete snapshot, stage by stage. ``stages``: their names. ``judged``: by name, whether it is ok."""
    verdicts = {True: "ok", False: "bad", None: NOT_JUDGED}
    rows = [
        {
            "snapshot": number,
            "begun_s": (one.begun_us - trigger_us) / SECOND_US,
            "completed_s": (one.completed_us - trigger_us) / SECOND_US,
            "bytes_written": one.written[stage],
            "bytes_state": one.state[stage],
            "stage": place,
            "verdict": verdicts[judged.get(one.name)],
        }
        for number, one in enumerate(taken)
        for place, stage in enumerate(stages)
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["snapshots"])


def bytes_minimum(
    migration: pd.DataFrame, decisions: pd.DataFrame, unit_bytes: Mapping[int, Mapping[int, int]], whole: bool
) -> int:
    """The bytes of units that were to change their slot, once in each migration.

    ``unit_bytes``: by stage, what each unit has at the end of the job. ``whole``: units were sent as a whole,
    without copies ahead. Then what was sent of a unit is what it had when it moved, which in a young job is less.
    """
    of = migration_of(migration, decisions)
    moved = migration["source"] != migration["destination"]
    by: list[Any] = [of[moved], "stage", "unit"]
    largest: dict[Any, int] = migration[moved].groupby(by)["bytes"].max().to_dict()
    return sum(sent if whole and sent else unit_bytes[stage][unit] for (_, stage, unit), sent in largest.items())


def nothing_moved(to_move: int, migration: pd.DataFrame) -> list[str]:
    """A line if so many units were to move, none is known to have arrived and no step of any to have switched: behind a
    death, the next attempt builds units where a switch wants them, and nobody says when they are installed.
    """
    known = migration[["switched_s", "installed_s"]].notna().any(axis=1)
    if not to_move or ((migration["source"] != migration["destination"]) & known).any():
        return []
    return [f"nothing moved: {to_move} units were to move, and none is known to have arrived"]


def hosts(measures: Mapping[int, Measured]) -> list[str]:
    """A line on which slots were where in the end, if not all on one host. Hosts have numbers: notes are for others."""
    slots_of: dict[str, list[str]] = {}
    for slot, measured in sorted(measures.items()):
        slots_of.setdefault(measured.host, []).append(str(slot))
    places = "; ".join(
        f"slots {', '.join(slots)} on host-{number}" for number, slots in enumerate(slots_of.values(), start=1)
    )
    return [places] if len(slots_of) > 1 else []
