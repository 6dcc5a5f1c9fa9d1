"""What must come out of ``windowcount``, told from the events and the watermarks they met. Not by the operator's code.

Which watermark an event meets depends on how routers interleave, so the results say it (``watermark``), and likewise
the processing time (``clock``). Which watermarks are possible follows from the frames (``Times``). Given them,
everything is determined:

- an event is late if, and only if, its event time is behind the watermark it met less the lag, and for the events of a
  router and key neither time ever shrinks;
- the events of a window that were not late are counted 1..n, in the order of each router, and added up;
- each window fires once, with just these events, when its unit's watermark has passed its end by the lag, or is in the
  final state with a timer (that it is not overdue is seen in ``Times``);
- a key falls idle once after each event that no other event followed within ``idle_us``, and at no other time; if its
  last event was not so long ago, there is a timer for that;
- there are no other timers, and no result of one is late, counts what is idle, or is of a time beyond its unit's.

An event without a result is counted as lost elsewhere: whatever depends on it is not judged here.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads.tables import Tables, lengths, lines
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW

if TYPE_CHECKING:
    from keyshift.workloads.windowcount import WindowCount

# Statements. ``$lag``, ``$idle``: microseconds; ``$ends``: from the start of a window to the watermark that closes it.
# Their column ``wrong`` says what is wrong with a row.

_LOST = 'SELECT DISTINCT key, start FROM events ANTI JOIN answers USING (router, "offset", "position")'
_ANSWERED = """
    SELECT e.*, e.t - e.at AS delay, e.at < a.watermark - $lag AS due_late,
           a.start AS start_told, a.late, a.count, a.sum, a.watermark, a.clock, a.impossible
    FROM events e JOIN answers a USING (router, "offset", "position")
"""
_WRONG_ANSWERS = """
    WITH placed AS (
        SELECT *, lag(watermark) OVER mine AS watermark_before, lag(clock) OVER mine AS clock_before,
               NOT due_late AND (key, start) NOT IN (SELECT (key, start) FROM lost) AS counts
        FROM answered WINDOW mine AS (PARTITION BY key, router ORDER BY "offset", "position")
    ), counted AS (
        SELECT *, row_number() OVER counted AS place, sum(delay) OVER counted AS total,
               lag(count) OVER (PARTITION BY key, start, counts, router ORDER BY "offset", "position") AS count_before
        FROM placed WINDOW counted AS (
            PARTITION BY key, start, counts ORDER BY count, router, "offset", "position" ROWS UNBOUNDED PRECEDING
        )
    )
    SELECT *, CASE
        WHEN start_told != start THEN 'is not of this window'
        WHEN late != due_late THEN 'is wrong about being late'
        WHEN due_late AND (count != 0 OR sum != 0) THEN 'is late, so counts nothing'
        WHEN impossible = 1 THEN 'met a watermark that no frame has'
        WHEN impossible = 2 THEN 'met the watermark of its own frame or a later one'
        WHEN impossible = 3 THEN 'met a lower watermark than an earlier frame of its router'
        WHEN watermark < watermark_before THEN 'has a watermark that the key had left behind'
        WHEN clock < clock_before THEN 'has a clock that the key had left behind'
        WHEN counts AND count != place THEN 'has a count that is not its window''s next'
        WHEN counts AND count <= count_before THEN 'has a count lower than that of an earlier event of its router'
        WHEN counts AND sum != total THEN 'has a sum that is not that of the events counted'
    END AS wrong
    FROM counted WHERE wrong IS NOT NULL ORDER BY router, "offset", "position"
"""
_WRONG_WINDOWS = """
    WITH expected AS (
        SELECT key, start, count(*) AS count, sum(delay) AS sum FROM answered WHERE NOT due_late GROUP BY key, start
    )
    SELECT key, start, e.count, e.sum, f.count AS found, f.sum AS sum_found, CASE
        WHEN f.count IS NULL THEN 'neither fired nor is in the final state; expected count {count}'
        WHEN (key, start) IN (SELECT (key, start) FROM lost) THEN NULL
        WHEN e.count IS NULL THEN 'has count {found}, but no event that was not late'
        WHEN e.count != f.count OR e.sum != f.sum
        THEN 'has count {found} and sum {sum_found}, expected {count} and {sum}'
    END AS wrong
    FROM expected e FULL JOIN found f USING (key, start) WHERE wrong IS NOT NULL ORDER BY ALL
