"""What a run is stored as."""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from keyshift.analysis import metrics as analysis
from keyshift.analysis.machine import disturbance, disturbance_notes, machine_notes, shares_before
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.evaluation import Evaluation
from keyshift.model.errors import KeyshiftError
from keyshift.objects import await_answer
from keyshift.progress import Say
from keyshift.results.manifest import Manifest, Stage, Summary, describe_machine, describe_versions
from keyshift.results.store import ResultStore
from keyshift.runtime.protocol_log import LogEvent, to_lines

BEHIND_S = 1.0  # of load without a result at its end: the job, or the generator, has fallen behind
PROTOCOL_LOG = "protocol.jsonl"  # of a run that is bad or died


class Recording:
    """The record of one run, from its beginning on; ``ended`` or ``died`` stores it.

    ``copy_bytes_per_s``: of a bare copy. ``took``: when it began and ended, if it is over. ``versions``: of another
    system than keyshift's job.
    """

    def __init__(
        self,
        store: ResultStore,
        say: Say,
        spec: RunSpec,
        run_id: str,
        parameters: dict[str, Any],
        copy_bytes_per_s: float,
        took: tuple[datetime, datetime] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._say, self._spec, self.run_id = store, say, spec, run_id
        self._copy_bytes_per_s, self._took = copy_bytes_per_s, took
        self._known: dict[str, Any] = {
            "run_id": run_id,
            "workload": spec.workload.name,
            "strategy": parameters["strategy"],
            "parameters": parameters,
        }
        self._common: dict[str, Any] = self._known | {
            "started_at": took[0] if took else datetime.now(UTC),
            "stages": [Stage(name=s.name, due="workload" if s.due else "event") for s in spec.workload.stages],
            "versions": describe_versions() | dict(versions or {}),
            "machine": describe_machine(),
            "seeds": {"events": spec.workload.seed},
            "replicas": spec.job.replicas,
        }
        say(f"run {run_id}")

    def ended(self, evaluation: Evaluation, log: list[LogEvent]) -> Manifest:
        """Store a run that has ended. ``log``: its last protocol events, kept if the verdict is bad."""
        tables, judged, facts, notes = evaluation
        metrics = tables["metrics"].to_pandas()
        latency = tables["latency"].to_pandas()
        figures = analysis.summarise(
            latency,
            tables["migration"].to_pandas(),
            metrics,
            decisions=tables["decisions"].to_pandas(),
            copy_bytes_per_s=self._copy_bytes_per_s,
            **facts,
        )
        run, (busy, steal) = self._spec.run, shares_before(metrics, facts["since_s"])
        disturbed = disturbance(latency, metrics, facts["since_s"])
        machine = machine_notes(busy, steal, run.rate, run.frame_ms)
        machine += disturbance_notes(figures["p99_ms"], disturbed) + clock_notes(float(latency["latency_ms"].min()))
        for note in (found := [*pace_notes(facts["load"], run.catch_up_s, figures), *machine]):
            self._say(note)
        summary = Summary(
            **self._known,
            verdict="ok" if judged.ok else "bad",
            lost=judged.lost,
            duplicated=judged.duplicated,
            reordered=judged.reordered,
            wrong=judged.wrong,
            cpu_busy=busy,
            cpu_steal=steal,
            **disturbed,
            **figures,
        )
        manifest = Manifest(
            **self._common,
            status=summary.verdict,
            finished_at=self._took[1] if self._took else datetime.now(UTC),
            verdict=judged,
            summary=summary,
            notes=[*notes, *found],
        )
        # A store that is away for a while does not cost the run, which may have taken minutes.
        await_answer(lambda: self._store.holds(self.run_id), say=self._say)
        stored = self._store.put_run(manifest, tables)
        return stored if judged.ok else self._put_log(stored, log)

    def died(self, error: BaseException, log: list[LogEvent]) -> None:
        """Store a run that ``error`` has ended, which is the news: if the store has died, that is not said again."""
        words = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        manifest = Manifest(**self._common, status="died", error=words, finished_at=datetime.now(UTC))
        with contextlib.suppress(KeyshiftError):
            self._put_log(self._store.put_run(manifest, {}), log)

    def _put_log(self, stored: Manifest, log: list[LogEvent]) -> Manifest:
        """Store the last protocol events, if any are known. If that fails, the run is stored all the same."""
        if log:
            what = "the last protocol events of every slot and router"
            try:
                stored = self._store.put_file(stored.run_id, PROTOCOL_LOG, to_lines(log).encode())
                self._say(f"{what} are in {stored.run_id}/{PROTOCOL_LOG}")
            except KeyshiftError as error:
                self._say(f"{what} are not stored: {error}")
        return stored


def pace_notes(load: analysis.Offered, catch_up_s: float, figures: Mapping[str, Any]) -> list[str]:
    """Notes for a run in which generator or job did not keep up. ``figures``: of ``analysis.metrics.pace``."""
    notes, load_s, events = [], load.end_s - load.begin_s, figures["events"]
    late_s = load.took_s - load_s
    # Counts, not rates: events may have been made in another time than in which they were answered. Who was late need
    # not be the generator: it waits for room on the way to Kafka.
    if (missing := load.planned - events) > 0:
        notes.append(
            f"the generator made {_number(events)} of the {_number(load.planned)} events that were to be offered "
            f"({events / load.planned:.0%}), in {load.took_s:.1f} s; {_number(missing)} events were never offered"
        )
    elif late_s > BEHIND_S:
        notes.append(
            f"the generator made all {_number(events)} events, the last one {late_s:.1f} s after the end of the load: "
            "it, or Kafka, was late"
        )
    if figures["backlog"] > figures["offered_per_s"] * BEHIND_S:
        end = "was never worked off"
        if figures["overloaded"]:
            end = f"was not worked off within {catch_up_s:g} s: {_number(figures['unprocessed'])} not processed"
        elif figures["worked_off_s"] is not None:
            end = f"was worked off {figures['worked_off_s']:.1f} s later"
        notes.append(
            f"a backlog: of {_number(events)} events {_number(events - figures['backlog'])} were answered when the "
            f"load ended; the rest {end}"
        )
    return notes


def clock_notes(least_ms: float) -> list[str]:
    """A note if results came before their events were due. Kafka, whose log says when they came, may be elsewhere."""
    if not least_ms < 0:
        return []
    behind = f"Kafka's clock is at least {-least_ms:.1f} ms behind that of this machine"
    return [f"{behind}: by it results came before their events were due, and latencies are too short by as much"]


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
