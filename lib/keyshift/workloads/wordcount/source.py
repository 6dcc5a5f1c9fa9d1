"""What goes into ``wordcount``."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.frames import keys_of
from keyshift.keys import units_of
from keyshift.workloads.keyed import KeyDraw
from keyshift.workloads.wordcount import text

if TYPE_CHECKING:
    from keyshift.workloads.wordcount import WordCount

WORDS = pa.schema([pa.field("t", pa.int64()), pa.field("word", pa.string())])


class TextWords:
    """The words of a file, over and over again. Every router begins at another one; see ``Partition``."""

    def __init__(self, workload: "WordCount", router: int) -> None:
        words, self._numbers = text.read(workload.text)
        self._words = pa.array(words, pa.string())
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
        self._words = pa.array([word(number) for number in range(workload.words)], pa.string())
        groups = units_of(keys_of(self._words).to_numpy(), workload.key_groups)
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
