"""The verdict on a run: was every event answered once, in order, by the owner, and rightly?

Compares what was offered (the events topic), what came out (the results, in the order of their log) and what was left
(the final state and its timers, the savepoints) with a sequential run of the same input. Pure: the same tables give the
same verdict.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from keyshift.model.errors import BadInput
from keyshift.model.keys import ALL_UNITS, FIRST_UNIT, UNITS_END, Assignment, SomeUnits, units_of
from keyshift.workloads import KeyedStage, Workload, due, uses_time
from keyshift.workloads.times import Mask, Times

Rows = npt.NDArray[np.integer[Any]]  # of a table, by their places
# The verdict on some units, from what there is of them: workload, events, results.
JudgeSome = Callable[[Workload, pd.DataFrame, pd.DataFrame, SomeUnits], "Judgement"]

_ORIGIN = ("router", "offset", "position")  # which event a result is of; all -1: of a timer
PART_EVENTS = 1 << 20  # that are judged together, where a verdict is possible in parts
TOGETHER_EVENTS = 1 << 22  # of all parts that are judged once more together, at most; more of a run are on disk
_EXAMPLES_PER_KIND = 3  # of six kinds, and one of the seventh: at most 19 examples
_ADDED = "have mistakes, too large to be judged together: a result with a key of another part is lost and unexpected"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a run: how many of each mistake; all zero is ``ok``."""

    lost: int  # events without a result that is due
    duplicated: int  # results beyond the first of an event
    reordered: int  # results that overtook another of the same router and key
    wrong: int  # results, those of timers too, keys, timers and units of the final state that are not as they must be
    foreign: int  # results, units of savepoints, and units of which keys stay, of a slot that was not the owner
    unexpected: int  # results of events that were never offered, or of which none is due, and of timers nobody has
    unread: int  # events that the generator says it has offered and that were not read back, or the other way round
    shown: tuple[tuple[str, str], ...] = ()  # kind and words of a few of each kind

    @property
    def ok(self) -> bool:
        """Whether there was no mistake at all."""
        return not any(getattr(self, kind) for kind in KINDS)

    @property
    def examples(self) -> tuple[str, ...]:
        """A line for each mistake that is shown."""
        return tuple(f"{kind}: {words}" for kind, words in self.shown)


KINDS = tuple(field.name for field in fields(Judgement) if field.name != "shown")  # of mistakes


@dataclass(frozen=True)
class Inventory:
    """What is in a savepoint, as its manifest has it."""

    name: str
    assignment: Assignment  # that was in force
    units: Sequence[tuple[int, int]]  # unit, and the slot that wrote it


@dataclass(frozen=True)
class Ownership:
    """Who had the units of one stage, from the beginning of a run to its end."""

    assignments: Sequence[Assignment]  # every version that was in force, oldest first; at least one
    savepoints: Sequence[Inventory] = ()  # all of them; the last one is the final state
    left_behind: Collection[tuple[int, int]] = ()  # units, and slots that gave them away and still have keys of them


