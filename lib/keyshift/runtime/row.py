"""What a router says to a slot."""

from typing import Any, NamedTuple

from keyshift.keys import Behind

# Events; nothing but the time; the router has switched; it is at a savepoint, and stops there; or goes on behind it.
DATA, TICK, BARRIER, SAVEPOINT, SNAPSHOT = range(5)
BEHIND: dict[int, Behind] = {SAVEPOINT: "stop", SNAPSHOT: "go on"}


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
