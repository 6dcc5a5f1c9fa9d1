"""A workload of texts: lines go in, routers make words of them, and only long words have a result."""

from collections import Counter

import numpy as np
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS, keys_of
from keyshift.model.keys import units_of
from keyshift.workloads import KeyedStage, Source

WORDS = ("a", "to", "key", "keys", "state", "moves", "while", "the", "job", "runs")
LONG = 3  # letters of a word that has a result
LINES = pa.schema([pa.field("t", pa.int64()), pa.field("line", pa.string())])
EVENTS = pa.schema([*EVENT_FIELDS, pa.field("word", pa.string())])
STATE = pa.schema([pa.field("count", pa.int64()), pa.field("word", pa.string())])
RESULT_FIELDS = (pa.field("count", pa.int64()), pa.field("word", pa.string()))


def words(lines: pa.RecordBatch) -> pa.RecordBatch:
    """None, one or several of each line; the key of a word is a hash of it."""
    pairs = [
        (t, word) for t, line in zip(*(c.to_pylist() for c in lines.columns), strict=True) for word in line.split()
    ]
    t, found = zip(*pairs, strict=True) if pairs else ((), ())
    texts = pa.array(found, pa.string())
    return pa.RecordBatch.from_arrays([keys_of(texts), pa.array(t, pa.int64()), texts], schema=EVENTS)


def is_long(events: pa.RecordBatch):
    return np.array([len(word) >= LONG for word in events["word"].to_pylist()], bool)


class Lines:
    def __init__(self, seed, router):
        self._random = np.random.default_rng((seed, router))

    def take(self, times):
        lines = [
            " ".join(WORDS[i] for i in self._random.integers(0, len(WORDS), self._random.integers(4))) for _ in times
        ]
        return pa.RecordBatch.from_arrays([pa.array(times), pa.array(lines, pa.string())], schema=LINES)


class CountsWords:
    state_schema, uses_time = STATE, False

    def initial(self, unit, state):
        """No word is known in advance."""

    def process(self, events, state_of):
        counts = []
        for unit, key, word in zip(*(events[c].to_pylist() for c in ("unit", "key", "word")), strict=True):
            values = state_of(unit).values
            count, _ = values[key] or (0, word)
            values[key] = count + 1, word
            counts.append(count + 1)
        columns = [*(events[c] for c in ("key", "t", "position")), pa.array(counts, pa.int64()), events["word"]]
        fields = [*EVENT_FIELDS, pa.field("position", pa.int32()), *RESULT_FIELDS]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)).filter(pa.array(is_long(events)))

    def advance(self, states):
        """Nothing waits for a time here."""


class WordCount:
    name, summary = "wordcount", "count the words of lines"
    key_groups, bins, skew, seed = 8, 2, 0.0, 5

    @property
    def sources(self):
        return (Source("lines", LINES, lambda router: Lines(self.seed, router)),)

    @property
    def stages(self):
        return (KeyedStage("words", EVENTS, RESULT_FIELDS, CountsWords, words, is_long),)

    def wrong(self, events, results, final, times=None):
        offered = Counter(events["word"])
        for word, given in results.groupby("word"):
            if sorted(given["count"]) != list(range(1, offered[word] + 1)):
                yield f"results of {word}: {sorted(given['count'])}, expected 1..{offered[word]}"
        left = Counter()
        for part in final:
            homes = units_of(part["key"].to_numpy(), self.key_groups, self.bins)
            for unit, home, word, count in zip(part["unit"], homes, part["word"], part["count"], strict=True):
                left[word] += count
                if unit != home:
                    yield f"{word} is in unit {unit}, expected {home}"
        if left != offered:
            yield f"final state {left}, expected {offered}"
