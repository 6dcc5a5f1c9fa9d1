"""Takes out of a text what tells whose machine it was: addresses, host and user names, paths, credentials.

Errors of Spark and its friends are full of those. What is stored with a run as prose is read by others, too.
"""

import getpass
import os
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Any

_NO_SOURCE = r"(?<!\.py)(?<!\.pyx)(?<!\.pxi)(?<!\.java)(?<!\.scala)"  # whose line is no port
_NAME = r"[\w.+@~-]+"
_QUOTE = r"(?:\\?[\"']|&quot;|&#39;)"
_CREDENTIAL = r"password|passwd|secret|token|authorization|(?:access|api)[_.-]?key"
_CELLS = r"(?:[ \t]|</?t[dh]>\s*)+"  # between the cells of a row, in text or in HTML
_Rule = tuple[str, str | Callable[[re.Match[str]], str]]
_RULES: tuple[_Rule, ...] = (
    (r"(://)[^/\s\"'<>]+@", r"\1<hidden>@"),
    (
        rf"(?i)\b([\w.-]*(?:{_CREDENTIAL})[\w.-]*{_QUOTE}?\s*[=:]\s*)"
        r"(?:\"[^\"\n]+\"|'[^'\n]+'|(?:(?:bearer|basic)\s+)?[^\s,<]+)",
        r"\1<hidden>",
    ),
    (r"\b([Bb]earer\s+)[\w.~+/=-]{8,}", r"\1<hidden>"),
    (r"(?<=([\"']))(?:file:/{0,2})?~?(?:/[^/\"'\n]+){2,}/?(?=\1)", "<path>"),  # there may be spaces in it
    (rf"(?<![\w./<~])(?:file:/{{0,2}})?~?(?:/{_NAME}){{2,}}/?", "<path>"),
    (rf"(?<![\w./<])~/{_NAME}", "<path>"),
    (r"\b[A-Za-z]:\\[^\s\"']+", "<path>"),
    (  # versions of Java may have four numbers, too
        rf"(\b[Jj]ava(?:{_CELLS}\d[\d.]*)+)|(?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d+)?(?![\w.]*\d)",
        lambda found: found[1] or "<address>",
    ),
    (rf"(?:(?:(?<=://)|(?<=>@))[\w-]+|\blocalhost|\b[A-Za-z][\w-]*(?:\.[\w-]+)+){_NO_SOURCE}:\d{{4,5}}\b", "<address>"),
    # The parameter of this name, in code and in a row of a table, which nothing else tells from ``name:4000``.
    (rf"(\bredis{_QUOTE}?\s*[=:]\s*{_QUOTE})[^\s\"'&\\]+", r"\1<address>"),
    (rf"\bredis(?:{_CELLS}(?:[\w.:-]+|<\w+>))+", lambda found: re.sub(r"[A-Za-z][\w.-]*:\d+", "<address>", found[0])),
    (r"\bip(?:-\d{1,3}){4}(?:\.[\w-]+)*\b", "<address>"),
    # A package, a setting of Spark, or a call is none.
    (
        r"\b(?!(?:org|com|java|jdk|scala|spark|sun)\.)(?<!\.)[\w-]+(?:\.[\w-]+)*\.(?:internal|local|localdomain|lan)"
        r"(?:\.[\w-]+)*\b(?!\.\w|\()",
        "<address>",
    ),
)
# In prose. A parameter may say 4000 events/s of the source ``control`` like this.
_BARE_NAME = (rf"\b[A-Za-z][\w-]*{_NO_SOURCE}:\d{{4,5}}\b", "<address>")
_BEGIN_OF_PATH = re.compile(r"(?:file:)?[/~]|[A-Za-z]:\\")
_SLICE = re.compile(r"\d{0,2}::\d{0,4}")  # in Python: [::-1], [1::2]; an address like that names no machine
_IPV6 = r"\[?(?<![\w:])((?:[0-9a-fA-F]{0,4}:){2,}[0-9a-fA-F]{0,4})(?![\w:])\]?(?::\d+)?"
_DATA = r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]+"  # an image: what looks like a path in it is none
_COLOUR = r"\x1b\[[0-9;]*m"  # of a terminal, in the tracebacks of notebooks
_SECRET = re.compile("(?i)password|passwd|secret|token|access_key")  # in the name of a variable of the environment
_WORDS = re.compile("<(path|address|host|user|hidden)>")
# They name nobody; ``keyshift`` is the user of the image.
_COMMON = {"localhost", "root", "user", "nobody", "jovyan", "spark", "keyshift", "path", "address", "host", "hidden"}


def anonymous(text: str) -> str:
    """``text`` with ``<path>``, ``<address>``, ``<host>``, ``<user>`` and ``<hidden>`` in place of what they name."""
    return _replaced(text, (*_RULES, _BARE_NAME))


def anonymous_output(text: str) -> str:
    """``text`` as by ``anonymous``, of what a notebook's cell shows: parameters are in it, so ``name:4000`` stays."""
    return _replaced(text, _RULES)


def anonymous_value(text: str) -> str:
    """``text`` as by ``anonymous_output``, of the value of a parameter: a path is known by how it begins."""
    return "<path>" if _BEGIN_OF_PATH.match(text) else anonymous_output(text)


def escaped(text: str) -> str:
    """``text`` for a browser, which would take the words of ``anonymous`` for tags and show nothing."""
    return _WORDS.sub(r"&lt;\1&gt;", text)


_OF_FIELDS: dict[str, Callable[[str], str]] = {
    "parameters": anonymous_value,
    "redis": anonymous,  # an address
    "papermill": anonymous_value,  # its parameters, and the paths of notebooks
    "versions": str,  # some have four numbers, as addresses have
    "machine": str,
}


def anonymous_all(value: Any, change: Callable[[str], str] = anonymous) -> Any:
    """A copy of a JSON value in which every text has gone through ``change``, or through what its field needs; the
    names of fields stay.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: anonymous_all(each, _OF_FIELDS.get(name, change)) for name, each in value.items()}
    return [anonymous_all(each, change) for each in value] if isinstance(value, list) else value


def _replaced(text: str, rules: Iterable[_Rule]) -> str:
    every: tuple[_Rule, ...] = (*_secrets(), *rules, *_of_machine())  # a name that is in a path goes with all of that
    parts = re.split(f"({_DATA}|{_COLOUR})", text)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(_IPV6, _without_address, parts[place])
        for rule, instead in every:
            parts[place] = re.sub(rule, instead, parts[place])
    return "".join(parts)


def _without_address(found: re.Match[str]) -> str:
    if _SLICE.fullmatch(found[1]):
        return found[0]
    try:  # a time of day looks like one, nearly
        IPv6Address(found[1])
    except ValueError:
        return found[0]
    return "<address>"


def _secrets() -> list[_Rule]:
    """Rules for the credentials in the environment."""
    secrets = [value for name, value in os.environ.items() if _SECRET.search(name) and len(value) > 5]
    return [(re.escape(secret), "<hidden>") for secret in secrets]


def _of_machine() -> tuple[_Rule, ...]:
    """Rules for the names of this machine and its user."""
    names = {socket.gethostname(): "<host>", socket.gethostname().partition(".")[0]: "<host>"}
    with suppress(KeyError, OSError):  # a container may run as a user without a name
        names[getpass.getuser()] = "<user>"
    return tuple(
        (rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead)
        for name, instead in names.items()
        if len(name) > 2 and name not in _COMMON
    )
