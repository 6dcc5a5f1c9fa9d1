"""What comes of a run: its verdict, its tables, what the summary needs beside them, and notes for a reader."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from keyshift.analysis.metrics import Load
from keyshift.analysis.timelines import FAULT
from keyshift.clock import SECOND_US
from keyshift.lab.final_state import FinalState, judged
from keyshift.lab.sampler import Sample
from keyshift.planner.scaling import Scaling
from keyshift.progress import Say
from keyshift.results import from_records
from keyshift.results.manifest import Verdict
from keyshift.results.verdict import Judgement, due_in
from keyshift.traffic.traffic import Feed, Traffic
from keyshift.workloads import Workload


class Outcome(NamedTuple):
    """``facts``: for ``analysis.metrics.summarise``."""

    tables: dict[str, pa.Table]
    verdict: Verdict
    facts: dict[str, Any]
    notes: list[str]


class Span(NamedTuple):
    """Of a run, in seconds since the epoch: load and measured time, and the trigger, which is 0 in tables."""

    start: float
    measured: float
    end: float
    trigger: float


def outcome(
    workload: Workload,
    span: Span,
    traffic: Traffic,
    feed: Feed,
    final: FinalState,
    samples: Iterable[Sample],
    overloaded: bool,
    say: Say,
    scalings: Sequence[Scaling] = (),
) -> Outcome:
    """Of a run that has ended. If the job was ``overloaded``, it counts what it had processed by its end."""
    say("comparing every result and the final state with the oracle")
    events, frames = traffic.offered(before=final.offsets if overloaded else None)
    results, offered = traffic.results(), feed.offered
    assert offered is not None  # the generator has ended
    found = judged(workload, offered, events, frames, results, final)
    processed = frames[frames["offset"] < frames["router"].map(final.offsets)] if overloaded else frames
    trigger_us = round(span.trigger * SECOND_US)
    stages = final.stages
    measures = [stage.measures for stage in stages]
    struck = [(at, FAULT, what, 1.0) for at, what in final.struck]
    tables = {
        "latency": from_records.latency_table(
            results, trigger_us, first_only=bool(final.revoked), stage=len(stages) - 1
        ),
        "metrics": from_records.metrics_table(
            [*samples, *struck], measures, final.measured_at, traffic.seconds, trigger_us
        ),
        "migration": from_records.migration_table([stage.records for stage in stages], trigger_us),
        "decisions": from_records.decisions_table([stage.decisions for stage in stages]),
        "scaling": from_records.scaling_table(scalings, span.trigger),
        "snapshots": from_records.snapshots_table(final.snapshots, [stage.name for stage in stages], trigger_us),
    }
    migration: pd.DataFrame = tables["migration"].to_pandas()
    moved = [from_records.moved_units(migration[migration["stage"] == number]) for number in range(len(stages))]
    nothing = from_records.nothing_moved(sum(len(stage.to_move) for stage in stages), migration)
    for line in nothing:
        say(line)
    facts = {
        "planned_s": final.planned_s,
        "replicate_s": final.replicate_s,
        "bytes_minimum": sum(stages[number].unit_bytes[unit] for number, units in enumerate(moved) for unit in units),
        "bytes_by_key": sum(m["fetched_bytes"] + m["written_bytes"] for each in measures for m in each.values()),
        "bytes_copied": final.bytes_copied,
        "since_s": span.measured - span.trigger,
        "load": Load(
            begin_s=span.start - span.trigger,
            end_s=span.end - span.trigger,
            took_s=feed.took_s,
            events=offered,
            unprocessed=offered - int(processed["events"].sum()),
            due=int(due_in(workload.stages, events).sum()),
            planned=feed.planned,
        ),
    }
    at_stages = from_records.stage_latencies({stage.name: stage.measures for stage in stages})
    of_hosts = (line for each in measures for line in from_records.hosts(each))
    notes = [*of_hosts, *at_stages, *final.troubles, *nothing]
    return Outcome(tables, _as_manifest(found), facts, notes)


def _as_manifest(found: Judgement) -> Verdict:
    return Verdict(
        lost=found.lost,
        duplicated=found.duplicated,
        reordered=found.reordered,
        wrong=found.wrong,
        ownership_violations=found.foreign,
        others={"unexpected": found.unexpected, "unread": found.unread},
        examples=list(found.examples),
    )
