"""Workloads: the computation, its input, and the results it must give. One module each, one line here.

A workload is a pydantic model of its parameters, which users set by name. It can make an operator (runs on slots) and a
source (runs in the generator process), and judge results. The operator's code is the same under every strategy; the
oracle does not use it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic.fields import FieldInfo

from keyshift.registry import Registry
from keyshift.state import UnitState
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.times import Times
from keyshift.workloads.windows import WindowCount


class Operator(Protocol):
    """The computation of a keyed stage. It sees whole frames and keeps all its state in ``UnitState``.

    A frame's watermark holds for what comes *behind* the frame: no later event of its router has an earlier ``t``. The
    watermark of a slot is the least of its routers'; a record meets the one of all that came before it, at its place in
    the queue if it had to wait. A unit's own (``state.timers.watermark``) only grows, and is the one that counts: it
    may be further than its new slot's. Before each frame all units in it have come to the times that the frame meets
    (``state.timers.reach``), and the caller has called ``advance`` for those of them that have timers due by then.
    """

    state_schema: pa.Schema  # fields of one key's value, without the key
    uses_time: bool  # whether watermark, clock or timers matter: then records of a unit may not overtake each other

    def initial(self, unit: int, state: UnitState) -> None:
        """Fill the state that ``unit`` has before the first event (nothing, for most)."""

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """Results of ``events``, in the order of the events.

        ``events`` has the workload's event columns and ``position`` (int32, row in the source frame), ``unit``
        (int32). The result has ``key``, ``t``, ``position`` and the workload's ``result_fields``.
        """

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """These units have come to new times, ``timers.watermark`` and ``timers.clock``: results of their timers.

        Of all that are due by then, unit by unit; None if there are none. Repeating a call does nothing more.
        Columns as from ``process``, with ``position`` -1: the caller gives them router -1, offset -1 and the version
        under which the slot owns the units.
        """


class Source(Protocol):
    """What one router's partition of the input is made of; deterministic in the seed."""

    def take(self, times: np.ndarray) -> pa.RecordBatch:
        """The next ``len(times)`` events, scheduled at ``times`` (int64, microseconds since the epoch)."""


class Workload(Protocol):
    """One workload with its parameters; see ``keycount`` for an example."""

    name: ClassVar[str]
    summary: ClassVar[str]
    key_groups: int  # with bins: which unit a key belongs to
    bins: int  # the strategy's, no parameter
    skew: float  # Zipf exponent over key groups, by which a load can be balanced before it is there
    seed: int  # of all that is drawn
    event_schema: ClassVar[pa.Schema]  # begins with frames.EVENT_FIELDS
    result_fields: ClassVar[tuple[pa.Field, ...]]  # what the operator adds to frames.RESULT_FIELDS

    def model_dump(self) -> dict[str, Any]:
        """The parameters, and ``bins``: with them the workload is made anew in another process."""

    def operator(self) -> Operator:
        """A new operator, for one slot."""

    def source(self, router: int) -> Source:
        """The input of one router."""

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """One line for each result or final state that a sequential run of the same input would not give.

        ``events``: columns router, offset, position and the event columns, every event offered. ``results``: the
        columns of results and ``slot``, those of events without duplicates, those of timers (router, offset and
        position -1) as they came. ``final``: parts of the final state, columns unit, slot, key and the state fields;
        its timers, and what is known of watermarks, are in ``times``, which is there if the operator uses time. Lost,
        duplicated and reordered results of events are counted elsewhere, and timers that are overdue in the final
        state; results of timers are judged here alone.
        """


workloads: Registry[type[Workload]] = Registry("workload")
workloads.register(KeyCount.name, KeyCount)
workloads.register(WindowCount.name, WindowCount)


def parameters(workload: type[Workload]) -> dict[str, FieldInfo]:
    """What a user sets of a workload, by name: its fields, but not ``bins``."""
    fields: dict[str, FieldInfo] = workload.model_fields  # type: ignore[attr-defined]  # of pydantic
    return {name: field for name, field in fields.items() if name != "bins"}
