"""Word count: how often each word has come, in all or in tumbling windows. Words of a text file, or made from a seed.

A word is a text, and its key a hash of that, so two words may share a key. The state of a key therefore has the words
themselves. The event time of a word is its ``t``, so none is late, and what each window counts depends on the input
alone.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field, model_validator

from keyshift.model.errors import BadInput
from keyshift.model.frames import EVENT_FIELDS, keys_of
from keyshift.model.keys import UnitId, units_of
from keyshift.state import UnitState
from keyshift.state.timers import EVENT
from keyshift.workloads import files
from keyshift.workloads.contract import KeyedStage, Operator, Source
from keyshift.workloads.keyed import MOST_MS, Grouped, KeyDraw
from keyshift.workloads.operators import ResultMaker
from keyshift.workloads.tables import RESULT, Tables
from keyshift.workloads.times import Times

_WORD = re.compile(r"\w+")


def read_words(path: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct words of a file in lower case, and the number of each of its words, in their order.

    Memory: the distinct words, and four bytes for each word. Raises BadInput if the file cannot be read, has no word,
    or is not UTF-8 throughout.
    """
    numbers: dict[str, int] = {}
    found = array("i")
    for line in files.lines("text", path):
        for word in _WORD.findall(line.lower()):
            found.append(numbers.setdefault(word, len(numbers)))
    if not found:
        raise BadInput(f"text = {path!r}: there is no word in it; give a text file in UTF-8 with at least one")
    return list(numbers), np.frombuffer(found, np.int32)


WORDS = pa.schema([pa.field("t", pa.int64()), pa.field("word", pa.string())])


class TextWords:
    """The words of a file, over and over again. Every router begins at another one; see ``Partition``."""

    def __init__(self, workload: "WordCount", router: int) -> None:
        self._words, self._numbers = workload.words_read
        self._next = int(np.random.default_rng((workload.seed, router)).integers(len(self._numbers)))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` words, whatever was taken at once before."""
        places = np.arange(self._next, self._next + len(times)) % len(self._numbers)
        self._next += len(times)
        words = self._words.take(pa.array(self._numbers[places]))
        return pa.RecordBatch.from_arrays([pa.array(times), words], schema=WORDS)


class DrawnWords:
    """Words made of letters that say their number; key groups as in every keyed workload. See ``Partition``."""

    def __init__(self, workload: "WordCount", router: int) -> None:
        self._words, groups = workload.words_made
        self._draw = KeyDraw(groups, workload.key_groups, workload.skew, (workload.seed, router))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` words, whatever was taken at once before."""
        words = self._words.take(pa.array(self._draw.draw(len(times))))
        return pa.RecordBatch.from_arrays([pa.array(times), words], schema=WORDS)


_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvwz" for vowel in "aeiou"]


def word(number: int) -> str:
    """The word of a number: its digits as syllables, so other numbers have other words."""
    syllables = ""
    while True:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables += _SYLLABLES[digit]
        if not number:
            return syllables


WORD, WINDOW = 0, 1  # kinds of results: of a word that came, and of one in a window that closed

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("word", pa.string())])
RESULT_FIELDS = (
    pa.field("kind", pa.int8()),  # WORD or WINDOW; for a window, t is its end
    pa.field("word", pa.string()),
    pa.field("start", pa.int64()),  # of the window; 0 if there is none
    pa.field("count", pa.int64()),  # of the word so far, in the window if there is one; this one included
)


class WordCountOperator(Operator):
    """The state of a key is three lists side by side: an element for each word and window of it; see ``Operator``.

    ``window_us``: length of a window; 0: one that never ends.
    """

    state_schema = pa.schema(
        [
            pa.field("words", pa.list_(pa.string())),
            pa.field("starts", pa.list_(pa.int64())),
            pa.field("counts", pa.list_(pa.int64())),
        ]
    )

    def __init__(self, window_us: int) -> None:
        self._window_us, self.uses_time = window_us, window_us > 0
        self._results = ResultMaker(RESULT_FIELDS)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per word."""
        columns = (events[name].to_pylist() for name in ("unit", "key", "t", "word"))
        rows = [self._count(state_of(unit), *event) for unit, *event in zip(*columns, strict=True)]
        return self._results.of_events(events, rows)

    def _count(self, state: UnitState, key: int, t: int, word: str) -> tuple[Any, ...]:
        start = t - t % self._window_us if self._window_us else 0
        words, starts, counts = state.values[key] or ([], [], [])
        for i, known in enumerate(words):
            if known == word and starts[i] == start:
                count = counts[i] + 1
                state.values[key] = words, starts, [*counts[:i], count, *counts[i + 1 :]]
                return WORD, word, start, count
        state.values[key] = [*words, word], [*starts, start], [*counts, 1]
        if self._window_us:
            state.timers.set(EVENT, start + self._window_us, key)
        return WORD, word, start, 1

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """One result per word of each window that closes. A key without an open window is forgotten."""
        rows: list[tuple[Any, ...]] = []
        for state in states:
            for end, key in state.timers.due(EVENT, state.timers.watermark):
                entries = list(zip(*(state.values[key] or ([], [], [])), strict=True))
                left = [entry for entry in entries if entry[1] + self._window_us != end]
                rows += [(key, end, WINDOW, *entry) for entry in entries if entry[1] + self._window_us == end]
                if left:
                    words, starts, counts = map(list, zip(*left, strict=True))
                    state.values[key] = words, starts, counts
                else:
                    state.delete(key)
        return self._results.of_timers(rows)


