"""How a message travels from one process to another: a dataclass, as a JSON object in one line.

A tuple or a set is a list there. Where one of several kinds may come, each has a field ``kind`` by which it is known.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import TypeAdapter

codec: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # made when it is first needed: it takes milliseconds


def encode(message: Any) -> bytes:
    """Encode ``message`` as ``decode`` reads it, with its class or a union that has it."""
    return codec(type(message)).dump_json(message)


def decode(kind: Any, data: bytes | str) -> Any:
    """The inverse of ``encode``. Raises ValueError if ``data`` is no message of this kind."""
    return codec(kind).validate_json(data)
