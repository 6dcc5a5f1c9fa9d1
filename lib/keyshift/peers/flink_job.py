"""A Flink job that counts keys as ``keycount`` does, as a system under test: to scale, it stops with a savepoint and
starts from it with another parallelism.

The whole job is SQL. An OVER window without a bound keeps a row per key, and gives a result for each event:

- *the count*: the events of the key so far;
- *the payload*: the text that the key's first event left, ``state_bytes`` long. That event has ``t`` 0 and comes before
  the load (``traffic.lines.fill``), so every key has its state from the beginning, with count 0, as in ``keycount``.

A result says that the payload is whole by ``stamp`` = count - 1. If the state of a key were lost, a later event would
leave another payload, and the stamp would be -1.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import numpy as np
import pandas as pd

from keyshift.clock import SECOND_US, now_us
from keyshift.experiment.scenario import Change, ScaleTo
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.final_state import FinalState, StageEnd
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.model.records import Measured, StepRecord, UnitCame, restart_record
from keyshift.peers.flink_client import FlinkClient
from keyshift.planner import Strategy
from keyshift.results.verdict import Ownership
from keyshift.traffic import lines
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from keyshift.wire.faults import Fault
from keyshift.workloads.keycount import KeyCount, KeyCounts, wrong_results
from keyshift.workloads.times import Times

RUN_S = 60.0  # from a submitted job until all its tasks run
FILL_S = 60.0  # without a result of a key that was filled in
LOOK_S = 1.0  # between two looks whether the job is alive
ALL = 1 << 62  # no offset is beyond it

# No interval of checkpoints: the savepoint is the only one, as ``snapshot_s`` is 0 by default.
SETTINGS = {
    "pipeline.object-reuse": "true",
    "execution.buffer-timeout.interval": "1 ms",  # a result does not wait for others, which it would for 100 ms
    "table.exec.mini-batch.enabled": "false",
}

NOTE = (
    "a job of Flink: bytes of a unit are an equal share of the savepoint, all of which is written and read; the "
    "verdict is about results and the last count of each key, not about owners nor Flink's own final state"
)


class FlinkCount(KeyCount):
    """``keycount`` as Flink has it. Its final state is not read: the last count of each key says what it must be."""

    name: ClassVar[str] = "keycount"

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``."""
        counts = KeyCounts(events["key"])
        results = results[results["position"] >= 0]
        yield from wrong_results(counts, results)
        last = results.groupby("key")["count"].max()
        keys = np.union1d(last.index, counts.keys)
        for key, found, expected in zip(keys, last.reindex(keys, fill_value=0), counts.of(keys), strict=True):
            if found != expected:
                yield f"final count of key {key}: {found}; expected {expected}"


def tables(kafka: str, events: str, results: str) -> tuple[str, str]:
    """The statements that name the topics of a run as tables."""
    common = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{kafka}', 'format' = 'json'"
    return (
        "CREATE TABLE events (`key` BIGINT, t BIGINT, router INT METADATA FROM 'partition' VIRTUAL, "
        "`offset` BIGINT METADATA VIRTUAL, came AS PROCTIME()) "
        f"WITH ({common}, 'topic' = '{events}', 'scan.startup.mode' = 'earliest-offset')",
        "CREATE TABLE results (`key` BIGINT, t BIGINT, router INT, `offset` BIGINT, `position` INT, version BIGINT, "
        f"`count` BIGINT, stamp BIGINT) WITH ({common}, 'topic' = '{results}', 'properties.linger.ms' = '0', "
        "'sink.delivery-guarantee' = 'at-least-once')",
    )


def query(state_bytes: int, version: int) -> str:
    """The job. ``version``: a number that every result has, one more for each start."""
    payload = f"RPAD(LPAD(CAST(t AS STRING), 16, '0'), {state_bytes}, CAST(`key` AS STRING))"
    whole = f"RPAD('{'0' * 16}', {state_bytes}, CAST(`key` AS STRING))"
    origin = ", ".join(f"IF(t > 0, {value}, -1)" for value in ("router", "`offset`", "0"))
    return (
        f"INSERT INTO results SELECT `key`, t, {origin}, CAST({version} AS BIGINT), counted, "
        f"IF(payload = {whole}, counted - 1, -1) FROM ("
        "SELECT `key`, t, router, `offset`, CAST(SUM(IF(t > 0, 1, 0)) OVER w AS BIGINT) AS counted, "
        f"FIRST_VALUE({payload}) OVER w AS payload FROM events "
        "WINDOW w AS (PARTITION BY `key` ORDER BY came ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"
    )