# What must come out, in SQL over the words that went in: not by the code of the operator. ``$window``: its length in
# microseconds; ``$reached``: how far all routers had come. A word has one key, but a result that mixes them up is to be
# seen.

_OFFERED = "SELECT key, word, start, count(*) AS offered FROM events GROUP BY ALL"
_WRONG_ANSWERS = """
    SELECT router, "offset", "position", a.kind, a.word AS word_told, a.start AS start_told, a.count, e.word, e.start,
           o.offered
    FROM answers a JOIN events e USING (router, "offset", "position")
    JOIN offered o ON o.key = e.key AND o.word = e.word AND o.start = e.start
    QUALIFY a.kind != 0 OR a.word != e.word OR a.start != e.start OR a.count NOT BETWEEN 1 AND offered
        OR row_number() OVER (PARTITION BY e.key, e.word, e.start, a.count ORDER BY router, "offset", "position") > 1
        OR a.count <= lag(a.count) OVER (PARTITION BY e.key, e.word, e.start, router ORDER BY "offset", "position")
    ORDER BY router, "offset", "position"
"""
_STATE = """
    CREATE TEMP TABLE state
    (unit INT, home INT, slot INT, key BIGINT, words VARCHAR[], starts BIGINT[], counts BIGINT[])
"""
_PUT_IN = "INSERT INTO state SELECT unit, home, slot, key, words, starts, counts FROM part"
_MISPLACED = """
    SELECT * FROM state
    WHERE unit != home OR len(words) = 0 OR len(words) != len(starts) OR len(words) != len(counts)
"""
_ENTRIES = """
    SELECT unit, key, unnest(words) AS word, unnest(starts) AS start, unnest(counts) AS count FROM state
    WHERE len(words) = len(starts) AND len(words) = len(counts)
"""
_WRONG_FIRED = """
    SELECT * FROM fired WHERE kind != 1 OR t != start + $window OR start + $window > $reached
"""
_WRONG_WINDOWS = """
    WITH found AS (
        SELECT key, word, start, count FROM fired UNION ALL SELECT key, word, start, count FROM entries
    )
    SELECT key, word, start, offered, count, CASE
        WHEN row_number() OVER (PARTITION BY key, word, start) > 1
        THEN 'was told twice, or told and is in the final state'
        WHEN count IS NULL THEN 'was neither told nor is in the final state; expected count {offered}'
        WHEN offered IS NULL THEN 'has count {count}, but never came'
        WHEN count != offered THEN 'has count {count} in the end, expected {offered}'
    END AS wrong
    FROM found FULL JOIN offered USING (key, word, start) QUALIFY wrong IS NOT NULL ORDER BY ALL
"""
_WRONG_TIMERS = """
    WITH due AS (SELECT DISTINCT unit, key, start + $window AS time, true AS opened FROM entries)
    SELECT unit, key, time, CASE
        WHEN t.there IS NULL THEN 'a window has no timer, set to {time}'
        WHEN opened IS NULL THEN 'a timer is set to {time}, and there is no window for it'
    END AS wrong
    FROM due FULL JOIN timers t USING (unit, key, time) WHERE wrong IS NOT NULL ORDER BY ALL
"""


