"""What comes of a run: its verdict, its tables, what the summary needs beside them, and notes for a reader."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.analysis.metrics import FAULT, Offered
from keyshift.analysis.tables import BY_KEY
from keyshift.clock import SECOND_US
from keyshift.lab.judge.final_state import CopiedAhead, FinalState, StageEnd, judged, judged_cuts, processed, waited_for
from keyshift.lab.judge.spilled import spilled_of
from keyshift.model.records import Instance, Measured, Sample
from keyshift.planner.scaling import Scaling
from keyshift.progress import Say
from keyshift.results import from_records
from keyshift.results.copies import SLOT, UNIT, behind, between, by_unit, furthest, repeated, unlike
from keyshift.results.manifest import EXAMPLES_KEPT, Verdict
from keyshift.results.verdict import Judgement, counting, due_in
from keyshift.traffic.copies import Incarnation
from keyshift.traffic.feed import Feed
from keyshift.traffic.traffic import Traffic
from keyshift.workloads import Workload

REPLICAS = "replicas"  # metric: how many are full, where that changes
NEVER_DIED = [Incarnation()]
_EXAMPLES_OF_CUTS = 6  # and as many of replicas


class Evaluation(NamedTuple):
    """What comes of a run. ``facts``: for ``analysis.metrics.summarise``."""

    tables: dict[str, pa.Table]
    verdict: Verdict
    facts: dict[str, Any]
    notes: list[str]


class Span(NamedTuple):
    """A span of a run, in seconds since the epoch: load and measured time, and the trigger, which is 0 in tables."""

    start: float
    measured: float
    end: float
    trigger: float

    def covers(self, moment: float) -> bool:
        """Whether ``moment`` is in it."""
        return self.start <= moment < self.end

    def of(self, moments: "pd.Series[int]") -> "pd.Series[bool]":
        """Find which of ``moments``, in microseconds since the epoch, are in it."""
        return moments.between(self.start * SECOND_US, self.end * SECOND_US, inclusive="left")


class EndedJob:
    """A job that has ended, with all that was offered to it and came out. ``overloaded``: what it had processed."""

    def __init__(
        self,
        workload: Workload,
        traffic: Traffic,
        feed: Feed,
        final: FinalState,
        samples: Iterable[Sample],
        overloaded: bool = False,
    ) -> None:
        assert feed.offered is not None  # the generator has ended
        self.workload, self.final, self.feed, self._traffic = workload, final, feed, traffic
        self._samples = [
            *samples,
            *(Sample(at, FAULT, Instance(what), 1.0) for at, what in final.struck),
            *(Sample(at, REPLICAS, Instance("full"), float(full)) for at, full in final.strength),
        ]
        self._seconds, self._overloaded = traffic.seconds, overloaded
        self._spilled = spilled_of(workload, traffic, feed.offered, final, overloaded)
        if self._spilled:  # then nobody needs whole tables
            self._frames, made = self._spilled.frames, self._spilled.made
            self._left_out = self._spilled.left_out
        else:
            events, self._frames = traffic.offered(before=(final.offsets or None) if overloaded else None)
            self.events = waited_for(workload, events, final.offsets)
            self._results, made = traffic.results(), len(events)
            self._left_out = made - len(self.events)
        pa.default_memory_pool().release_unused()  # what reading took: a sixth of the peak
        self._offered_per_event = int(self._frames_read["events"].sum()) / max(1, made)
        if overloaded and not final.offsets:
            self.events = processed(workload, self.events, self._results)

    @property
    def _frames_read(self) -> pd.DataFrame:
        """The frames that ``events`` are from, as they are read."""
        frames, offsets = self._frames, self.final.offsets
        return frames[frames["offset"] < frames["router"].map(offsets)] if self._overloaded and offsets else frames

    def offered_for(self, made: int) -> int:
        """Count the events of the sources for so many that routers have made of them: fewer, or more."""
        return round(made * self._offered_per_event)

    def counted(self, span: Span | None = None) -> tuple[int, int]:
        """Count the events that results have to be about, all or those in ``span``, and the results due for them."""
        made = due = 0
        for some in self._spilled.some_events() if self._spilled else [self.events]:
            events = some if span is None else some[span.of(some["t"])]
            made, due = made + len(events), due + int(due_in(self.workload.stages, events).sum())
        return made, due

    def _some_results(self, span: Span | None) -> Iterator[pd.DataFrame]:
        """All results or those in ``span``, some at a time."""
        for some in self._spilled.some_results() if self._spilled else [self._results]:
            yield some if span is None else some[span.of(some["t"])]

    def verdict(self) -> Verdict:
        """The verdict on the whole job. If replicas have had different assignments, first copies are from slots of all
        of them: one replica is judged then, and first copies are what that has given, see ``_differences``.
        """
        assert self.feed.offered is not None
        of, offered = self.final.judged, self.feed.offered
        if self._spilled:
            found = self._spilled.judged(offered, self.final)
        else:
            results = self._results if of is None else self._as_if_alone(of)
            found = judged(self.workload, offered, self.events, self._frames, results, self.final)
        return _as_manifest(found, self._cuts, self._replicas, self._differences)

    @cached_property
    def _replicas(self) -> dict[int, Judgement]:
        """The verdict on each replica that lived to the end, by itself: as if no copy of another one had come."""
        found, offered = {}, self.feed.offered or 0
        for number, final in self.final.replicas.items():
            events, frames = waited_for(self.workload, self.events, final.offsets), self._frames
            if self._overloaded:  # each has stopped at a place of its own
                events, frames = (each[each["offset"] < each["router"].map(final.offsets)] for each in (events, frames))
                offered = int(frames["events"].sum())
            results = self._as_if_alone(number)
            found[number] = judged(self.workload, offered, events, frames, results, final)
        return found

    def _as_if_alone(self, number: int) -> pd.DataFrame:
        """Return what a replica would have given had it not died: before its last incarnation, what came of another."""
        *before, last = self.final.began.get(number, NEVER_DIED)
        mine = self._traffic.results(number)
        if not before:
            return mine
        if self.final.judged is None:
            until = [self._results[~behind(self._results, last.turns)]]
        else:
            until = [*self._one_by_one(number, last)]
        found = pd.concat([*until, mine[mine["attempt"] == last.attempt]])
        return found.assign(log_offset=np.arange(len(found)))

    def _one_by_one(self, number: int, last: Incarnation) -> Iterator[pd.DataFrame]:
        """The results that came until the ``last`` incarnation of a replica began, of those that moved one after the
        other. All had the same assignment wherever one began. In between, first copies may be of several: so it is what
        one of them gave that lived from there to there, this one if it did.
        """
        given = cache(self._traffic.results)
        others = [each for each in range(self._traffic.replicas) if each != number]
        begins = sorted((each.turns for began in self.final.began.values() for each in began), key=furthest)
        for begin, end in pairwise(turns for turns in begins if furthest(turns) <= furthest(last.turns)):
            firsts = between(self._results, begin, end)
            for replica in (number, *others):
                lived = [each for each in self.final.began[replica] if furthest(each.turns) <= furthest(begin)]
                mine = given(replica)
                found = between(mine[mine["attempt"] == lived[-1].attempt], begin, end)
                if len(found) >= len(firsts):
                    yield found
                    break
            else:
                yield firsts

    @cached_property
    def _cuts(self) -> dict[str, Judgement]:
        if self.final.cuts is None:
            return {}
        return judged_cuts(self.workload, self.events, self._frames, self._results, self.final)

    @cached_property
    def _differences(self) -> list[str]:
        """Differences in what replicas did, as was seen while they ran, and in what they gave, also those that died."""
        if not self.final.replicas:
            return []
        of, replicas = self.final.judged, range(self._traffic.replicas)
        given = [f"replica {replica}: {line}" for replica in replicas for line in self._given_by(replica)]
        if of is not None:
            more = len(self._results) - len(self._as_if_alone(of))
            given += [f"{more} first copies more than replica {of} gave"] if more > 0 else []
        told = [] if of is not None and self._versions_differ else map(str, self._traffic.differences)
        return [*told, *given]

    @property
    def _versions_differ(self) -> bool:
        """Whether a version was not the same assignment in all replicas: a step was rolled back in one of those that
        moved one after the other. Then their turns cannot be compared, and their results are.
        """
        owners: dict[tuple[str, int], tuple[int, ...]] = {}
        return any(
            owners.setdefault((stage.name, each.version), tuple(each.owner)) != tuple(each.owner)
            for final in self.final.replicas.values()
            for stage in final.stages
            for each in stage.ownership.assignments
        )

    def _given_by(self, replica: int) -> Iterator[str]:
        """A line for each difference between what an incarnation has given and the first copies from its beginning on,
        and one if there is more than incarnations have given.
        """
        mine, began = self._traffic.results(replica), self.final.began.get(replica, NEVER_DIED)
        for each in began:
            firsts, copies = self._results[behind(self._results, each.turns)], mine[mine["attempt"] == each.attempt]
            if self.final.judged is None:
                yield from unlike(firsts, copies, SLOT)
            else:
                units = self.workload.key_groups, self.workload.bins
                yield from unlike(by_unit(firsts, *units), by_unit(copies, *units), UNIT)
        if more := int((~mine["attempt"].isin([each.attempt for each in began])).sum()):
            yield f"{more} results of attempts that it has not had"

    @property
    def notes(self) -> list[str]:
        """What the verdict is about, too: snapshots, if it was to be about them, and replicas."""
        notes = []
        if self.final.cuts is not None:
            bad = sum(not found.ok for found in self._cuts.values())
            notes.append(f"{len(self._cuts)} snapshots were judged, each as if the job had ended there: {bad} bad")
        if self.final.repeats:
            again = int(repeated(self._results, self.final.repeats).sum())
            notes.append(
                f"{again} results came once more, from behind the checkpoint that the job went on from: the verdict is "
                "about the last of each, latency about the first"
            )
        if self._left_out:
            notes.append(f"{self._left_out} events were not processed: no result of them is due, so nobody waited")
        if self.final.told_of:
            notes += self.final.told_of(self.events)
        if self._replicas:
            bad = sum(not found.ok for found in self._replicas.values())
            shares = self._results["replica"].value_counts(normalize=True).sort_index()
            firsts = ", ".join(f"{share:.0%} of replica {number}" for number, share in shares.items())
            several = len(self._replicas) > 1
            who = f"{len(self._replicas)} replicas were judged, each" if several else "1 replica was judged,"
            notes.append(
                f"{who} as if it had been alone: {bad} bad; of {self._traffic.compared} turns that two of them told, "
                f"and of all results, {len(self._differences)} differences are known; first copies: {firsts}"
            )
        return notes

    @property
    def unprocessed(self) -> int:
        """Events that were offered and not processed, as the job was overloaded."""
        if not self._overloaded:
            return 0  # what Kafka has lost, or has once more, is in the verdict
        read = int(self._frames_read["events"].sum()) if self.final.offsets else self.offered_for(len(self.events))
        return max(0, (self.feed.offered or 0) - read)

    def unprocessed_in(self, span: Span) -> int:
        """Those of them that are in ``span``, to a frame; 0 if it is not known in which frames they are."""
        frames = self._frames
        until = frames["watermark"].where(frames["watermark"] > 0)  # of those sent at once only the last one has it
        inside = span.of(until.groupby(frames["router"]).bfill())
        return int(frames["events"][inside].drop(self._frames_read.index, errors="ignore").sum())

    def tables(
        self, span: Span, numbers: Mapping[str, int] | None = None, scalings: Sequence[Scaling] = ()
    ) -> dict[str, pa.Table]:
        """Tables by name, with the trigger of ``span`` as 0: of the whole job, or with ``numbers`` of what is in it.

        ``numbers``: of the migration in ``span``, by stage, which is number 0 in tables. What slots measure is of the
        whole job, and is left out then.
        """
        stages, trigger_us = self.final.stages, round(span.trigger * SECOND_US)
        samples, seconds = self._samples, list(self._seconds)
        records = [list(stage.records) for stage in stages]
        measures = [stage.measures for stage in stages]
        decisions = [list(stage.decisions) for stage in stages]
        snapshots = list(self.final.snapshots)
        judged_ok = {name: found.ok for name, found in self._cuts.items()}
        if numbers is not None:
            samples = [sample for sample in samples if span.covers(sample.at_s)]
            seconds = [second for second in seconds if span.covers(second.second)]
            records = [[each for each in some if span.covers(each.published_us / SECOND_US)] for some in records]
            chosen = [numbers.get(stage.name) for stage in stages]
            decisions = [[(0, d) for at, d in some if at == n] for some, n in zip(decisions, chosen, strict=True)]
            snapshots = [each for each in snapshots if span.covers(each.begun_us / SECOND_US)]
            measures = []
        within, revoked = None if numbers is None else span, self.final.revoked
        timers = [counting(some[some["position"] < 0], revoked) for some in self._some_results(within)]
        samples = [*samples, *from_records.fired(pd.concat(timers))]
        first_only = bool(revoked or self.final.repeats)
        measured_at, of = self.final.measured_at, self.final.replica
        return {
            "latency": from_records.latency_table(self._some_results(within), trigger_us, first_only, len(stages) - 1),
            "metrics": from_records.metrics_table(samples, measures, measured_at, seconds, trigger_us, of),
            "migration": from_records.migration_table(records, trigger_us, of),
            "decisions": from_records.decisions_table(decisions),
            "scaling": from_records.scaling_table(scalings, span.trigger),
            "snapshots": from_records.snapshots_table(
                snapshots, [stage.name for stage in stages], trigger_us, judged_ok
            ),
        }

    def evaluation(self, span: Span, scalings: Sequence[Scaling], say: Say) -> Evaluation:
        """The evaluation of the whole run. If the job was overloaded, it counts what it had processed by its end."""
        final, feed, stages = self.final, self.feed, self.final.stages
        verdict, tables = self.verdict(), self.tables(span, scalings=scalings)
        measures = [stage.measures for stage in stages]
        pushed = all(record.step.mode.transfer == "push" for stage in stages for record in stage.records)
        to_move = sum(len(stage.to_move) for stage in stages)
        nothing = from_records.nothing_moved(to_move, tables["migration"].to_pandas())
        for line in nothing:
            say(line)
        _, due = self.counted()
        offered = {"took_s": feed.took_s, "events": feed.offered or 0, "planned": feed.planned, "due": due}
        offered["unprocessed"] = self.unprocessed
        facts = self.facts(span, tables, offered, final.copied, pushed)
        facts["planned_s"] = final.planned_s
        facts["bytes_beside"] = None if any(map(_sent_beside_in_the_past, stages)) else bytes_beside(measures)
        if final.strength and final.strength[0][0] <= span.start:  # since a resume it is of this process alone
            facts["fewer_replicas_s"] = fewer_s(final.strength, self._traffic.replicas, span)
        facts["incomplete"] = any(stage.incomplete for stage in stages)
        at_stages = from_records.stage_latencies({stage.name: stage.measures for stage in stages})
        of_hosts = (line for each in measures for line in from_records.hosts(each))
        return Evaluation(tables, verdict, facts, [*of_hosts, *at_stages, *final.notes, *nothing, *self.notes])

    def facts(
        self, span: Span, tables: Mapping[str, pa.Table], offered: Mapping[str, Any], copied: CopiedAhead, pushed: bool
    ) -> dict[str, Any]:
        """Gather what ``analysis.metrics.summarise`` needs beside the ``tables`` of ``span``, and can be said alike of
        the whole run and of a lap. ``offered``: the rest of ``Offered``.
        """
        unit_bytes = {number: stage.unit_bytes for number, stage in enumerate(self.final.stages)}
        moved, decided = (tables[name].to_pandas() for name in ("migration", "decisions"))
        whole = pushed and not copied.ordered
        begin_s, end_s = span.start - span.trigger, span.end - span.trigger
        return {
            "bytes_minimum": from_records.bytes_minimum(moved, decided, unit_bytes, whole),
            "bytes_copied": copied.bytes_copied,
            "replicate_s": copied.replicate_s,
            "since_s": span.measured - span.trigger,
            "load": Offered(begin_s=begin_s, end_s=end_s, rate_changed=self.feed.rate_changed, **offered),
        }


def fewer_s(strength: Sequence[tuple[float, int]], replicas: int, span: Span) -> float:
    """Seconds of ``span`` in which fewer than ``replicas`` were full; see ``FinalState.strength``."""
    until = [*(at for at, _ in strength[1:]), span.end]
    fewer = ((at, end) for (at, full), end in zip(strength, until, strict=True) if full < replicas)
    return sum(max(0.0, min(end, span.end) - max(at, span.start)) for at, end in fewer)


def bytes_beside(measures: Iterable[Mapping[int, Measured]]) -> int:
    """The bytes sent key by key, and of units that were lent. ``measures``: of each stage, what each slot measured."""
    return sum(m.fetched_bytes + m.written_bytes + m.lent_bytes for each in measures for m in each.values())


def _sent_beside_in_the_past(stage: StageEnd) -> bool:
    """Whether a step of an attempt that has ended may have sent some of that: slots count from the beginning of theirs.
    A replica that came back begins under the version of the step before.
    """
    switched = (
        record.step.mode
        for record in stage.records
        if record.version <= stage.begins[-1] and record.outcome not in ("cancelled", "rolled back")
    )
    return any(mode.transfer in BY_KEY or mode.fetch_back for mode in switched)


def _as_manifest(
    found: Judgement, cuts: Mapping[str, Judgement], replicas: Mapping[int, Judgement], differences: Sequence[str]
) -> Verdict:
    bad = {name: each for name, each in cuts.items() if not each.ok}
    more = [f"snapshots: {name}: {line}" for name, each in bad.items() for line in each.examples][:_EXAMPLES_OF_CUTS]
    diverged = {number: each for number, each in replicas.items() if not each.ok}
    of_replicas = [f"replica {number}: {line}" for number, each in diverged.items() for line in each.examples]
    more += [f"diverged: {line}" for line in [*differences, *of_replicas]][:_EXAMPLES_OF_CUTS]
    return Verdict(
        lost=found.lost,
        duplicated=found.duplicated,
        reordered=found.reordered,
        wrong=found.wrong,
        ownership_violations=found.foreign,
        others={"unexpected": found.unexpected, "unread": found.unread}
        | ({"snapshots": len(bad)} if cuts else {})
        | ({"diverged": len(differences) + len(diverged)} if replicas else {}),
        examples=[*found.examples[: EXAMPLES_KEPT - len(more)], *more],
    )
