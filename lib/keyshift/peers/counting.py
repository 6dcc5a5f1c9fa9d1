"""A job of another engine that counts keys as ``keycount`` does, as a system under test: to scale, it stops and starts
again. What such jobs have in common, whatever the engine.

Each keeps a row per key: the count, and the text that the key's first event left, ``state_bytes`` long. That event has
``t`` 0 and comes before the load (``traffic.lines.fill``), so every key has its state from the beginning, with count 0,
as in ``keycount``. A result says that the text is whole by ``stamp`` = count - 1. If the state of a key were lost, a
later event would leave another text, and the stamp would be -1.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pandas as pd

from keyshift.clock import now_us
from keyshift.experiment.scenario import Change, ScaleTo
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.lab.judge.final_state import FinalState, StageEnd
from keyshift.lab.system import SystemUnderTest
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.model.notes import NoteKind
from keyshift.model.records import StepRecord, all_came, restart_record
from keyshift.results.verdict import Ownership
from keyshift.traffic import lines
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from keyshift.workloads.keycount import KeyCount, KeyCounts, wrong_results
from keyshift.workloads.times import Times

FILL_S = 60.0  # without a result of a key that was filled in
LOOK_S = 1.0  # between two looks whether the job is alive
ONLY: dict[str, Any] = {  # of what a run may be; names in this order, as those behind may be unknown without
    "workload": "keycount",
    "backend": "memory",
    "replicas": 1,
    "slots_per_process": 1,
    "exist": "from the start",
    "trigger": "scale",
    "then": "",
    "fault": "",
    "verify": "end",
    "snapshot_s": 0.0,
    "work_us": 0.0,
}


def counting_spec(common: Mapping[str, Any], engine: str, snapshots: bool = False, rescales: bool = True) -> RunSpec:
    """The spec of a run with a job that counts keys in ``engine``; ``snapshots``: it may take some, every
    ``snapshot_s``; ``rescales``: it can go on with other slots, else it is never asked to. Raises BadInput for what
    that job does not do.
    """
    given = {**common, "strategy": "stop_restart"}
    spec = make_spec(given)
    only = {name: value for name, value in ONLY.items() if not (snapshots and name == "snapshot_s")}
    require_only(spec, only, f"a job of {engine}", engine)
    return spec if rescales else make_spec({**given, "trigger": "none"})


def require_only(spec: RunSpec, only: Mapping[str, Any], job: str, beside: str = "") -> None:
    """Raise BadInput for what ``job`` (``beside``: in fewer words) is not compared with: a load that is left to the
    machine, and other values than ``only`` has.
    """
    for name in spec.unsettled:
        raise BadInput(
            f"{name} = auto: it is chosen by what a load costs keyshift's job; give a number beside {beside or job}"
        )
    found = spec.parameters()
    for name, value in only.items():
        if found[name] != value:
            raise BadInput(f"{name} = {found[name]!r}: {job} is compared with {name} = {value!r} only")


def require_other_slots(spec: RunSpec, name: str) -> None:
    """Raise BadInput if ``name``, the point of an engine, is to go on with the number of slots that it has."""
    if [*spec.slots_of.values()] == [spec.scenario.to_slots]:
        raise BadInput(f"to_slots = {spec.scenario.to_slots}: {name} needs another number than it has before")


class CountedByResults(KeyCount):
    """``keycount`` of which the final state is not read: the last count of each key says what it must be."""

    name: ClassVar[str] = "keycount"
    apart: ClassVar[bool] = True

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """Mistakes in results and last counts; see ``Workload.wrong``."""
        counts = KeyCounts(events["key"])
        yield from wrong_results(counts, results)
        yield from wrong_counts("final count", counts, results.groupby("key")["count"].max())


def wrong_counts(what: str, counts: KeyCounts, last: "pd.Series[int]") -> Iterator[str]:
    """A line for each key of which ``last`` (by key) is not the number of its events."""
    keys = np.union1d(last.index, counts.keys)
    for key, found, expected in zip(keys, last.reindex(keys, fill_value=0), counts.of(keys), strict=True):
        if found != expected:
            yield f"{what} of key {key}: {found}; expected {expected}"


class Stopped(NamedTuple):
    """How a job of a peer has stopped: when, in microseconds since the epoch, the ``state_bytes`` that moved or are
    left, 0 if nobody knows, and a ``note`` for readers, if there is something to say.
    """

    at_us: int
    state_bytes: int
    note: str = ""


class CountingQuery(Protocol):
    """The query of an engine. ``name``: of the engine, in sentences; ``told``: a note for readers, what bytes and
    verdict are about; ``repeats``: whether it gives some results once more after it was rescaled; ``reads``: whether
    ``final_parts`` are the state that it has left.

    What has a body is what an engine does of which nothing else is known.
    """

    name: str
    told: str
    repeats: bool = False
    reads: bool = False

    def open(self) -> None:
        """Do all that comes before the first beginning."""
        return

    def begin(self, slots: int, version: int) -> None:
        """Start it with so many tasks, from the state that ``halt`` left if ``version`` is above 1, and wait until they
        run. Each result has ``version``.
        """

    def halt(self, finally_: bool = False) -> Stopped:
        """Stop it, with its state written down; ``finally_``: all events were offered, and are in the state."""

    def rescale(self, slots: int, version: int) -> Stopped:
        """Have it go on with so many tasks, and wait until they run: stop it, and begin it again, as is possible with
        any. Says how it stood still before.
        """
        stopped = self.halt()
        self.begin(slots, version)
        return stopped

    def require_alive(self) -> None:
        """Raise ServiceUnavailable if it has ended by itself."""

    def final_parts(self) -> Iterator[pd.DataFrame]:
        """The state that the last ``halt`` left, as far as it can be read."""
        return iter(())

    def close(self) -> None:
        """End it, if it runs."""


class CountingJob(SystemUnderTest):
    """A job of another engine that counts keys. A key group of ours stands for a unit of the engine: there are as many,
    and slots own the same ranges of them; which keys are in one differs.
    """

    def __init__(self, spec: RunSpec, query: CountingQuery, events: Topic, results: Topic) -> None:
        assert isinstance(spec.workload, KeyCount)
        self._query, self._events, self._results = query, events, results
        self._keys, self._groups = spec.workload.keys, spec.workload.key_groups
        [(self._stage, self._slots)] = spec.slots_of.items()
        self._requests: list[ScaleTo] = []
        self._assignments: list[Assignment] = []
        self._records: list[StepRecord] = []
        self._state_bytes, self._stopped_us = 0, 0  # stopped: for the last restart
        self._looked_at = -math.inf  # by the monotonic clock
        self.notes: list[str] = []

    def start(self) -> None:
        """Start the job and wait until the state of every key is there."""
        self._query.open()
        self._query.begin(self._slots, self._own(self._slots))
        lines.fill(self._events, self._keys)

        def came() -> int:
            self._query.require_alive()
            return self._results.length()

        if not wait_until(lambda: came() >= self._keys, FILL_S, 0.2, came):
            raise ServiceUnavailable(
                f"{self._query.name}'s job has taken {came()} of {self._keys} keys, and no more in {FILL_S:g} s"
            )

    def _own(self, slots: int) -> int:
        version = len(self._assignments) + 1
        self._assignments.append(Assignment.contiguous(self._groups, slots, version))
        return version

    def check(self) -> None:
        """Make the restart that was requested, and see that the job is alive."""
        if self._requests:
            self._restart(self._requests[0].slots)
            self._requests.pop(0)
        if (now := time.monotonic()) - self._looked_at > LOOK_S:
            self._query.require_alive()
            self._looked_at = now

    def _restart(self, slots: int) -> None:
        begun_us, before = now_us(), self._assignments[-1]
        stopped = self._query.rescale(slots, self._own(slots))
        self._state_bytes, self._stopped_us = stopped.state_bytes, stopped.at_us
        if stopped.note:
            self.note(stopped.note)
        self._records.append(
            restarted(before, self._assignments[-1], self._unit_bytes, begun_us, stopped.at_us, now_us())
        )

    @property
    def _unit_bytes(self) -> int:
        return self._state_bytes // self._groups

    def recover(self) -> str:
        """Refuse: a job that has died stays dead, as there is nothing to compare any more."""
        raise ServiceUnavailable(f"{self._query.name}'s job has died, and is not started anew")

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Have the next ``check`` restart the job. Raises BadInput for all but a number of slots."""
        if not isinstance(change, ScaleTo):
            raise BadInput(
                f"trigger: {self._query.name} chooses the keys of a slot, so only scale is possible, not {change}"
            )
        self._requests.append(change)

    def cancel(self) -> None:
        """Forget the requests that have not begun."""
        self._requests.clear()

    @property
    def owners(self) -> dict[str, Collection[int]]:
        """The slots that own state, by the parallelism."""
        return {self._stage: set(self._assignments[-1].owner)}

    @property
    def migrating(self) -> bool:
        """Whether a restart is to come or under way."""
        return bool(self._requests)

    def note(self, line: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Keep a line for the notes of the run, of whatever kind."""
        self.notes.append(line)

    def stop(self) -> None:
        """End the job; the size of what it leaves is that of the state."""
        self._state_bytes = self._query.halt(finally_=True).state_bytes

    def close(self) -> None:
        """End it, if it runs."""
        self._query.close()

    def final_state(self) -> FinalState:
        """Describe the end of the job. Who owned what is the affair of the engine: one slot answers for all."""
        versions = [each.version for each in self._assignments]
        owners: Sequence[Assignment] = [Assignment.contiguous(self._groups, 1, version) for version in versions]
        end = StageEnd(
            self._stage,
            Ownership(owners),
            begins=versions,
            unit_bytes=dict.fromkeys(range(self._groups), self._unit_bytes),
            records=self._records,
        )
        return FinalState(
            offsets={},
            parts=lambda timers, units: self._query.final_parts(),
            stages=[end],
            revoked=(),
            notes=[*self.notes, self._query.told],
            repeats=[record.published_us for record in self._records] if self._query.repeats else (),
            told_of=self._told_of,
        )

    def _told_of(self, events: pd.DataFrame) -> list[str]:
        """Give a note on how much of the state a verdict on results alone knows behind the last restart."""
        if not self._records or self._query.reads:
            return []
        later = events.loc[events["t"] >= self._stopped_us, "key"].nunique()
        return [
            f"of {self._keys} keys {later} had an event behind the restart; whether the state of the others is still "
            "there, no result tells"
        ]


def restarted(
    before: Assignment, after: Assignment, unit_bytes: int, begun_us: int, stopped_us: int, running_us: int
) -> StepRecord:
    """A restart as one step, in which every unit leaves its slot and arrives at one, as ``stop_restart`` records it."""
    sizes = dict.fromkeys(range(len(before.owner)), unit_bytes)
    record = restart_record(before, after, sizes, begun_us, stopped_us, stopped_us)
    record.complete_restart(all_came(after, running_us))
    return record