class _Findings:
    """Counts mistakes by kind, and keeps the first few of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.examples: dict[str, list[str]] = defaultdict(list)

    def rows(self, kind: str, text: str, table: pd.DataFrame, bad: "Mask | pd.Series[bool]") -> None:
        """Count each row of ``table`` that is ``bad``; ``text`` may name its columns."""
        first = table[bad].head(_EXAMPLES_PER_KIND).to_dict("records")
        self.lines(kind, (text.format_map(row) for row in first))
        self.counts[kind] += int(bad.sum()) - len(first)

    def lines(self, kind: str, lines: Iterable[str]) -> None:
        """Count one mistake per line."""
        lines, shown = iter(lines), self.examples[kind]
        for line in islice(lines, _EXAMPLES_PER_KIND - len(shown)):
            shown.append(line)
            self.counts[kind] += 1
        self.counts[kind] += sum(1 for _ in lines)

    def verdict(self) -> Judgement:
        shown = tuple((kind, line) for kind in KINDS for line in self.examples[kind])
        return Judgement(**{kind: self.counts[kind] for kind in KINDS}, shown=shown)


def judge(
    workload: Workload,
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterable[pd.DataFrame],
    ownership: Sequence[Ownership],
    revoked: Collection[int] = (),
    times: Times | None = None,
    unread: int = 0,
) -> Judgement:
    """How one run compares with the sequential one.

    ``events``: router, offset, position and the event columns. ``results``: the collector's columns, rows of one slot
    in the order of their log. Those of timers have router, offset and position -1: no event misses them, so whether
    they are right the workload decides, and here is only seen who gave them; where no stage uses time there must be
    none. ``final``: parts of the final state, columns stage (if there are several), unit, slot, key and the state
    fields. ``ownership``: of each stage; the last one gives the results. ``revoked``: its versions whose results count
    for nothing, as the attempt that gave them died and all since its beginning was done again. ``times``: needed if an
    operator uses time; of the first stage. ``unread``: see ``Judgement``.
    Raises BadInput if there is no assignment or ``times`` is missing. Sorts the results a few times: seconds for
    millions of them.
    """
    stages, owned = workload.stages, ownership[-1]
    if not owned.assignments:
        raise BadInput("assignments is empty: a verdict needs every assignment version that was in force")
    timed = uses_time(stages)
    if timed and times is None:
        raise BadInput(f"times is missing: {workload.name} uses time, so a verdict needs the run's frames and timers")
    found = _Findings()
    if unread:
        found.lines("unread", [f"{abs(unread)} events {'fewer' if unread > 0 else 'more'} than the generator offered"])
        found.counts["unread"] = abs(unread)
    results = counting(results, revoked)
    of_timer = (results[list(_ORIGIN)] == -1).all(axis=1)
    timers, results = results[of_timer], results[~of_timer]
    if not timed:  # the workload would not look for them
        text = "slot {slot} gave a result of key {key} without an event, and no stage uses time"
        found.rows("unexpected", text, timers, np.ones(len(timers), bool))
        timers = timers.iloc[:0]
    events = events.sort_values(list(_ORIGIN), ignore_index=True)
    # Names that no workload has. The order within a record is that of the log.
    results = results.assign(_place=_places(events, results), _row=np.arange(len(results)))
    found.rows(
        "unexpected",
        "slot {slot} gave a result of router {router} offset {offset} position {position}, which was never offered",
        results,
        results["_place"] < 0,
    )
    results = results[results["_place"] >= 0]
    wanted = due_in(stages, events)
    found.rows(
        "unexpected",
        "slot {slot} gave a result of router {router} offset {offset} position {position}, for which none is due",
        results,
        ~wanted[results["_place"]],
    )
    results = results[wanted[results["_place"]]]

    answered = np.zeros(len(events), bool)
    answered[results["_place"]] = True
    found.rows("lost", "router {router} offset {offset} position {position} key {key}", events, wanted & ~answered)

    results = results.iloc[_order(results, ["_place", "arrived_us", "log_offset", "_row"])]  # first arrival first
    again = results.duplicated("_place")
    text = "slot {slot} gave router {router} offset {offset} position {position} key {key} once more"
    found.rows("duplicated", text, results, again)
    results = results[~again]

    event = events.iloc[results["_place"]]
    keeps = ["key", "t"] if len(stages) == 1 else ["t"]  # a later stage may have other keys
    found.rows(
        "wrong",
        "result of router {router} offset {offset} position {position} has key {key} and t {t}, not those of its event",
        results,
        (results[keeps].to_numpy() != event[keeps].to_numpy()).any(axis=1),
    )
    found.rows(
        "reordered",
        "slot {slot}: router {router} offset {offset} position {position} key {key} under version {version}",
        results,
        _reordered(results.assign(_event_key=event["key"].to_numpy())),
    )
    results = pd.concat([results.drop(columns=["_place", "_row"]), timers], ignore_index=True)
    owner = _owners(results, _units(workload, results), owned.assignments)
    found.rows(
        "foreign",
        "slot {slot} answered key {key} of unit {unit}, whose owner at version {version} was slot {owner} (-1: none)",
        results.assign(**owner),
        (owner["owner"] != results["slot"].to_numpy()),
    )

    homes: set[tuple[int, int]] = set()
    last = len(stages) - 1
    parts = _watched(final, homes, last)
    found.lines("wrong", workload.wrong(events, results, parts, times))
    for _ in parts:  # where the state lives counts even if the workload did not look at all of it
        pass
    if times is not None:
        found.lines("wrong", times.wrong())
        homes |= times.homes() if last == 0 else set()  # of units without keys, too
    for savepoint in owned.savepoints[-1:]:
        homes.difference_update(savepoint.units)  # it is the final state: what both have counts once
    end = Inventory("the final state", owned.assignments[-1], sorted(homes))
    written = [savepoint for of_stage in ownership for savepoint in of_stage.savepoints]
    for savepoint in written:
        found.lines("wrong", _not_once(savepoint))
    for savepoint in [*written, end]:
        found.lines("foreign", _not_at_home(savepoint))
    for of_stage in ownership:
        left = sorted(of_stage.left_behind)
        found.lines("foreign", (f"slot {slot} still has keys of unit {unit}" for unit, slot in left))
    return found.verdict()


def judge_in_parts(
    parts: int, workload: Workload, events: pd.DataFrame, results: pd.DataFrame, judge_some: JudgeSome
) -> Judgement:
    """``judge_parts`` of tables in memory, with little more than they take: so many ``parts`` of neighbouring units,
    which lie side by side in a savepoint, with about as many events each. In one part, if the verdict on a unit needs
    others. There are no more parts than units.
    """
    if parts < 2 or workload.only(ALL_UNITS) is None:
        return judge_some(workload, events, results, ALL_UNITS)
    of_events, of_results = _units(workload, events), _units(workload, results)
    part_of, begins = shared_out(np.bincount(of_events, minlength=workload.key_groups * workload.bins), parts)

    def rows(units: npt.NDArray[np.int32]) -> list[Rows]:  # ascending; each table is sorted once, for all parts
        part = part_of[units]
        ordered = np.argsort(part, kind="stable").astype(np.min_scalar_type(len(part)))  # takes as little as units do
        return np.split(ordered, np.cumsum(np.bincount(part, minlength=len(begins) + 1))[:-1])

    both = rows(of_events), rows(of_results)

    def some(*numbers: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        nothing = np.empty(0, np.intp)
        mine, given = (np.sort(np.concatenate([nothing, *(each[n] for n in numbers)], dtype=np.intp)) for each in both)
        return events.iloc[mine], results.iloc[given]

    return judge_parts(workload, begins.tolist(), some, judge_some)


def judge_parts(
    workload: Workload,
    begins: Sequence[int],
    some: Callable[..., tuple[pd.DataFrame, pd.DataFrame]],
    judge_some: JudgeSome,
) -> Judgement:
    """``judge`` one part of the units after the other, and those with mistakes once more together, unless they have too
    many events: then their mistakes are added, and the last example says so.

    ``begins``: the first unit of each part but that with the first units. ``some``: the events and results of the parts
    with these numbers, as ``judge`` takes them; of none, too.

    A result whose key is not that of its event counts as unexpected, if the part of that event has no mistake or is
    judged by itself; a key that the final state has in another unit, too, likewise as one that does not exist.
    """
    ranges, sizes = [*pairwise([FIRST_UNIT, *begins, UNITS_END])], Counter[int]()

    def verdict_on(*numbers: int) -> Judgement:
        units = SomeUnits([ranges[number] for number in numbers])
        alone = workload.only(units)
        assert alone is not None  # as it was asked before
        events, results = some(*numbers)
        if len(numbers) == 1:
            sizes[numbers[0]] = max(len(events), len(results))
        return judge_some(alone, events, results, units)

    found = [verdict_on(number) for number in range(len(ranges))]
    bad = [number for number, each in enumerate(found) if not each.ok]
    if len(bad) < 2:
        return found[bad[0] if bad else 0]
    common = verdict_on()  # what is wrong with the whole job, which each part has found
    bad = [number for number in bad if found[number] != common]
    if len(bad) > 1 and sum(sizes[number] for number in bad) > TOGETHER_EVENTS:
        return _added(common, [found[number] for number in bad])
    return verdict_on(*bad) if bad else common


def _added(common: Judgement, found: Sequence[Judgement]) -> Judgement:
    """The mistakes that all parts have in ``common``, and those that each has beside them."""
    counts = {
        kind: getattr(common, kind) + sum(getattr(each, kind) - getattr(common, kind) for each in found)
        for kind in KINDS
    }
    of_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, line in dict.fromkeys(example for each in (common, *found) for example in each.shown):
        of_kind[kind].append(line)
    shown = [(kind, line) for kind, lines in of_kind.items() for line in lines[:_EXAMPLES_PER_KIND]]
    return Judgement(**counts, shown=(*shown, ("added", f"{len(found)} parts {_ADDED}")))


def shared_out(
    counts: npt.NDArray[np.integer[Any]], parts: int
) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.intp]]:
    """Which part each of some neighbours is in, if they have these ``counts`` and parts are to have about as much each;
    and which of them begin a part, but the first one. There may be fewer ``parts``.
    """
    doubled = 2 * np.cumsum(counts) - counts  # up to the middle of each
    wanted = np.minimum(doubled * parts // max(1, 2 * int(counts.sum())), parts - 1)
    part_of = np.unique(wanted, return_inverse=True)[1].astype(np.min_scalar_type(parts))
    return part_of, np.flatnonzero(np.diff(part_of)) + 1


def _units(workload: Workload, table: pd.DataFrame) -> npt.NDArray[np.int32]:
    return units_of(table["key"].to_numpy(), workload.key_groups, workload.bins)


def counting(results: pd.DataFrame, revoked: Collection[int]) -> pd.DataFrame:
    """The ``results`` under versions that are not ``revoked``, of which there may be many more than have results."""
    gone = [version for version in results["version"].unique().tolist() if version in revoked]
    return results[~results["version"].isin(gone)]


def due_in(stages: Sequence[KeyedStage], events: pd.DataFrame) -> Mask:
    """Which of ``events``, a table with the columns of the first stage, must have a result of the last one."""
    return due(stages, pa.RecordBatch.from_pandas(events, stages[0].events, preserve_index=False))


def _not_once(savepoint: Inventory) -> Iterator[str]:
    """One line for each unit that nobody wrote, or that a slot wrote twice (one that two slots wrote is foreign)."""
    written = Counter(savepoint.units)
    for unit in sorted(set(range(len(savepoint.assignment.owner))) - {unit for unit, _ in written}):
        yield f"unit {unit} is not in {savepoint.name}"
    for (unit, slot), count in sorted(written.items()):
        if count > 1:
            yield f"unit {unit} is {count} times in {savepoint.name}, all of slot {slot}"


def _not_at_home(savepoint: Inventory) -> Iterator[str]:
    """One line for each unit that a slot wrote which is not its owner."""
    owner, version = savepoint.assignment.owner, savepoint.assignment.version
    for unit, slot in sorted(set(savepoint.units)):
        if not 0 <= unit < len(owner) or owner[unit] != slot:
            yield f"{savepoint.name} has unit {unit} of slot {slot}, which was not the owner at version {version}"


def _places(events: pd.DataFrame, results: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The row of each result's event in ``events``, or -1."""
    columns = list(_ORIGIN)
    offered = events[columns].assign(place=np.arange(len(events)))
    return results[columns].merge(offered, how="left", on=columns)["place"].fillna(-1).to_numpy(np.int64)


