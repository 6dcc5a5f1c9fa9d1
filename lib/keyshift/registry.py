"""Strategies, workloads, state backends and order protocols by name. One line registers, one error explains."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from keyshift.model.errors import BadInput

T = TypeVar("T")
N = TypeVar("N", int, float)


def unknown(kind: str, name: Any, known: list[str]) -> BadInput:
    """The error for a name that is not known: says the nearest known name and all of them."""
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}known: {', '.join(known) or 'none'}")


_AS_JSON = {"True": "true", "False": "false", "None": "null"}  # as Python writes them, and notebooks


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """What ``--set name=value`` gives, each value as JSON (or True, False, None) or else as text.

    Raises BadInput if there is no ``=``, or a name is given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, raw = pair.partition("=")
        if not equals:
            raise BadInput(f"--set {pair!r}: expected name=value")
        value: Any = raw
        with suppress(ValueError, RecursionError):  # it may be nested too deep
            value = json.loads(_AS_JSON.get(raw, raw))
        if name in values:
            raise BadInput(f"{name} is given twice, as {values[name]!r} and as {value!r}; leave one out")
        values[name] = value
    return values


def by_name(
    parameter: str, text: str, kind: str, known: Sequence[str], number: Callable[[str], N], least: N, most: N, what: str
) -> dict[str, N]:
    """Read ``name:number,name:number``, the names of a ``kind`` of things. ``what`` says what each number must be, from
    ``least`` to ``most``. Raises BadInput.
    """
    found: dict[str, N] = {}
    for part in text.split(",") if text else ():
        name, _, said = part.strip().partition(":")
        try:
            if not least <= (each := number(said)) <= most:
                raise ValueError
        except ValueError:
            raise BadInput(f"{parameter} = {text!r}: {part.strip()!r} must be a {kind} and {what}") from None
        require_new(parameter, text, kind, name, known, found)
        found[name] = each
    return found


def require_new(parameter: str, text: str, kind: str, name: str, known: Sequence[str], found: Collection[str]) -> None:
    """Raise BadInput if ``text`` names what is not ``known``, or was ``found`` in it before."""
    if name not in known:
        raise BadInput(f"{parameter} = {text!r}: {unknown(kind, name, list(known))}")
    if name in found:
        raise BadInput(f"{parameter} = {text!r}: {kind} {name} is there twice; leave one out")


class Registry(Generic[T]):
    """An ordered mapping name -> thing, whose lookup error helps."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._defined: set[str] = set()

    def register(self, name: str, thing: T) -> T:
        """Add ``thing`` under ``name``. Raises ValueError if the name is taken."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = thing
        return thing

    def define(self, name: str, thing: T) -> T:
        """Add what is not of the library, or replace what was defined by that name: a cell may run again.

        Raises BadInput if the name is no word, or belongs to the library.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise BadInput(f"{self.kind} {name!r}: a name is of lower-case letters, digits and _")
        if name in self._entries and name not in self._defined:
            raise BadInput(f"{self.kind} {name!r} is of the library: choose another name")
        self._defined.add(name)
        self._entries[name] = thing
        return thing

    def defined(self) -> dict[str, T]:
        """What was defined, by name: other processes have only what is registered."""
        return {name: thing for name, thing in self._entries.items() if name in self._defined}

    def get(self, name: str) -> T:
        """The thing registered under ``name``. Raises BadInput naming the nearest and all known names."""
        if name not in self.names():  # a notebook may give what is no text, and has no hash
            raise unknown(self.kind, name, self.names())
        return self._entries[name]

    def of_library(self, name: str) -> T:
        """Do as ``get``, for a kind that does not travel: raises BadInput for what was defined here, too."""
        if name in self._defined:
            raise BadInput(
                f"{self.kind} {name!r} was defined here, and slots know the library's alone; make it a file there"
            )
        return self.get(name)

    def names(self) -> list[str]:
        """All names, in the order they were registered."""
        return list(self._entries)

    def items(self) -> Iterator[tuple[str, T]]:
        """Pairs of name and thing, in the order they were registered."""
        return iter(self._entries.items())
