"""What every workload promises: sources that repeat themselves, operators whose state can move, an oracle that sees."""

import random
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from keyshift.lab.judge.sequential import SequentialRun, run_sequentially
from keyshift.model.errors import BadInput, require
from keyshift.model.frames import EVENT_FIELDS, RESULT_FIELDS
from keyshift.model.keys import Assignment, units_of
from keyshift.model.messages import decode, encode
from keyshift.parcel import packed
from keyshift.refusals import refusal
from keyshift.results.verdict import Judgement, judge
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.config import result_schema
from keyshift.workloads import ORIGIN, KeyedStage, Source, Workload, taken_names, untold, uses_time
from keyshift.workloads.alone import StageAlone
from keyshift.workloads.times import Times

_LATER_US = 7_000_003
_FRAME = ("router", "offset")  # which frame of the input an event comes of


def check_workload(workload: Workload, frames: int = 12, examples: int = 10, seed: int = 1) -> None:
    """Try ``workload`` with its parameters in sequential runs of ``frames`` frames, 10 ms each, whose state moves.

    It wants small parameters: every key group should get some events in a tenth of a second, and some timers should
    fire if it has any. Raises ContractBroken; BadInput if its class cannot be sent to the processes of a job, or for
    too few frames.
    """
    assignments = _assignments(workload)
    if frames <= len(assignments):  # one of the runs has a frame less
        raise BadInput(f"frames = {frames}: must be at least {len(assignments) + 1}, so that the state moves twice")
    packed(type(workload), type(workload).__module__, type(workload).__name__)
    name, summary = workload.name, workload.summary
    require(bool(summary.strip()) and "\n" not in summary, f"summary {summary!r}: must be one line")
    skew = getattr(workload, "skew", None)
    require(isinstance(skew, Real), f"{name} has skew {skew!r}: must be a number; 0 if none of its keys is known")
    judged_apart = callable(getattr(workload, "only", None))
    require(judged_apart, f"{name} has no only(units): it may give None, if the verdict on a unit needs others")
    _check_parameters(workload)
    require(len(workload.sources) > 0, f"{name} has no source")
    require(len(workload.stages) > 0, f"{name} has no keyed stage")
    names = [source.name for source in workload.sources] + [stage.name for stage in workload.stages]
    require(len(set(names)) == len(names), f"{names}: two sources or stages have the same name")
    for part in names:
        good = re.fullmatch(r"[a-z][a-z0-9-]*", part) is not None
        require(good, f"name {part!r}: must be of lower-case letters, digits and hyphens")
    for source in workload.sources:
        _check_source(source)
        _check_time_columns(source)
        known = type(workload).model_fields  # type: ignore[attr-defined]  # of pydantic
        strange = set(source.drawn_with or ()) - set(known)
        require(not strange, f"source {source.name} is drawn with {sorted(strange)}, which are no parameters")
        _check_stages(workload, source)
    rng = random.Random(seed)
    for _ in range(examples):
        check_moves(workload, draw_frames(workload, rng))
    run = run_sequentially(workload, assignments, frames=frames)
    _check_good(workload, run, run_sequentially(workload, assignments, frames=frames))
    for routers in (1, 3):
        found = _judged(workload, run_sequentially(workload, assignments, routers, frames))
        require(found.ok, f"a run of {routers} routers is judged bad: {found.examples}")
    _check_bad(workload, run, run_sequentially(workload, assignments, frames=frames - 1))


def _assignments(workload: Workload) -> list[Assignment]:
    """Assign all units to two, three and again two slots, or as many as there are units."""
    units = workload.key_groups * workload.bins
    return [Assignment.contiguous(units, min(slots, units), version) for version, slots in ((1, 2), (2, 3), (3, 2))]


def _check_parameters(workload: Workload) -> None:
    """Require that other processes can make it anew of what ``model_dump`` gives, as JSON; results tell the values."""
    given, what = workload.model_dump(), f"{workload.name} is not made anew of what its model_dump() gives"
    try:
        again = type(workload)(**decode(dict[str, Any], encode(given))).model_dump()
    except ValueError as error:
        why = refusal(error.errors(), type(workload)) if isinstance(error, ValidationError) else error
        require(False, f"{what}: {why}")
    for name in given:
        require(again[name] == given[name], f"{what}: {name} was {given[name]!r}, and is {again[name]!r}")
    unfit = list(untold(workload.model_dump(mode="json")))
    require(not unfit, "; ".join(unfit))