"""
_WRONG_IDLE = """
    WITH moments AS (
        SELECT key, clock, coalesce(lead(clock) OVER (PARTITION BY key ORDER BY clock), come) AS until
        FROM (SELECT DISTINCT key, clock FROM answered) JOIN keys USING (key)
    ), joined AS (
        SELECT *, clock + $idle AS due, key NOT IN (SELECT key FROM lost) AS sure
        FROM moments FULL JOIN told_idle USING (key, clock)
    )
    SELECT key, clock, fired, t, until, $idle AS idle, wrong FROM joined, LATERAL (SELECT unnest([
        CASE WHEN fired < due OR t != due
             THEN 'was told at {fired}, set to {t}; expected {idle} later, not earlier' END,
        CASE WHEN fired > until THEN 'was told at {fired}, after its next event at {until}' END,
        CASE WHEN until IS NULL AND sure THEN 'was told, but had no event then' END,
        CASE WHEN fired IS NULL AND until >= due AND sure THEN 'was never told, though nothing came until {until}' END
    ]) AS wrong) WHERE wrong IS NOT NULL ORDER BY ALL
"""
_WRONG_LAST = """
    SELECT key, last, coalesce(max(clock), 0) AS expected,
           'last event processed at {last}, expected {expected}' AS wrong
    FROM keys LEFT JOIN answered USING (key)
    WHERE places = 1 AND key NOT IN (SELECT key FROM lost) GROUP BY key, last HAVING last != expected ORDER BY key
"""
_WRONG_TIMERS = """
    WITH due AS (
        SELECT 'an open window' AS what, unit, key, start + $ends AS time, true AS needed FROM windows
        UNION ALL
        SELECT 'a key that may fall idle', unit, key, last + $idle, last + $idle > come  -- otherwise it was told
        FROM keys WHERE last != 0 AND $idle > 0
    )
    SELECT what, unit, key, time, CASE
        WHEN t.there IS NULL AND needed THEN '{what} has no timer, set to {time}'
        WHEN needed IS NULL THEN 'a timer is set to {time}, and there is not {what} for it'
    END AS wrong
    FROM due FULL JOIN timers t USING (what, unit, key, time) WHERE wrong IS NOT NULL ORDER BY ALL
