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
- there are no other timers.

An event without a result is counted as lost elsewhere: whatever depends on it is not judged here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads.times import Times, lines
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW

if TYPE_CHECKING:
    from keyshift.workloads.windowcount import WindowCount

_EVENT = ["router", "offset", "position"]
_WINDOW = ["key", "start"]
_TIMER = ["unit", "key", "time"]
_STATED = ["kind", "start", "late", "count", "sum", "watermark", "clock"]
# What may be wrong with the watermark that an event says it met.
_IMPOSSIBLE = (
    "",
    "met a watermark that no frame has",
    "met the watermark of its own frame or a later one",
    "met a lower watermark than an earlier frame of its router",
)


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
    told = "timer of key {key} set to {t} fired at watermark {watermark}, which its unit cannot have reached"
    yield from lines(fired, times.strange(fired["watermark"]), told)
    stated = answers[[*_EVENT, *_STATED]]
    stated.insert(0, "impossible", _impossible(workload, answers, times))

    events = events[[*_EVENT, "key", "t", "at"]].assign(start=events["at"] - events["at"] % workload.window_us)
    answered = events.merge(stated, on=_EVENT, suffixes=("", "_told"))
    answered["delay"] = answered["t"] - answered["at"]
    answered["due_late"] = answered["at"] < answered["watermark"] - workload.lag_us
    unsure = _unsure(events, answered, _WINDOW), _unsure(events, answered, ["key"])

    yield from _wrong_answers(answered, unsure[0])
    state = _State(workload)
    yield from state.read(final)
    yield from _wrong_windows(workload, answered, fired[fired["kind"] == WINDOW], state.windows(), unsure[0])
    yield from _wrong_idle(workload, answered, fired[fired["kind"] == IDLE], times.clocks, unsure[1])
    yield from state.wrong_last(answered, unsure[1])
    yield from state.wrong_timers(times)


def _impossible(workload: "WindowCount", answers: pd.DataFrame, times: Times) -> npt.NDArray[np.int8]:
    """Why the watermark that an event says it met cannot be: a place in ``_IMPOSSIBLE``."""
    key, watermark = answers["key"].to_numpy(), answers["watermark"]
    unit = workload.units[np.where((key >= 0) & (key < workload.keys), key, 0)]
    strange = times.strange(watermark)
    early = watermark.to_numpy() > times.highest(answers["router"].to_numpy(), answers["offset"].to_numpy())
    where = answers[["slot", "router", "offset", "version"]]
    behind = watermark < times.lowest(where.assign(unit=unit, watermark=watermark.where(~strange & ~early, 0)))
    return np.select([strange, early, behind], [1, 2, 3]).astype(np.int8)


def _unsure(events: pd.DataFrame, answered: pd.DataFrame, by: list[str]) -> pd.MultiIndex | pd.Index:
    """The windows, or keys, of events that have no result."""
    offered, given = events.groupby(by).size(), answered.groupby(by).size()
    return offered.index[offered != given.reindex(offered.index, fill_value=0)]


def _sure(table: pd.DataFrame, by: list[str], unsure: pd.Index) -> npt.NDArray[np.bool_]:
    """Which rows of a table do not depend on an event that has no result."""
    return ~pd.Index(table[by[0]] if len(by) == 1 else pd.MultiIndex.from_frame(table[by])).isin(unsure)