def _check_source(source: Source) -> None:
    times = np.arange(100, dtype=np.int64)
    whole = source.partition(1).take(times)
    require(whole.schema == source.schema, f"source {source.name} gives {whole.schema}, expected {source.schema}")
    again, parts = source.partition(1), []
    for begin, end in pairwise((0, 1, 1, 60, 100)):
        parts.append(again.take(times[begin:end]))
    same = pa.Table.from_batches(parts) == pa.Table.from_batches([whole])
    require(same, f"source {source.name} gives other events if they are taken in other parts")
    require(source.partition(0).take(times) != whole, f"source {source.name} gives two routers the same events")


def _check_time_columns(source: Source) -> None:
    """Require that columns that are points in time move with ``t``, and no others do."""
    times = np.arange(100, dtype=np.int64)
    before, after = (source.partition(1).take(times + moved) for moved in (0, _LATER_US))
    possible = {field.name for field in source.schema if field.type == pa.int64()} - {"t"}
    strange = set(source.times) - possible
    require(not strange, f"source {source.name}: times {sorted(strange)} must be columns beside t, of type int64")
    for field in source.schema:
        if field.name != "t" and field.type == pa.int64():
            by = set(pc.subtract(after[field.name], before[field.name]).drop_null().to_pylist())
            moves = f"column {field.name} of source {source.name} moves by {sorted(by)[:3]} if t does by {_LATER_US}"
            require(field.name in source.times or by != {_LATER_US}, f"{moves}: it belongs to its times")
            require(field.name not in source.times or by <= {_LATER_US}, f"{moves}, and it is one of its times")


def _check_stages(workload: Workload, source: Source) -> None:
    """Check each stage with what the one before gives of some events of ``source``."""
    first = workload.stages[0]
    require(first.map is None, f"stage {first.name} is the first one: its map belongs to the source")
    given = source.partition(0).take(np.arange(30, dtype=np.int64))
    for number, stage in enumerate(workload.stages):
        _check_columns(stage)
        make = stage.from_results if number else source.mapped
        events, again = make(given), make(given)
        expected = pa.schema([*stage.events, *(ORIGIN if number else ())])
        require(events.schema == expected, f"slots of stage {stage.name} get {events.schema}, expected {expected}")
        require(events == again, f"stage {stage.name} maps the same events to others")
        if number:
            of_events = [row for row in _origins(given) if row[-1] >= 0]
            kept = [row for row in _origins(events) if row[-1] >= 0]
            require(kept == of_events, f"stage {stage.name}: events come of {kept}, expected one each of {of_events}")
            due = np.zeros(0) if stage.due is None else stage.due(events.select(stage.events.names))
            require(not due.any(), f"stage {stage.name}: behind another stage all of its events are due, or none")
        given = _check_operator(workload, stage, events)


def _check_columns(stage: KeyedStage) -> None:
    """Check columns of a stage: they travel in rows, with columns of ours beside their own, without a dictionary."""
    begin = tuple(stage.events)[: len(EVENT_FIELDS)]
    require(begin == EVENT_FIELDS, f"stage {stage.name}: its events begin with {begin}, expected {EVENT_FIELDS}")
    of_ours = list(taken_names(stage))
    require(not of_ours, "; ".join(of_ours))
    taken = {*(field.name for field in ORIGIN), "unit"} & set(stage.events.names)
    require(not taken, f"stage {stage.name}: every event has {sorted(taken)} already")
    for what, fields in (("events", stage.events), ("state", stage.operator().state_schema)):
        coded = [field.name for field in fields if pa.types.is_dictionary(field.type)]
        require(not coded, f"stage {stage.name}: {coded} of its {what} are of a dictionary type, which does not travel")


def _origins(rows: pa.RecordBatch) -> list[tuple[int, ...]]:
    return list(zip(*(rows[field.name].to_pylist() for field in ORIGIN), strict=True))


def _check_operator(workload: Workload, stage: KeyedStage, given: pa.RecordBatch) -> pa.RecordBatch:
    """Check an operator, and give all its results of the events ``given``, with their origin."""
    alone = StageAlone(workload, stage)
    operator, states = alone.operator, alone.states
    for unit, state in enumerate(states):
        strange = [key for key in sorted(state.keys()) if _unit_of(workload, key) != unit]
        require(not strange, f"unit {unit} begins with keys {strange[:3]}, which are not of it")
    events = alone.placed(given)
    answer = alone.process(events)
    _check_results(stage, answer)
    positions, expected = answer["position"].to_numpy(), events["position"].to_numpy()
    due = np.ones(events.num_rows, bool) if stage.due is None else stage.due(events.select(stage.events.names))
    same = positions.tolist() == expected[due].tolist()
    require(same, f"results are of positions {positions.tolist()}, expected {expected[due].tolist()}")
    router, offset = (events[name].to_numpy() if name in events.schema.names else 0 * expected for name in _FRAME)
    results = [_of(stage, answer, router[due], offset[due])]
    require(operator.uses_time or not any(len(state.timers) for state in states), "there are timers, but no uses_time")
    for unit, state in enumerate(states):
        state.timers.reach(10**9, 10**9)
        fired = operator.advance([state])
        if fired is not None:
            _check_results(stage, fired)
            require(set(fired["position"].to_pylist()) == {-1}, "the result of a timer has a position other than -1")
            units = {_unit_of(workload, key) for key in fired["key"].to_pylist()}
            require(units == {unit}, f"timers of unit {unit} give results of keys of units {sorted(units)}")
            nowhere = np.full(fired.num_rows, -1)
            results.append(_of(stage, fired, nowhere, nowhere))
        require(operator.advance([state]) is None, f"timers of unit {unit} fire twice")
    return pa.concat_batches(results)