class WordCount(Grouped):
    """Parameters of the workload. A key exists as soon as a word of it has come."""

    name: ClassVar[str] = "wordcount"
    summary: ClassVar[str] = "count words, in all or in tumbling windows: of a text file, or made from a seed"

    text: files.InputFile = Field(
        default="", description="text file, UTF-8, over and over again; empty: words made from the seed"
    )
    words: int = Field(default=20_000, ge=1, le=10**7, description="number of distinct words, if there is no text")
    skew: float = Field(
        default=0.8, ge=0, le=10, description="Zipf exponent over key groups, if there is no text; 0 is uniform"
    )
    window_ms: int = Field(
        default=0, ge=0, le=MOST_MS, description="length of a window, in milliseconds; 0: count in all"
    )

    @model_validator(mode="before")
    @classmethod
    def _text_has_no_skew(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Set no skew for a text: nobody knows the key groups of its words, whatever is said of drawn ones."""
        return values | {"skew": 0.0} if values.get("text") else values

    @property
    def window_us(self) -> int:
        """Length of a window; 0: none."""
        return self.window_ms * 1000

    @cached_property
    def words_read(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """The words of the text, read once for all routers: see ``read_words``."""
        words, numbers = read_words(self.text)
        return pa.array(words, pa.string()), numbers

    @cached_property
    def words_made(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """The words made if there is no text, once for all routers, and the key group of each."""
        words = pa.array([word(number) for number in range(self.words)], pa.string())
        return words, units_of(keys_of(words).to_numpy(), self.key_groups)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Words, one per event."""
        if self.text:
            read, of_text = partial(read_words, self.text), ("seed", "text")
            return (Source("words", WORDS, partial(TextWords, self), read, map=with_keys, drawn_with=of_text),)
        drawn_with = "seed", "text", "words", "skew", "key_groups"
        return (Source("words", WORDS, partial(DrawnWords, self), map=with_keys, drawn_with=drawn_with),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The counter, behind routers that give each word its key."""
        return (KeyedStage("counter", EVENTS, RESULT_FIELDS, partial(WordCountOperator, self.window_us)),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``. One line per wrong result, window, and word of the final state.

        The event time of a word is its ``t``, and no watermark is beyond a word that is still to come. So the count of
        each word in each window is that of the input, whatever the watermarks were; they say only which windows have
        closed by the end.
        """
        window_us = self.window_us
        start = events["t"] - events["t"] % window_us if window_us else 0
        of_event = results["position"] >= 0
        ask = Tables({"window": window_us, "reached": times.least if times is not None else 0})
        ask.add(events=events.assign(start=start), answers=results[of_event], fired=results[~of_event])
        ask.derive(offered=_OFFERED)
        text = RESULT + ": kind {kind}, word {word_told!r} in window {start_told} with count {count}; expected word"
        text += " {word!r} in window {start}, counts 1..{offered}, each once, in event order"
        yield from ask.lines(_WRONG_ANSWERS, text)

        ask(_STATE)
        for part in final:
            ask(_PUT_IN, part=part.assign(home=self.units_of(part["key"])))
        text = "final state of key {key} in unit {unit}, slot {slot}: "
        yield from ask.lines(_MISPLACED, text + "expected unit {home}, and words with starts and counts")
        ask.derive(entries=_ENTRIES)
        text = "timer of key {key} set to {t} tells of word {word!r} in window {start}, kind {kind}: expected kind"
        text += f" {WINDOW} at {window_us} behind the start, not later than all routers had come"
        yield from ask.lines(_WRONG_FIRED, text)
        yield from ask.lines(_WRONG_WINDOWS, "word {word!r} of key {key} in window {start} {wrong}")
        if window_us and times is not None:
            text = "final state of key {key} in unit {unit}: {wrong}"
            yield from ask.lines(_WRONG_TIMERS, text, timers=times.timers_of(EVENT).assign(there=True))


def with_keys(words: pa.RecordBatch) -> pa.RecordBatch:
    """Words with their keys; those of few distinct words cost little."""
    return pa.RecordBatch.from_arrays([keys_of(words["word"]), words["t"], words["word"]], schema=EVENTS)