"""


def wrong(
    workload: "WindowCount", events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times
) -> Iterator[str]:
    """See ``Workload.wrong``. One line per wrong result, window, idle period, and key of the final state."""
    of_event = results["position"] >= 0
    answers, fired = results[of_event], results[~of_event]
    told = "result of router {router} offset {offset} position {position}: kind {kind}, expected %d"
    yield from lines(answers, answers["kind"] != ANSWER, told % ANSWER)
    told = "timer of key {key} set to {t}: kind {kind}, expected %d or %d"
    yield from lines(fired, ~fired["kind"].isin((WINDOW, IDLE)), told % (WINDOW, IDLE))
    text = "timer of key {key} set to {t} says that it is late, as only an event can be"
    yield from lines(fired, fired["late"], text)
    told = "timer of key {key} set to {t} fired at watermark {watermark}, which its unit cannot have reached"
    yield from lines(fired, times.strange(fired["watermark"]), told)

    ends = workload.window_us + workload.lag_us
    ask = Tables({"lag": workload.lag_us, "idle": workload.idle_us, "ends": ends})
    ask.add(answers=answers.assign(impossible=_impossible(workload, answers, times)))
    ask.add(events=events.assign(start=events["at"] - events["at"] % workload.window_us))
    ask.derive(lost=_LOST, answered=_ANSWERED)
    text = "result of router {router} offset {offset} position {position}, key {key}, event time {at}, {wrong}: start"
    text += " {start_told}, late {late}, count {count}, sum {sum}, watermark {watermark}, clock {clock}"
    yield from ask.lines(_WRONG_ANSWERS, text)

    keys, windows = yield from _kept(workload, final)
    ask.add(keys=keys.assign(come=times.clocks[workload.units]), windows=windows)

    closed = fired[fired["kind"] == WINDOW]
    text = "window {start} of key {key} fired at watermark {watermark}, set to {t}; "
    early = (closed["watermark"] < closed["start"] + ends) | (closed["t"] != closed["start"] + ends)
    yield from lines(closed, early, text + f"expected start + {ends}, not earlier")
    text = "window {start} of key {key} fired at clock {clock}, to which its unit had not come by the end"
    units = workload.units_of(closed["key"])
    yield from lines(closed, closed["clock"] > times.clocks[units], text)
    found = pd.concat([closed, windows])
    text = "window {start} of key {key} with count {count} fired twice, or fired and stayed"
    yield from lines(found, found.duplicated(["key", "start"]), text)
    yield from ask.lines(_WRONG_WINDOWS, "window {start} of key {key} {wrong}", found=found)

    idle = fired[fired["kind"] == IDLE].rename(columns={"clock": "fired", "start": "clock"})
    text = "key {key} idle since {clock} "
    if workload.idle_us:
        odd = (idle["count"] != 0) | (idle["sum"] != 0)
        yield from lines(idle, odd, text + "was told with count {count} and sum {sum}, expected 0")
        yield from lines(idle, idle.duplicated(["key", "clock"]), text + "was told more than once, now at {fired}")
        yield from ask.lines(_WRONG_IDLE, text + "{wrong}", told_idle=idle[["key", "clock", "fired", "t"]])
    else:
        yield from lines(idle, idle["key"].notna(), text + "was told, but idle_ms is 0")
    yield from ask.lines(_WRONG_LAST, "final state of key {key}: {wrong}")
    kinds = {EVENT: "an open window", PROCESSING: "a key that may fall idle"}
    timers = pd.concat([times.timers_of(kind).assign(what=what, there=True) for kind, what in kinds.items()])
    yield from ask.lines(_WRONG_TIMERS, "final state of key {key} in unit {unit}: {wrong}", timers=timers)


def _impossible(workload: "WindowCount", answers: pd.DataFrame, times: Times) -> npt.NDArray[np.int8]:
    """Whether and why the watermark that an event says it met cannot be: 0 to 3, see ``_WRONG_ANSWERS``."""
    key, watermark = answers["key"].to_numpy(), answers["watermark"]
    unit = workload.units[np.where((key >= 0) & (key < workload.keys), key, 0)]
    strange = times.strange(watermark)
    early = watermark.to_numpy() > times.highest(answers["router"].to_numpy(), answers["offset"].to_numpy())
    where = answers[["slot", "router", "offset", "version"]]
    behind = watermark < times.lowest(where.assign(unit=unit, watermark=watermark.where(~strange & ~early, 0)))
    return np.select([strange, early, behind], [1, 2, 3]).astype(np.int8)


def _kept(workload: "WindowCount", final: Iterator[pd.DataFrame]) -> Generator[str, None, tuple[pd.DataFrame, ...]]:
    """One line per key, or open window, of the final state that is not as it should be, whatever the events were.

    Returns of each key its unit, in how many ``places`` it is, and when its ``last`` event was processed; and the open
    windows: columns unit, key, start, count, sum.
    """
    places, last = np.zeros((2, workload.keys), np.int64)
    columns = {"starts": "start", "counts": "count", "sums": "sum"}
    windows = [pd.DataFrame(columns=["unit", "key", *columns])]
    for part in workload.slices(final):
        key, unit = part["key"].to_numpy(), part["unit"].to_numpy()
        known = (key >= 0) & (key < workload.keys)
        home = np.where(known, key, 0)
        sizes = lengths(part, list(columns))
        good = known & (workload.units[home] == unit) & (sizes == sizes[0]).all(axis=0)
        good &= ~workload.damaged(part, np.zeros_like(key))
        text = "final state of key {key} in unit {unit}, slot {slot}: not a key of this unit, or not its payload"
        yield from lines(part, ~good, text)
        np.add.at(places, key[known], 1)
        last[key[good]] = part["last"].to_numpy()[good]
        windows.append(part.loc[good & (sizes[0] > 0), ["unit", "key", *columns]].explode([*columns]))
    for k in np.flatnonzero(places != 1):
        yield f"final state of key {k}: in {places[k]} places, expected 1"
    keys = pd.DataFrame({"key": np.arange(workload.keys), "unit": workload.units, "places": places, "last": last})
    found = pd.concat(windows, ignore_index=True).rename(columns=columns)
    lacks = found.isna().any(axis=1)
    yield from lines(found, lacks.to_numpy(), "final state of key {key}: an open window lacks its start, count or sum")
    return keys, found[~lacks].astype(np.int64)
