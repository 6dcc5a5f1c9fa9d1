"""What must come out of ``wordcount``, told from the words that went in. Not by the operator's code.

The event time of a word is its ``t``, and no watermark is beyond a word that is still to come. So the count of each
word in each window is that of the input, whatever the watermarks were; they say only which windows have closed by the
end.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from keyshift.keys import units_of
from keyshift.state.timers import EVENT
from keyshift.workloads.times import Times, lines
from keyshift.workloads.wordcount.operator import WINDOW, WORD

if TYPE_CHECKING:
    from keyshift.workloads.wordcount import WordCount

_EVENT = ["router", "offset", "position"]
_WINDOW = ["key", "word", "start"]  # a word has one key, but a result that mixes them up is to be seen


def wrong(
    workload: "WordCount",
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterator[pd.DataFrame],
    times: Times | None,
) -> Iterator[str]:
    """See ``Workload.wrong``. One line per wrong result, window, and word of the final state."""
    window_us = workload.window_us
    events = events[[*_EVENT, "key", "t", "word"]]
    events = events.assign(start=events["t"] - events["t"] % window_us if window_us else 0)
    offered = events.groupby(_WINDOW).size().rename("offered").reset_index()
    of_event = results["position"] >= 0
    yield from _wrong_answers(events, offered, results[of_event])

    fired = results[~of_event]
    found: list[pd.DataFrame] = [fired.assign(unit=-1)]
    for part in final:
        yield from _wrong_part(workload, part)
        found.append(_entries(part))
    text = "timer of key {key} set to {t} tells of word {word!r} in window {start}, kind {kind}: expected kind"
    text += f" {WINDOW} at {window_us} behind the start, not later than all routers had come"
    reached = times.least if times is not None else 0
    due = fired["start"] + window_us
    yield from lines(fired, (fired["kind"] != WINDOW) | (fired["t"] != due) | (due > reached), text)
    yield from _wrong_windows(offered, pd.concat(found, ignore_index=True))
    if window_us and times is not None:
        yield from _wrong_timers(found[1:], times, window_us)


def _wrong_answers(events: pd.DataFrame, offered: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str]:
    told = answers[[*_EVENT, "kind", "word", "start", "count"]].merge(
        events[[*_EVENT, "key", "word", "start"]], on=_EVENT, suffixes=("_told", "")
    )
    told = told.merge(offered, on=_WINDOW).sort_values(_EVENT)
    bad = (told["kind"] != WORD) | (told["word_told"] != told["word"]) | (told["start_told"] != told["start"])
    bad |= ~told["count"].between(1, told["offered"]) | told.duplicated([*_WINDOW, "count"])
    bad |= told.groupby([*_WINDOW, "router"])["count"].diff() <= 0
    text = (
        "result of router {router} offset {offset} position {position}: kind {kind}, word {word_told!r} in window"
        " {start_told} with count {count}; expected word {word!r} in window {start}, counts 1..{offered}, each once, in"
        " event order"
    )
    yield from lines(told, bad, text)


def _wrong_part(workload: "WordCount", part: pd.DataFrame) -> Iterator[str]:
    home = units_of(part["key"].to_numpy(np.int64), workload.key_groups, workload.bins)
    lengths = [part[name].str.len() for name in ("words", "starts", "counts")]
    odd = (part["unit"] != home) | (lengths[0] == 0) | (lengths[0] != lengths[1]) | (lengths[0] != lengths[2])
    text = (
        "final state of key {key} in unit {unit}, slot {slot}: expected unit {home}, and words with starts and counts"
    )
    yield from lines(part.assign(home=home), odd, text)


def _entries(part: pd.DataFrame) -> pd.DataFrame:
    """The final state, a row for each word and window: columns unit, key, word, start, count."""
    columns: dict[str, Any] = {"words": "word", "starts": "start", "counts": "count"}
    whole = part[part["words"].str.len() == part["starts"].str.len()]
    whole = whole[whole["words"].str.len() == whole["counts"].str.len()]
    entries = whole[["unit", "key", *columns]].explode([*columns]).rename(columns=columns).dropna()
    return entries.astype({"start": np.int64, "count": np.int64})


def _wrong_windows(offered: pd.DataFrame, found: pd.DataFrame) -> Iterator[str]:
    found = found[[*_WINDOW, "count"]]
    what = "word {word!r} of key {key} in window {start:.0f} "
    yield from lines(found, found.duplicated(_WINDOW), what + "was told twice, or told and is in the final state")
    both = offered.merge(found, on=_WINDOW, how="outer", indicator="side")
    text = what + "was neither told nor is in the final state; expected count {offered:.0f}"
    yield from lines(both, both["side"] == "left_only", text)
    yield from lines(both, both["side"] == "right_only", what + "has count {count:.0f}, but never came")
    text = what + "has count {count:.0f} in the end, expected {offered:.0f}"
    yield from lines(both, (both["side"] == "both") & (both["count"] != both["offered"]), text)


def _wrong_timers(parts: list[pd.DataFrame], times: Times, window_us: int) -> Iterator[str]:
    """One line for each window of the final state without a timer, and for each timer without a window."""
    timers = times.timers_of(EVENT)[["unit", "key", "time"]]
    left = pd.concat([*parts, timers[:0]])
    due = left.assign(time=left["start"] + window_us if len(left) else 0)[["unit", "key", "time"]].drop_duplicates()
    both = due.merge(timers, how="outer", indicator="side")
    text = "final state of key {key} in unit {unit}: "
    yield from lines(both, both["side"] == "left_only", text + "a window has no timer, set to {time}")
    yield from lines(
        both, both["side"] == "right_only", text + "a timer is set to {time}, and there is no window for it"
    )