def _wrong_answers(answered: pd.DataFrame, unsure: pd.Index) -> Iterator[str]:
    answered = answered.sort_values(_EVENT, ignore_index=True)  # so that every group is in the order of each router
    late = answered["due_late"]
    reasons = {
        "is not of this window": answered["start_told"] != answered["start"],
        "is wrong about being late": answered["late"] != late,
        "is late, so counts nothing": late & ((answered["count"] != 0) | (answered["sum"] != 0)),
    }
    reasons |= {reason: answered["impossible"] == place for place, reason in enumerate(_IMPOSSIBLE) if reason}
    for time in ("watermark", "clock"):
        before = answered.groupby(["key", "router"])[time].shift()
        reasons[f"has a {time} that the key had left behind"] = answered[time] < before
    sure = ~late & _sure(answered, _WINDOW, unsure)
    counted = answered[sure].sort_values("count", kind="stable")
    windows = counted.groupby(_WINDOW)
    reasons["has a count that is not its window's next"] = counted["count"] != windows.cumcount() + 1
    in_order = answered[sure].groupby([*_WINDOW, "router"])["count"]
    reasons["has a count lower than that of an earlier event of its router"] = in_order.diff() <= 0
    reasons["has a sum that is not that of the events counted"] = counted["sum"] != windows["delay"].cumsum()

    told = pd.Series("", answered.index)
    for reason, bad in reasons.items():
        bad = bad.reindex(answered.index, fill_value=False)
        told[bad & (told == "")] = reason
    text = (
        "result of router {router} offset {offset} position {position}, key {key}, event time {at}, {told}: start"
        " {start_told}, late {late}, count {count}, sum {sum}, watermark {watermark}, clock {clock}"
    )
    yield from lines(answered.assign(told=told), told != "", text)


def _wrong_windows(
    workload: "WindowCount",
    answered: pd.DataFrame,
    fired: pd.DataFrame,
    left: pd.DataFrame,
    unsure: pd.Index,
) -> Iterator[str]:
    ends_us = workload.window_us + workload.lag_us  # from the start of a window to the watermark that closes it
    window = "window {start:.0f} of key {key:.0f} "
    text = window + "fired at watermark {watermark}, set to {t}; expected " + f"start + {ends_us}, not earlier"
    due = fired["start"] + ends_us
    yield from lines(fired, (fired["watermark"] < due) | (fired["t"] != due), text)

    found = pd.concat([fired, left])[[*_WINDOW, "count", "sum"]]
    yield from lines(found, found.duplicated(_WINDOW), window + "with count {count} fired twice, or fired and stayed")
    expected = answered[~answered["due_late"]].groupby(_WINDOW).agg(count=("at", "size"), sum=("delay", "sum"))
    both = expected.reset_index().merge(found, on=_WINDOW, how="outer", suffixes=("", "_found"), indicator="side")
    text = window + "neither fired nor is in the final state; expected count {count:.0f}"
    yield from lines(both, both["side"] == "left_only", text)
    sure = _sure(both, _WINDOW, unsure)
    text = window + "has count {count_found:.0f}, but no event that was not late"
    yield from lines(both, (both["side"] == "right_only") & sure, text)
    differs = (both["count"] != both["count_found"]) | (both["sum"] != both["sum_found"])
    text = window + "has count {count_found:.0f} and sum {sum_found:.0f}, expected {count:.0f} and {sum:.0f}"
    yield from lines(both, (both["side"] == "both") & differs & sure, text)


def _wrong_idle(
    workload: "WindowCount",
    answered: pd.DataFrame,
    fired: pd.DataFrame,
    clocks: npt.NDArray[np.int64],
    unsure: pd.Index,
) -> Iterator[str]:
    fired = fired.rename(columns={"clock": "fired", "start": "clock"})[["key", "clock", "fired", "t"]]
    key = "key {key:.0f} idle since {clock:.0f} "
    if not workload.idle_us:
        yield from lines(fired, fired["key"].notna(), key + "was told, but idle_ms is 0")
        return
    moments = answered[["key", "clock"]].drop_duplicates().sort_values(["key", "clock"])
    end = pd.Series(clocks[workload.units[moments["key"]]], moments.index)
    moments["until"] = moments.groupby("key")["clock"].shift(-1).fillna(end)
    yield from lines(fired, fired.duplicated(["key", "clock"]), key + "was told more than once, now at {fired}")
    both = moments.merge(fired, on=["key", "clock"], how="outer", indicator="side")
    due = both["clock"] + workload.idle_us
    text = key + "was told at {fired:.0f}, set to {t:.0f}; expected " + f"{workload.idle_us} later, not earlier"
    yield from lines(both, (both["fired"] < due) | (both["side"] != "left_only") & (both["t"] != due), text)
    text = key + "was told at {fired:.0f}, after its next event at {until:.0f}"
    yield from lines(both, both["fired"] > both["until"], text)
    sure = _sure(both, ["key"], unsure)
    yield from lines(both, (both["side"] == "right_only") & sure, key + "was told, but had no event then")
    text = key + "was never told, though nothing came until {until:.0f}"
    yield from lines(both, (both["side"] == "left_only") & (both["until"] >= due) & sure, text)


