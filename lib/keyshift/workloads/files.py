"""Files that users name: parameters with a path, and lines of text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

from pydantic import AfterValidator, PlainSerializer

from keyshift.model.errors import BadInput


def _absolute(path: str) -> str:
    if "\0" in path:
        raise ValueError("must be the path of a file, which has no NUL byte")
    return str(Path(path).absolute()) if path else ""


def shown(path: str) -> str:
    """A path without the folders of this machine: from the working directory, or the file's name if it is not there."""
    given, here = Path(path), Path.cwd()
    below = given.is_relative_to(here) and here.parent != here  # everything is below the root
    return str(given.relative_to(here)) if below else given.name


# Absolute from when it is checked: who reads the file may have another working directory. What goes into results, in
# JSON mode, is without the folders of this machine.
InputFile = Annotated[
    str, AfterValidator(_absolute), PlainSerializer(lambda path: path and shown(path), when_used="json")
]


def input_files(model: Any) -> set[str]:
    """The parameters of a pydantic model that are an ``InputFile``, by name."""
    _, *marks = get_args(InputFile)
    return {name for name, field in model.model_fields.items() if all(mark in field.metadata for mark in marks)}


@contextmanager
def new_file(what: str, path: Path) -> Iterator[BinaryIO]:
    """Write a new file. Nothing is left of one that is not completed: it might pass as whole. ``what``: it, in words.

    Raises BadInput if there is such a file, or none can be written there.
    """
    try:
        out = path.open("xb")
        try:
            with out:
                yield out
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise BadInput(f"{what}: cannot be written ({error.strerror}); name a new file") from None


def lines(parameter: str, path: str) -> Iterator[str]:
    """The lines of a text file in UTF-8, without their ends. ``parameter``: whose value the path is.

    Raises BadInput if the file cannot be read or is not UTF-8, naming line and byte.
    """
    try:
        with Path(path).open("rb") as raw:
            for number, line in enumerate(raw, 1):
                text = line.decode().rstrip("\r\n")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except OSError as error:
        said = f"{parameter} = {path!r}: cannot be read ({error.strerror}); give a text file in UTF-8"
        raise BadInput(said) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadInput(
            f"{parameter} = {path!r}: line {number}, byte {error.start + 1} is 0x{byte:02x}, which is not UTF-8 there; "
            "convert the file, e.g. with iconv"
        ) from None