def _reordered(results: pd.DataFrame) -> Mask:
    """Results that come after one of a later event of the same router and key: in a slot's log, or by version.

    Two slots' logs have no common order; versions have: a router's events never go back to an earlier one. Behind
    other stages, events keep their order only if they had the same key (``_event_key``) from the beginning.
    """
    keys = ["router", "key"] if (results["key"] == results["_event_key"]).all() else ["router", "key", "_event_key"]
    in_log = _falls(results, "_place", [*keys, "slot"], ["log_offset", "_row"])
    by_version = _falls(results, "version", keys, ["_place"])
    return in_log | by_version


def _falls(results: pd.DataFrame, column: str, within: list[str], order: list[str]) -> Mask:
    """Results in which ``column`` is less than in the one before them that is the same in all of ``within``."""
    rows = _order(results, [*within, *order])
    same = np.logical_and.reduce([np.diff(results[name].to_numpy()[rows]) == 0 for name in within])
    bad = np.zeros(len(results), bool)
    bad[rows[1:]] = same & (np.diff(results[column].to_numpy()[rows]) < 0)
    return bad


def _order(results: pd.DataFrame, columns: list[str]) -> npt.NDArray[np.int64]:
    """The rows in ascending order of ``columns``: as ``sort_values``, in a third of its time."""
    return np.lexsort([results[name] for name in reversed(columns)])


def _owners(
    results: pd.DataFrame, unit: npt.NDArray[np.int32], assignments: Sequence[Assignment]
) -> dict[str, npt.NDArray[Any]]:
    """Unit and owner of each result's key under the result's version; owner -1 if there was no such version."""
    owner = np.full(len(results), -1, np.int32)
    rows = results.groupby("version").indices
    for assignment in assignments:
        if (at := rows.get(assignment.version)) is not None:
            owner[at] = assignment.slot_of[unit[at]]
    return {"unit": unit, "owner": owner}


def _watched(final: Iterable[pd.DataFrame], homes: set[tuple[int, int]], last: int) -> Iterator[pd.DataFrame]:
    """Pass ``final`` on as it is, and note which slots of the ``last`` stage hold which units."""
    for part in final:
        mine = part[part["stage"] == last] if "stage" in part else part
        pairs = mine[["unit", "slot"]].drop_duplicates()
        homes.update(zip(pairs["unit"].tolist(), pairs["slot"].tolist(), strict=True))
        yield part