class _State:
    """The final state: checks where keys and payloads are, and keeps the windows and times for later."""

    def __init__(self, workload: "WindowCount") -> None:
        self._workload = workload
        self._seen = np.zeros(workload.keys, np.int64)
        self._last = np.zeros(workload.keys, np.int64)
        self._windows = [pd.DataFrame({name: pd.Series(dtype="int64") for name in ("unit", *_WINDOW, "count", "sum")})]

    def read(self, final: Iterator[pd.DataFrame]) -> Iterator[str]:
        """One line per key that is not as it should be, whatever the events were."""
        workload = self._workload
        for part in workload.slices(final):
            key, unit = part["key"].to_numpy(), part["unit"].to_numpy()
            known = (key >= 0) & (key < workload.keys)
            home = np.where(known, key, 0)
            lengths = np.stack([part[name].str.len().fillna(-1).astype(int) for name in ("starts", "counts", "sums")])
            good = known & (workload.units[home] == unit) & (lengths == lengths[0]).all(axis=0)
            good &= ~workload.damaged(part, np.zeros_like(key))
            text = "final state of key {key} in unit {unit}, slot {slot}: not a key of this unit, or not its payload"
            yield from lines(part, ~good, text)
            np.add.at(self._seen, key[known], 1)
            self._last[key[good]] = part["last"].to_numpy()[good]
            if lengths[0, good].any():
                columns = {
                    "unit": np.repeat(unit[good], lengths[0, good]),
                    "key": np.repeat(key[good], lengths[0, good]),
                }
                for name, column in (("start", "starts"), ("count", "counts"), ("sum", "sums")):
                    columns[name] = np.concatenate(part[column].to_numpy()[good])
                self._windows.append(pd.DataFrame(columns))
        for k in np.flatnonzero(self._seen != 1):
            yield f"final state of key {k}: in {self._seen[k]} places, expected 1"

    def windows(self) -> pd.DataFrame:
        """Columns unit, key, start, count, sum: the windows that are still open."""
        return pd.concat(self._windows, ignore_index=True)

    def wrong_last(self, answered: pd.DataFrame, unsure: pd.Index) -> Iterator[str]:
        """One line per key that does not know when its last event was processed."""
        last = answered.groupby("key")["clock"].max().reindex(range(self._workload.keys), fill_value=0)
        bad = (self._last != last.to_numpy()) & (self._seen == 1) & ~last.index.isin(unsure)
        for k in np.flatnonzero(bad):
            yield f"final state of key {k}: last event processed at {self._last[k]}, expected {last[k]}"

    def wrong_timers(self, times: Times) -> Iterator[str]:
        """One line per timer that is missing, and per timer that waits for nothing."""
        workload = self._workload
        windows = self.windows()
        closes = windows.assign(time=windows["start"] + workload.window_us + workload.lag_us)
        yield from _unlike(closes, times.timers_of(EVENT), "an open window")
        key = np.flatnonzero(self._last)
        idle = pd.DataFrame({"unit": workload.units[key], "key": key, "time": self._last[key] + workload.idle_us})
        idle = idle if workload.idle_us else idle[:0]
        pending = idle["time"] > times.clocks[idle["unit"]]  # otherwise it was told
        yield from _unlike(idle, times.timers_of(PROCESSING), "a key that may fall idle", pending)


def _unlike(expected: pd.DataFrame, timers: pd.DataFrame, what: str, needed: Any = True) -> Iterator[str]:
    """One line for each of ``expected`` that is ``needed`` and is none of ``timers``, and for each timer beyond."""
    wanted, there = (pd.MultiIndex.from_frame(table[_TIMER]) for table in (expected, timers))
    text = "final state of key {key} in unit {unit}: "
    yield from lines(expected, needed & ~wanted.isin(there), text + f"{what} has no timer, set to {{time}}")
    yield from lines(timers, ~there.isin(wanted), text + f"a timer is set to {{time}}, and there is not {what} for it")
