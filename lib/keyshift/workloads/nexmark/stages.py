"""Stages of ``nexmark`` made of rules: entries first, and behind them what does not depend on time."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.contract import ORIGIN, KeyedStage
from keyshift.workloads.nexmark.inputs import ints
from keyshift.workloads.nexmark.operators import KIND, ROW, EntriesOperator, Fold, FoldOperator, Rule


def entries_stage(
    name: str, events: pa.Schema, rule: Rule, map_: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> KeyedStage:
    """The first stage of a query: its rule about the ``events`` that ``map_`` makes."""
    return KeyedStage(name, events, (KIND, *rule.row_fields), partial(EntriesOperator, rule, events), map_)


def folded(name: str, by: str, fields: tuple[str, ...], fold: Fold) -> KeyedStage:
    """Behind a stage keyed by auction: rows with these ``fields``, keyed by the field ``by`` of the row."""
    events = pa.schema([*EVENT_FIELDS, KIND, *ints("auction", *fields)])

    def map_(results: pa.RecordBatch) -> pa.RecordBatch:
        key = pc.if_else(pc.equal(results["kind"], ROW), results[by], results["key"])
        names = ("t", "kind", "key", *fields, *(field.name for field in ORIGIN))
        whole = pa.schema([*events, *ORIGIN])
        return pa.RecordBatch.from_arrays([key, *(results[name] for name in names)], schema=whole)

    return KeyedStage(name, events, (KIND, *fold.row_fields), partial(FoldOperator, fold, events), map_)
