"""The words of a text file."""

import re
from array import array

import numpy as np
import numpy.typing as npt

from keyshift.errors import BadInput
from keyshift.workloads.files import lines

_WORD = re.compile(r"\w+")


def read(path: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct words of a file in lower case, and the number of each of its words, in their order.

    Memory: the distinct words, and four bytes for each word. Raises BadInput if the file cannot be read, has no word,
    or is not UTF-8 throughout.
    """
    numbers: dict[str, int] = {}
    found = array("i")
    for line in lines("text", path):
        for word in _WORD.findall(line.lower()):
            found.append(numbers.setdefault(word, len(numbers)))
    if not found:
        raise BadInput(f"text = {path!r}: there is no word in it; give a text file in UTF-8 with at least one")
    return list(numbers), np.frombuffer(found, np.int32)
