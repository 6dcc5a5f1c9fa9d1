"""Numbers that name something, each with a type of its own: one is not taken for another. Users of units, slots and
assignments get them from ``model.keys``; this is for code that must not know those.
"""

from typing import NewType

UnitId = NewType("UnitId", int)
SlotId = NewType("SlotId", int)
RouterId = NewType("RouterId", int)
Version = NewType("Version", int)  # of an assignment
NO_VERSION = Version(0)