class FlinkJob:
    """See ``system.SystemUnderTest``. A key group of Flink stands for a unit: there are as many, and slots own the same
    ranges of them; which keys are in one differs.
    """

    def __init__(self, spec: RunSpec, client: FlinkClient, events: Topic, results: Topic) -> None:
        assert isinstance(spec.workload, FlinkCount)
        self._spec, self._workload, self._client = spec, spec.workload, client
        self._events, self._results = events, results
        [self._stage] = (stage.name for stage in spec.workload.stages)
        self._requests: list[ScaleTo] = []
        self._assignments: list[Assignment] = []
        self._records: list[StepRecord] = []
        self._job, self._savepoint_bytes, self._looked_us = "", 0, 0
        self.notes: list[str] = []

    def start(self) -> None:
        """Start the job and wait until the state of every key is there."""
        keys = self._workload.keys
        self._client.open_session()
        for statement in tables(self._events.kafka, self._events.name, self._results.name):
            self._client.execute(statement)
        self._submit(self._spec.slots_of[self._stage], {})
        lines.fill(self._events, keys)

        def came() -> int:
            self._client.require_alive(self._job)
            return self._results.length()

        if not wait_until(lambda: came() >= keys, FILL_S, 0.2, came):
            raise ServiceUnavailable(f"Flink's job has taken {came()} of {keys} keys, and no more in {FILL_S:g} s")

    def _submit(self, slots: int, more: Mapping[str, str]) -> None:
        groups, version = self._workload.key_groups, len(self._assignments) + 1
        settings = {"parallelism.default": str(slots), "pipeline.max-parallelism": str(groups)}
        statement = query(self._workload.state_bytes, version)
        self._job = self._client.execute(statement, **SETTINGS, **settings, **more)
        self._client.await_running(self._job, RUN_S)
        self._assignments.append(Assignment.contiguous(groups, slots, version))

    def check(self) -> None:
        """Make the restart that was requested, and see that the job is alive."""
        if self._requests:
            self._restart(self._requests[0].slots)
            self._requests.pop(0)
        if now_us() - self._looked_us > LOOK_S * SECOND_US:
            self._client.require_alive(self._job)
            self._looked_us = now_us()

    def _restart(self, slots: int) -> None:
        begun_us, before = now_us(), self._assignments[-1]
        savepoint, stopped = self._client.stop(self._job)
        self._savepoint_bytes = self._client.size(savepoint)
        self._submit(slots, {"execution.state-recovery.path": savepoint})
        self._records.append(
            restarted(before, self._assignments[-1], self._unit_bytes, begun_us, round(stopped * SECOND_US), now_us())
        )

    @property
    def _unit_bytes(self) -> int:
        return self._savepoint_bytes // self._workload.key_groups

    def recover(self) -> str:
        """A Flink job that has died stays dead: there is nothing to compare any more."""
        raise ServiceUnavailable("Flink's job has died, and is not started anew")

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Nothing can be done ahead."""

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Have the next ``check`` restart the job. Raises BadInput for what is no number of slots."""
        if not isinstance(change, ScaleTo):
            raise BadInput(f"trigger: Flink gives its slots ranges of groups, so only scale is possible, not {change}")
        self._requests.append(change)

    def cancel(self) -> None:
        """Forget the requests that have not begun."""
        self._requests.clear()

    def measure(self) -> dict[str, dict[int, Measured]]:
        """Nothing: Flink's slots are not asked."""
        return {self._stage: {}}

    @property
    def owners(self) -> dict[str, Collection[int]]:
        """The slots that own state, by the parallelism."""
        return {self._stage: set(self._assignments[-1].owner)}

    @property
    def busy(self) -> bool:
        """Whether a restart is to come or under way."""
        return bool(self._requests)

    def hit(self, fault: Fault) -> None:
        """Raises BadInput."""
        raise BadInput(f"fault = {fault}: Flink's processes are not hit")

    def note(self, line: str) -> None:
        """Keep a line for the notes of the run."""
        self.notes.append(line)

    def stop(self) -> None:
        """End the job with a last savepoint: its size is that of the state."""
        savepoint, _ = self._client.stop(self._job)
        self._savepoint_bytes, self._job = self._client.size(savepoint), ""

    def close(self) -> None:
        """End the job, if it runs."""
        if self._job:
            self._client.cancel(self._job)

    def final_state(self) -> FinalState:
        """Describe the end of the job, without the state itself.

        Who owned what is Flink's affair: for the verdict one slot answers for all.
        """
        groups = self._workload.key_groups
        ownership = Ownership([Assignment.contiguous(groups, 1, each.version) for each in self._assignments])
        return FinalState(
            offsets=dict.fromkeys(range(self._events.partitions), ALL),  # nothing is left out, if it is overloaded
            parts=lambda timers: iter(()),
            stages=[
                StageEnd(
                    self._stage,
                    ownership,
                    begins=[each.version for each in self._assignments],
                    unit_bytes=dict.fromkeys(range(groups), self._unit_bytes),
                    records=self._records,
                )
            ],
            revoked=(),
            notes=[*self.notes, NOTE],
        )


def restarted(
    before: Assignment, after: Assignment, unit_bytes: int, begun_us: int, stopped_us: int, running_us: int
) -> StepRecord:
    """A restart as one step, in which every unit leaves its slot and arrives at one, as ``stop_restart`` records it."""
    came: dict[int, tuple[UnitCame, ...]] = {
        slot: tuple(UnitCame(unit, running_us, running_us) for unit in after.units_of(slot))
        for slot in set(after.owner)
    }
    sizes = dict.fromkeys(range(len(before.owner)), unit_bytes)
    return restart_record(before, after, sizes, came, begun_us, stopped_us, stopped_us)
