"""What a slot's machine wants to be done: messages to the coordinator and other slots, and work on its own state."""

from dataclasses import dataclass

from keyshift.model.keys import RouterId, SlotId, UnitId, Version


@dataclass(frozen=True, slots=True)
class Prepared:
    """To the coordinator: this slot has a queue open for every unit that arrives with ``version``."""

    version: Version


@dataclass(frozen=True, slots=True)
class Send:
    """Give the state of ``unit`` to ``destination``: for good, or lent for the records of ``routers`` only."""

    unit: UnitId
    destination: SlotId
    version: Version
    routers: frozenset[RouterId] | None = None
    hop: int = 1  # how often the unit has changed hands in this step, this time included


@dataclass(frozen=True, slots=True)
class Open:
    """To ``destination``: ``unit``, which was lent, is yours for good. Is acknowledged like state."""

    unit: UnitId
    destination: SlotId
    version: Version


@dataclass(frozen=True, slots=True)
class Request:
    """To ``slot``: a record of ``router`` waits here for ``unit``, whose state is yours to give (or to give back).

    ``router`` is -1 if the queues are too long, whoever filled them. ``hop``: how often the unit had changed hands, as
    far as this slot knows. What comes late, or twice, tells by it.
    """

    unit: UnitId
    slot: SlotId
    version: Version
    router: RouterId
    hop: int = 0


@dataclass(frozen=True, slots=True)
class Hurry:
    """``unit`` is among those to be sent, and somebody waits for it: send it next."""

    unit: UnitId


@dataclass(frozen=True, slots=True)
class Complete:
    """Fetch all keys of the partial ``unit`` that are still elsewhere."""

    unit: UnitId


@dataclass(frozen=True, slots=True)
class Installed:
    """To the coordinator: all ``units`` that arrived with ``version`` are installed and their queues drained."""

    version: Version
    units: frozenset[UnitId]


@dataclass(frozen=True, slots=True)
class Released:
    """To the coordinator: all ``units`` that left with ``version`` were acknowledged and are forgotten."""

    version: Version
    units: frozenset[UnitId]


@dataclass(frozen=True, slots=True)
class Freeze:
    """All routers stand at the savepoint and all state is here: write it down. Nothing comes behind it."""

    savepoint: str


@dataclass(frozen=True, slots=True)
class Capture:
    """All state is here, as it is at the ``snapshot``, and what was kept back behind goes on: hold on to it.

    To the coordinator: this slot is behind the switch to ``version``.
    """

    snapshot: str
    version: Version


@dataclass(frozen=True, slots=True)
class Skip:
    """The ``snapshot`` does not happen here, and what was kept back for it goes on. To the coordinator: as above."""

    snapshot: str
    version: Version


SlotEffect = Prepared | Send | Open | Request | Hurry | Complete | Installed | Released | Freeze | Capture | Skip