def _of(
    stage: KeyedStage, answer: pa.RecordBatch, router: npt.NDArray[Any], offset: npt.NDArray[Any]
) -> pa.RecordBatch:
    """Make what the next stage gets of an operator's ``answer``."""
    more = {"router": router, "offset": offset, "version": np.ones(len(router))}
    columns = [
        pa.array(more[f.name].astype(int), f.type) if f.name in more else answer[f.name] for f in result_schema(stage)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=result_schema(stage))


def _check_results(stage: KeyedStage, results: pa.RecordBatch) -> None:
    own = [field for field in RESULT_FIELDS if field.name in ("key", "t", "position")]
    expected = {field.name: field.type for field in (*own, *stage.result_fields)}
    found = {field.name: field.type for field in results.schema}
    require(found == expected, f"results have columns {found}, expected {expected}")


def _unit_of(workload: Workload, key: int) -> int:
    return int(units_of(np.array([key]), workload.key_groups, workload.bins)[0])


def _judged(workload: Workload, run: SequentialRun, **changes: Any) -> Judgement:
    """The verdict on a run, of which some tables may be others."""
    names = ("events", "results", "final", "ownership", "times")
    given = {name: getattr(run, name) for name in names}
    return judge(workload, **(given | changes))


def _check_good(workload: Workload, run: SequentialRun, again: SequentialRun) -> None:
    found = _judged(workload, run)
    require(found.ok, f"a run whose state moves twice is judged bad: {found.examples}")
    same = run.results.equals(again.results) and _whole(run).equals(_whole(again))
    require(same, "the same run gives other results or another state")


def _whole(run: SequentialRun) -> pd.DataFrame:
    return pd.concat(run.final) if run.final else pd.DataFrame()  # a workload may have no state at all


def _check_bad(workload: Workload, run: SequentialRun, shorter: SequentialRun) -> None:
    """Require that the verdict sees what went wrong in a run."""
    for what, kind, changes in _spoilt(workload, run, shorter):
        found = _judged(workload, run, **changes)
        require(getattr(found, kind) > 0, f"{what}, and the verdict does not call it {kind}")


