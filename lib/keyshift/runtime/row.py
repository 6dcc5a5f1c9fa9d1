"""What a router says to a slot."""

from typing import Any, NamedTuple

from keyshift.model.ids import Version

# Events; nothing but the time; the router has switched; it stops at a savepoint; it has switched, at a snapshot; units
# whose results end here, or begin (only a slot says that, to the next stage); the state is to be written down as it is,
# and nothing else happens (only to slots that work in turns).
KINDS = range(7)
DATA, TICK, BARRIER, SAVEPOINT, SNAPSHOT, MOVED, CAPTURE = KINDS


class Row(NamedTuple):
    """One row: of ``router``, routed under ``version``, made from the frame at ``offset`` of its partition.

    ``watermark``: microseconds, of that frame; 0 says nothing. ``payload``: events, the name of the savepoint or
    snapshot as bytes, or a message ``succession.UnitsMoved``. ``chain``: of a slot that works in turns, and is a router
    of the next stage: behind the turn that the row is of, see ``turn.Turn``.
    """

    kind: int
    router: int
    version: Version
    offset: int
    watermark: int
    payload: Any = b""
    chain: int = 0
