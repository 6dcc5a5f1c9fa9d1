"""Word count: how often each word has come, in all or in tumbling windows. Words of a text file, or made from a seed.

A word is a text, and its key a hash of that, so two words may share a key. The state of a key therefore has the words
themselves. The event time of a word is its ``t``, so none is late, and what each window counts depends on the input
alone.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import pandas as pd
import pyarrow as pa
from pydantic import Field

from keyshift.frames import keys_of
from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.files import InputFile
from keyshift.workloads.keyed import Grouped
from keyshift.workloads.times import Times
from keyshift.workloads.wordcount import oracle, text
from keyshift.workloads.wordcount.operator import EVENTS, RESULT_FIELDS, WordCountOperator
from keyshift.workloads.wordcount.source import WORDS, DrawnWords, TextWords


class WordCount(Grouped):
    """Parameters of the workload. A key exists as soon as a word of it has come."""

    name: ClassVar[str] = "wordcount"
    summary: ClassVar[str] = "count words, in all or in tumbling windows: of a text file, or made from a seed"

    text: InputFile = Field(
        default="", description="text file, UTF-8, over and over again; empty: words made from the seed"
    )
    words: int = Field(default=20_000, ge=1, le=10**7, description="number of distinct words, if there is no text")
    skew: float = Field(
        default=0.8, ge=0, le=10, description="Zipf exponent over key groups, if there is no text; 0 is uniform"
    )
    window_ms: int = Field(default=0, ge=0, description="length of a window, in milliseconds; 0: count in all")

    @property
    def window_us(self) -> int:
        """Length of a window; 0: none."""
        return self.window_ms * 1000

    @property
    def sources(self) -> tuple[Source, ...]:
        """Words, one per event."""
        if self.text:
            return (Source("words", WORDS, partial(TextWords, self), partial(text.read, self.text)),)
        return (Source("words", WORDS, partial(DrawnWords, self)),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The counter, behind routers that give each word its key."""
        return (KeyedStage("counter", EVENTS, RESULT_FIELDS, partial(WordCountOperator, self.window_us), with_keys),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong`` and ``oracle``."""
        return oracle.wrong(self, events, results, final, times)


def with_keys(words: pa.RecordBatch) -> pa.RecordBatch:
    """Words with their keys; those of few distinct words cost little."""
    return pa.RecordBatch.from_arrays([keys_of(words["word"]), words["t"], words["word"]], schema=EVENTS)
