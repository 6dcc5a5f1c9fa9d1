"""What a workload consists of: sources, keyed stages, and an oracle. ``keyshift.checks.check_workload`` tries one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import ARRIVAL_FIELDS, RESULT_FIELDS, empty
from keyshift.model.keys import SomeUnits, UnitId
from keyshift.state import UnitState
from keyshift.workloads.times import Times

# Which event of the input something is the result of: its router, the offset of its frame, its position there.
ORIGIN = (pa.field("router", pa.int32()), pa.field("offset", pa.int64()), pa.field("position", pa.int32()))
ORIGIN_NAMES = [field.name for field in ORIGIN]
_OF_RESULTS = {field.name for field in (*RESULT_FIELDS, *ARRIVAL_FIELDS)}
_OF_STATE = {"stage", "unit", "slot", "key"}  # columns of a final state beside those of the operator


class Operator(Protocol):
    """The computation of a keyed stage. It sees whole frames and keeps all its state in ``UnitState``.

    A frame's watermark holds for what comes *behind* the frame: no later event of its router has an earlier ``t``. The
    watermark of a slot is the least of its routers'; a record meets the one of all that came before it, at its place in
    the queue if it had to wait. A unit's own (``state.timers.watermark``) only grows, and is the one that counts: it
    may be further than its new slot's. Before each frame all units in it have come to the times that the frame meets
    (``state.timers.reach``), and the caller has called ``advance`` for those of them that have timers due by then.
    """

    state_schema: pa.Schema  # fields of one key's value, without the key
    # Whether watermark, clock or timers matter: then records of a unit may not overtake each other.
    uses_time: bool = False

    def initial(self, unit: int, state: UnitState) -> None:
        """Fill the state that ``unit`` has before the first event. By default there is none."""
        return

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """Results of those of ``events`` that are due (``KeyedStage.due``), one each, in the order of the events.

        ``events`` has the stage's columns and ``position`` (int32, row in the frame after ``map``), ``unit`` (int32).
        The result has ``key``, ``t``, ``position`` and the stage's ``result_fields``.
        """

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """Give results of these units' timers: they have come to new times, ``timers.watermark`` and ``timers.clock``.

        Of all that are due by then, unit by unit; None if there are none. Repeating a call does nothing more.
        Columns as from ``process``, with ``position`` -1: the caller gives them router -1, offset -1 and the version
        under which the slot owns the units. By default nothing waits for a time.
        """
        return None


class Partition(Protocol):
    """What one router's partition of a source is made of; deterministic in the seed."""

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, scheduled at ``times`` (int64, microseconds since the load began)."""


@dataclass(frozen=True)
class Source:
    """A source: the columns of its events, and its partitions by number. A router reads each of them.

    ``require``: raises BadInput if what the events are made of, such as a file, cannot be read. It is called before
    anything is started.

    ``map``: the events of the first stage from those of a frame, in their order; runs in the routers. It may parse,
    choose the key (``frames.keys_of`` takes what casts to text: no lists or structs), make several events of one, or
    none, and keeps ``t``. It must give the same whenever it is called: the verdict calls it, too. None: the events are
    those of the stage.

    ``drifts``: later events are not like earlier ones, so each run needs a job of its own. ``later_skew``: of these
    later ones what ``Workload.skew`` is of all others.

    ``rate``: events per second if nobody says how many; None: as many as the first source.

    ``times``: columns beside ``t`` that are points in time, too (int64, microseconds since the load began, and since
    the epoch once they are offered); ``drawn_with``: parameters that the events depend on, None: all. With both, events
    of a file are offered at other times, to a run that has the same of these parameters (``event_files``).
    """

    name: str
    schema: pa.Schema
    partition: Callable[[int], Partition]
    require: Callable[[], object] = lambda: None
    map: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    rate: float | None = None
    times: tuple[str, ...] = ()
    drawn_with: tuple[str, ...] | None = None
    drifts: bool = False
    later_skew: float = 0.0

    def mapped(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The first stage's events from those of a frame."""
        return events if self.map is None else self.map(events)

    def moved(self, events: pa.RecordBatch, by: Any) -> pa.RecordBatch:
        """``events`` with all that are points in time later ``by`` so many microseconds, each by its own or by one."""
        names = self.schema.names
        columns = [pc.add(events[name], by) if name in ("t", *self.times) else events[name] for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class KeyedStage:
    """A keyed stage: the columns of the events that its slots get, what its operator adds to the results, and who
    computes.

    ``due``: which of its events must have a result, and exactly one; the others must have none. It looks at each event
    by itself. None: every event.

    The first stage's events are what the sources' ``map`` gives, and it has none of its own. Behind it events are
    results of the stage before. Then ``map`` gets these, runs in the slots of the stage before, and gives the stage's
    events and ``ORIGIN``: which event of the input each comes of (-1, -1, -1: a timer). It gives one for each result of
    an event, as many as it likes for one of a timer. None: the events are those columns of the results. And ``due`` is
    None, or there is no event that must have a result.
    """

    name: str
    events: pa.Schema  # begins with frames.EVENT_FIELDS
    result_fields: tuple[pa.Field, ...]  # beside frames.RESULT_FIELDS and ARRIVAL_FIELDS
    operator: Callable[[], Operator]  # a new one, for one slot
    map: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    due: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]] | None = None

    def from_results(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """The stage's events, and their ``ORIGIN``, from results of the stage before."""
        columns = [*self.events.names, *ORIGIN_NAMES]
        return (results if self.map is None else self.map(results)).select(columns)

    @cached_property
    def nothing(self) -> pa.RecordBatch:
        """No event, with the columns of ``from_results``."""
        return empty(pa.schema([*self.events, *ORIGIN]))

    def from_all(self, results: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """As ``from_results``, of several batches together; of none there are no events."""
        return self.from_results(pa.concat_batches(results)) if results else self.nothing


def uses_time(stages: Sequence[KeyedStage]) -> bool:
    """Whether watermark, clock or timers matter to any of them."""
    return any(stage.operator().uses_time for stage in stages)


def due(stages: Sequence[KeyedStage], events: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Find which of the first stage's ``events`` must have a result of the last one."""
    first, *others = stages
    if any(stage.due is not None for stage in others):
        return np.zeros(events.num_rows, np.bool_)
    return np.ones(events.num_rows, np.bool_) if first.due is None else first.due(events)


def results_due(source: Source, stages: Sequence[KeyedStage], events: pa.RecordBatch) -> int:
    """Count the results of the last stage that these events of ``source`` must have."""
    return int(due(stages, source.mapped(events)).sum())


class Workload(Protocol):
    """One workload with its parameters; see ``keycount`` for an example.

    One whose parameters let an event occupy its slot (``operators.Work``) has two attributes more. ``told_us``: for how
    many microseconds, in all stages together. ``work_by``: "waiting" if that takes no core. What an event costs, for
    ``rate=auto``, is then measured with ``work_us`` = 0, and with an empty ``stage_work_us``, and ``told_us`` is added.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    key_groups: int  # with bins: which unit a key belongs to
    bins: int  # the strategy's, no parameter
    seed: int  # of all that is drawn

    @property
    def skew(self) -> float:
        """Zipf exponent over key groups, by which a load can be balanced before it is there; 0: none is known."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """What goes in. The first one is that whose rate is the rate of a run."""

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """What is computed, in the order of the events' way. Names are words of letters, digits and hyphens."""

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """The parameters, and ``bins``: with them the workload is made anew in another process of this machine. With
        ``mode`` json as others may see them, without this machine's folders.
        """

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """One line for each result or final state that a sequential run of the same input would not give.

        ``events``: columns router, offset, position and the event columns, every event offered. ``results``: the
        columns of results and ``slot``, those of events without duplicates, those of timers (router, offset and
        position -1) as they came; of the last stage. ``final``: parts of the final state, columns stage (its place in
        the chain, from 0), unit, slot, key and the state fields; timers of the first stage, and what is known of
        watermarks, are in ``times``, which is there if an operator uses time. Lost, duplicated and reordered results of
        events are counted elsewhere, and timers that are overdue in the final state, and all results without an event
        where no operator uses time; otherwise results of timers are judged here alone.
        """

    def only(self, units: SomeUnits) -> "Workload | None":
        """The same workload, whose ``wrong`` is about keys of these ``units`` alone; None if the verdict on a unit
        needs others. A run of very many events is judged some units at a time where that can be.
        """


def taken_names(stage: KeyedStage) -> Iterator[str]:
    """A line each if results, or the state, have fields that are called as a column beside them: one would be lost."""
    if both := sorted(_OF_RESULTS.intersection(field.name for field in stage.result_fields)):
        yield f"stage {stage.name}: every result has {both} already; choose other names"
    if both := sorted(_OF_STATE.intersection(stage.operator().state_schema.names)):
        yield f"stage {stage.name}: every key of a final state has {both} already; choose other names"


def untold(parameters: Mapping[str, Any]) -> Iterator[str]:
    """A line for each of ``parameters`` whose value has no place in results, which have one number or text of each."""
    for name, value in parameters.items():
        if value is not None and not isinstance(value, int | float | str):
            yield (
                f"{name} = {value!r:.80}: results tell a number, a text or a truth value of each parameter; make it a "
                "text, or several parameters"
            )