def _spoilt(
    workload: Workload, run: SequentialRun, shorter: SequentialRun
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if run.final:
        yield "the state of a unit was lost", "wrong", {"final": run.final[1:]}
        yield "the state is that before the last frame", "wrong", {"final": shorter.final}
    for what, final in _with_two_exchanged(run.final):
        yield what, "wrong", {"final": final}
    for what, times in _with_other_timers(run):
        yield what, "wrong", {"times": times}
    of_timers = (run.results[["router", "offset", "position"]] == -1).all(axis=1)
    for field in workload.stages[-1].result_fields:
        for whose, rows in (("events", ~of_timers), ("timers", of_timers)):
            order = np.arange(len(rows))
            order[rows] = order[rows][::-1]
            exchanged = run.results.assign(**{field.name: _in_order(run.results[field.name], order)})
            if not exchanged.equals(run.results):
                what = f"the values of {field.name} were exchanged between results of {whose}"
                yield what, "wrong", {"results": exchanged}
    for row in run.results.index[~of_timers][:1]:
        extra = run.results.loc[[row]].assign(router=-1, offset=-1, position=-1, arrived_us=10**9, log_offset=10**6)
        changes = {"results": pd.concat([run.results, extra], ignore_index=True)}
        kind = "wrong" if uses_time(workload.stages) else "unexpected"
        yield "a result came once more without an event", kind, changes
    for row in run.results.index[of_timers][:1]:
        again = run.results.loc[[row]].assign(arrived_us=10**9, log_offset=10**6)
        yield "a timer fired twice", "wrong", {"results": pd.concat([run.results, again])}
        yield "the result of a timer is missing", "wrong", {"results": run.results.drop(index=row)}
        elsewhere = run.results.copy()
        elsewhere.loc[row, "slot"] += 1
        yield "a timer fired in a slot that was not the owner", "foreign", {"results": elsewhere}


def _with_two_exchanged(final: list[pd.DataFrame]) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """Final states, for each stage with two keys in a unit whose values differ, in which they have each other's: all of
    them, and those of each column alone. With what that is.
    """
    done: set[str] = set()
    for place, part in enumerate(final):
        columns = [str(name) for name in part if name not in ("key", "stage", "unit", "slot")]
        for names in (columns, *([name] for name in columns)):
            told = part[names].map(repr).to_numpy()
            others = np.flatnonzero((told != told[:1]).any(axis=1))
            if not len(others):
                continue
            state = "state" if names == columns else f"{names[0]} in their state"
            what = f"two keys of stage {part['stage'].iloc[0]} have each other's {state}"
            if what not in done:
                done.add(what)
                order = np.arange(len(part))
                order[[0, others[0]]] = others[0], 0
                changed = part.assign(**{name: _in_order(part[name], order) for name in names})
                yield what, [*final[:place], changed, *final[place + 1 :]]


def _with_other_timers(run: SequentialRun) -> Iterator[tuple[str, Times]]:
    """Times for each kind of timer in the final state: one is missing, or there is another one, which is not due."""
    for kind in (EVENT, PROCESSING):
        for place, part in enumerate(run.timers):
            if len(some := part[part["kind"] == kind][:1]):
                another = pd.concat([part, some.assign(time=some["time"] + 1)], ignore_index=True)
                for what, changed in (("is missing", part.drop(some.index)), ("is there that nobody has set", another)):
                    timers = [*run.timers[:place], changed, *run.timers[place + 1 :]]
                    yield f"a timer {what} in the final state", replace(run.times, timers=timers)
                break


def _in_order(column: "pd.Series[Any]", order: npt.NDArray[np.int64]) -> "pd.Series[Any]":
    return pd.Series(column.to_numpy()[order], column.index, column.dtype)


# One frame: its router (each source has two), events, microseconds since the one before, by how many the slot's
# watermark lags behind, the units that leave and come back before it, and those that do between their timers and their
# events.
TriedFrame = tuple[int, int, int, int, Collection[int], Collection[int]]


def answers(
    workload: Workload, frames: Iterable[TriedFrame], move: bool = False, together: bool = True
) -> tuple[Any, ...]:
    """Everything a slot of the first stage gives for ``frames``, the values it is left with, and the timers.

    ``move``: whether units leave and come back at all; ``together``: the timers of all units in one call, or those of
    each in its own. Neither may make a difference. Raises ContractBroken if timers fire twice.
    """
    stage, *_ = workload.stages
    alone = StageAlone(workload, stage)
    operator, states = alone.operator, alone.states
    partitions = [(source, source.partition(number)) for source in workload.sources for number in range(2)]
    given: list[dict[str, Any]] = []
    now_us = 1_000_000

    def hand_over(units: Collection[int]) -> None:
        for unit in units if move else ():
            there = MemoryState(operator.state_schema)
            there.install(states[unit].export(100))
            there.timers.install(states[unit].timers.export())
            states[unit] = there

    for router, count, passed_us, lag_us, before, between in frames:
        now_us += passed_us
        hand_over(before)
        for state in states:
            state.timers.reach(now_us - lag_us, now_us)
        for some in [states] if together else [[state] for state in states]:
            fired = operator.advance(some)
            given += [] if fired is None else fired.to_pylist()
        require(operator.advance(states) is None, "timers fire twice")
        hand_over(between)
        source, partition = partitions[router % len(partitions)]
        events = source.mapped(partition.take(np.full(count, now_us)))
        given += alone.process(alone.placed(events)).to_pylist()
    values = [{row["key"]: row for batch in state.export(1000) for row in batch.to_pylist()} for state in states]
    far = 2**62
    timers = [(s.timers.watermark, s.timers.due(EVENT, far), s.timers.due(PROCESSING, far)) for s in states]
    return given, values, timers


def draw_frames(workload: Workload, rng: random.Random) -> list[TriedFrame]:
    """Draw up to 15 frames, of all sources."""
    units, routers = range(workload.key_groups * workload.bins), 2 * len(workload.sources)

    def some() -> list[int]:
        return rng.sample(units, min(len(units), rng.randrange(7)))

    return [
        (rng.randrange(routers), rng.randrange(13), rng.randrange(15_000), rng.randrange(30_000), some(), some())
        for _ in range(rng.randrange(16))
    ]


def check_moves(workload: Workload, frames: Collection[TriedFrame]) -> None:
    """Require that it makes no difference whether units move, and whether their timers fire together."""
    stays = answers(workload, frames)
    require(stays == answers(workload, frames, move=True), "units that move give other results than those that stay")
    alone = answers(workload, frames, together=False)
    require(stays == alone, "the timers of many units at once give other results than those of one at a time")
