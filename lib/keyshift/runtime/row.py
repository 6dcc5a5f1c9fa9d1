"""What a router says to a slot."""

from typing import Any, NamedTuple

# Events; nothing but the time; the router has switched; it stops at a savepoint; it has switched, at a snapshot.
KINDS = range(5)
DATA, TICK, BARRIER, SAVEPOINT, SNAPSHOT = KINDS


class Row(NamedTuple):
    """One row: of ``router``, routed under ``version``, made from the frame at ``offset`` of its partition.

    ``watermark``: microseconds, of that frame; 0 says nothing. ``payload``: events, or the name of
    the savepoint or snapshot as bytes.
    """

    kind: int
    router: int
    version: int
    offset: int
    watermark: int
    payload: Any = b""
