"""The words of a text file."""

import re
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from keyshift.errors import BadInput

_WORD = re.compile(r"\w+")


def read(path: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct words of a file in lower case, and the number of each of its words, in their order.

    Memory: the distinct words, and four bytes for each word. Raises BadInput if the file cannot be read, has no word,
    or is not UTF-8 throughout.
    """
    numbers: dict[str, int] = {}
    found = array("i")
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                for word in _WORD.findall(_decoded(path, number, line).lower()):
                    found.append(numbers.setdefault(word, len(numbers)))
    except OSError as error:
        raise BadInput(f"text = {path!r}: cannot be read ({error.strerror}); give a text file in UTF-8") from None
    if not found:
        raise BadInput(f"text = {path!r}: there is no word in it; give a text file in UTF-8 with at least one")
    return list(numbers), np.frombuffer(found, np.int32)


def _decoded(path: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise BadInput(
            f"text = {path!r}: line {number}, byte {error.start + 1} is 0x{byte:02x}, which is not UTF-8 there; convert"
            " the file, e.g. with iconv"
        ) from None
