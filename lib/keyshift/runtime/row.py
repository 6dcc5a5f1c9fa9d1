"""What a router says to a slot."""

from typing import Any, NamedTuple

DATA, TICK, BARRIER, SAVEPOINT = range(4)  # Events; nothing but the time; the router has switched; it is at a savepoint


class Row(NamedTuple):
    """One row: of ``router``, routed under ``version``, made from the frame at ``offset`` of its partition.

    ``watermark``: microseconds, of that frame; 0 says nothing. ``payload``: events, or the savepoint's name as bytes.
    """

    kind: int
    router: int
    version: int
    offset: int
    watermark: int
    payload: Any = b""
