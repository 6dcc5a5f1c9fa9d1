"""The messages between the participants of a job: every node below the root of a stage, and what it holds.

A *node* has a path and the kind of its value. Those that are found by their names are in a *folder*. Values travel as
JSON: a dataclass is an object, a tuple is a list. The driver publishes ``ASSIGNMENT``, ``STEPS``, ``PLAN`` and
``RESTART``, and asks with ``SAVEPOINT``, ``MEASURE``, ``COPIES``, ``LOG`` and ``FAULT``; whoever is asked finds a new
ID there, and answers in a folder that has the ID in its path. All other nodes are the slots' and routers' own.

Who leads is in ``election`` and ``leader``, which ``Coordination.lead`` and ``wire.election`` look after, and a value
that is too long for a node is in ``parts``. Times are in microseconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast

from pydantic import Field

from keyshift.model.frames import Facts
from keyshift.model.keys import Move, SlotId, Step, UnitId, Version
from keyshift.model.markers import SlotMarker
from keyshift.model.messages import codec
from keyshift.model.packed import Packed
from keyshift.model.records import Measured, PodUsed, StepRecord, UnitCame, UnitsCame, UnitsLeft
from keyshift.ordering import Position, Record
from keyshift.protocol.coordinator import Appointment, PublishAssignment, StepPhase
from keyshift.runtime.protocol_log import LogEvent
from keyshift.runtime.succession import UnitsMoved
from keyshift.wire.faults import Fault

T = TypeVar("T")
LogEvents = tuple[LogEvent, ...]  # of a protocol log


@dataclass(frozen=True, slots=True)
class Node(Generic[T]):
    """A node. ``path``: below the root. ``kind``: of its value."""

    path: str
    kind: type[T]

    def encode(self, value: T) -> bytes:
        """Encode ``value`` as ZooKeeper keeps it; never empty."""
        return codec(self.kind).dump_json(value, by_alias=True)

    def decode(self, data: bytes) -> T:
        """The value that was encoded. Raises ValueError if it is of another kind."""
        return cast(T, codec(self.kind).validate_json(data))

    def below(self, folder: str) -> "Node[T]":
        """The same node, seen from further above."""
        return replace(self, path=f"{folder}/{self.path}")


@dataclass(frozen=True, slots=True)
class Folder(Generic[T]):
    """Nodes by their names. ``kinds``: of their values, by what is before the first dash of the name; "" is of all."""

    path: str
    kinds: Mapping[str, type[T]]

    def __getitem__(self, name: object) -> Node[T]:
        kind = self.kinds.get("") or self.kinds[str(name).split("-")[0]]
        return Node(f"{self.path}/{name}", kind)

    def below(self, folder: str) -> "Folder[T]":
        """The same folder, seen from further above."""
        return replace(self, path=f"{folder}/{self.path}")


def make_codecs() -> None:
    """Make the codecs of all that travels now: a process that is forked from this one needs no time for it."""
    for kind in (
        *(PublishAssignment, PublishedSteps, WrittenPlan, StepRecord, PhaseDone, UnitsCame, UnitsLeft),
        *(SavepointCalled, SlotSaved, RouterSaved, Writing, Unreadable, Restored, Handover, Position),
        *(CopiesWanted, CopiesClose, FaultNow, Measured, LogEvents, bool, int, str),
        *(Facts, SlotMarker, UnitsMoved, Record),
    ):
        codec(kind)


def of_slot(number: int) -> str:
    """The name of a slot's node where routers have nodes, too."""
    return f"slot-{number}"


def of_router(number: int) -> str:
    """The name of a router's node where slots have nodes, too."""
    return f"router-{number}"


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedSteps:
    """What the slots are to do; see ``protocol.PublishSteps``, but ``rest`` is how many of the plan come last.

    ``plan``: its name. If the written plan has another one, nothing of that was published yet.
    """

    version: Version
    steps: tuple[tuple[Version, Step], ...]
    rest: int
    plan: str


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """The steps of a migration, all of them, for whoever takes over from the coordinator that has made it."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class PhaseDone:
    """A slot has prepared a step and takes the barriers now, or has captured its state for a snapshot."""

    at_us: int


Acknowledgement = PhaseDone | UnitsCame | UnitsLeft

ASSIGNMENT = Node("assignment", PublishAssignment)  # for the routers
STEPS = Node("steps", PublishedSteps)  # for the slots
PLAN = Node("plan", WrittenPlan)
RESTART = Node("restart", StepRecord)  # that leads to this attempt, without what came of it
ALL_ACKS: Folder[Any] = Folder("acks", {})  # has folders, by version
_OF_PHASE: dict[str, type[Acknowledgement]] = {
    "prepared": PhaseDone,
    "captured": PhaseDone,
    "installed": UnitsCame,
    "released": UnitsLeft,
}


def acks(version: Version) -> Folder[Acknowledgement]:
    """What the slots say of the step of this version: by phase and slot, see ``ack``."""
    return Folder(f"{ALL_ACKS.path}/{version}", _OF_PHASE)


def ack(version: Version, phase: StepPhase, slot: SlotId) -> Node[Acknowledgement]:
    """What ``slot`` says at the end of a phase."""
    return acks(version)[f"{phase}-{slot}"]


def phase_and_slot(name: str) -> tuple[StepPhase, SlotId]:
    """The phase and the slot of a name in ``acks``."""
    phase, slot = name.split("-")
    return cast(StepPhase, phase), SlotId(int(slot))


# -- appointments, if slots work in turns -----------------------------------------------------------------------------

# By router, between two batches, or before the first one of an attempt that goes on from a savepoint or snapshot: the
# watermark that it has come to, in microseconds. It confirms nothing meanwhile, and reads what was appointed when it
# has withdrawn this.
ROUTERS = Folder("routers", {"": int})
POSITIONS = Folder("positions", {"": Position})  # by slot: where it stands in its order when such an attempt begins


def confirmed(what: str) -> Folder[bool]:
    """Whether a router has not come so far, by epoch and router, see ``of_epoch``. ``what``: the version of a switch,
    or the ID of a savepoint.
    """
    return Folder(f"confirmed/{what}", {"": bool})


def of_epoch(epoch: int, router: int) -> str:
    """The name of what a router says of an appointment for ``epoch``."""
    return f"{epoch}-{router}"


def epoch_and_router(name: str) -> tuple[int, int]:
    """The epoch and the router of a name in ``confirmed``."""
    epoch, router = map(int, name.split("-"))
    return epoch, router


# -- savepoints and snapshots ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavepointCalled:
    """Routers are to bring the savepoint ``id`` to all slots: with the next frame, or as appointed. Where slots work in
    turns, one without an appointment is taken back.

    ``stops``: nothing comes behind it. Otherwise it is a capture, see ``row.CAPTURE``.
    """

    id: str
    appointment: Appointment | None = None
    stops: bool = True


class Location(NamedTuple):
    """Where one part of a unit's state is: a stretch of a segment, in bytes. ``number``, ``follows``: see
    ``runtime.snapshots.SnapshotPart``.
    """

    unit: UnitId
    segment: str
    offset: int
    length: int
    crc: int
    number: int = 1
    follows: int = 0


@dataclass(frozen=True, slots=True)
class SlotSaved:
    """Where the state of a slot's units is, part by part; ``bytes``: that were written for it now. ``position``: where
    the slot stood in its order, if it works in turns. ``failed``: why there is no snapshot of the slot; then alone.
    """

    locations: Annotated[tuple[Location, ...], Field(alias="places")] = ()
    bytes: int = 0
    failed: str = ""
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class RouterSaved:
    """Where a router goes on behind a savepoint or a snapshot: the offset of the first frame that it did not route.

    ``watermark``: that it had come to, in microseconds.
    """

    offset: int
    watermark: int = 0


@dataclass(frozen=True, slots=True)
class Writing:
    """What a slot says now and then of what it writes down: ``bytes`` that were made or sent so far, and whether it is
    over.
    """

    name: str
    bytes: int = 0
    over: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What a slot says of a savepoint or snapshot that is not there as it was written, in one line."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The units that a slot has from a savepoint or snapshot now."""

    units: Annotated[tuple[UnitCame, ...], Packed(UnitCame)]


Saved = SlotSaved | RouterSaved

SAVEPOINT = Node("savepoint", SavepointCalled)
ALL_SAVED: Folder[Any] = Folder("savepoints", {})  # has folders, by ID
WRITING = Folder("writing", {"": Writing})  # by slot
UNREADABLE = Folder("unreadable", {"": Unreadable})  # by slot
RESTORING = Folder("restoring", {"": int})  # by slot, now and then: how many parts of units came so far
RESTORED = Folder("restored", {"": Restored})  # by slot


def saved(savepoint: str) -> Folder[Saved]:
    """What slots and routers say of a savepoint or snapshot: ``of_slot``, ``of_router``."""
    kinds: dict[str, type[Saved]] = {"slot": SlotSaved, "router": RouterSaved}
    return Folder(f"{ALL_SAVED.path}/{savepoint}", kinds)


# -- from batch to batch -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handover:
    """Where the state of a slot stayed at the end of a batch, and what its next holder has to know.

    ``units``: that are at ``address``, as of the step of ``version``. ``watermarks``: by router. ``savepoint``: the
    last at which the slot has stood. ``log``: the last protocol events. ``position``: of its order machine, if it works
    in turns; the rows that wait there are at ``address``, too.
    """

    address: str
    units: Annotated[tuple[UnitId, ...], Packed()]
    version: Version
    measures: Measured
    watermarks: tuple[int, ...]
    savepoint: str
    log: LogEvents
    position: Position | None = None


ADDRESSES = Folder("slots", {"": str})  # by slot, registered until its batch is over: where it listens
WAITING = Folder("waiting", {"": str})  # likewise, of one that has waited behind its rows for as long as it may
HANDOVERS = Folder("handover", {"": Handover})  # by slot


# -- questions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopiesWanted:
    """Keep copies of units (``source``) at other slots (``destination``) from now on. Those that are there stay.

    They are close when a round over all of a slot had at most ``lag_keys`` changed keys (all keys of copies that
    begin), or no fewer than the round before: they will not come closer while so many keys change. ``every_s`` between
    rounds, before that a second at most. ``whole``: a unit of which something has changed travels as a whole all the
    same.
    """

    id: str
    copies: tuple[Move, ...]
    every_s: float
    lag_keys: int
    whole: bool


@dataclass(frozen=True, slots=True)
class CopiesClose:
    """The copies of a slot are close: after so many rounds, and so many bytes sent since it began, of so many units.

    It began with the order, or with one before whose copies never were close. ``keys``: had changed in the last round.
    """

    began_us: int
    rounds: int
    bytes: int
    units: int
    keys: int
    at_us: int


@dataclass(frozen=True, slots=True)
class FaultNow:
    """``fault`` hits ``slot`` now: what is old counts no more."""

    slot: SlotId
    fault: Fault
    at_us: int


MEASURE = Node("measure", str)  # the ID of a question
ALL_MEASURED: Folder[Any] = Folder("measured", {})  # has folders, by question
COPIES = Node("copies", CopiesWanted)
ALL_COPIED: Folder[Any] = Folder("copied", {})  # has folders, by order
COPYING = Folder("copying", {"": int})  # by slot, now and then until they are close: bytes that went into copies
LOG = Node("log", str)  # the ID of a question
FAULT = Node("fault", FaultNow)
USED = Folder("used", {"": PodUsed})  # ``of_slot`` or ``of_router``, each second, if its executor is a pod
FAULTS = Folder("faults", {"": str})  # by number: who came to the phase of the fault first, ``of_slot`` or ELSEWHERE
ELSEWHERE = "elsewhere"  # a slot of another stage


def measured(question: str) -> Folder[Measured]:
    """What the slots have measured, by slot."""
    return Folder(f"{ALL_MEASURED.path}/{question}", {"": Measured})


def copied(order: str) -> Folder[CopiesClose]:
    """Which slots have their copies close, by slot."""
    return Folder(f"{ALL_COPIED.path}/{order}", {"": CopiesClose})


def logs(question: str) -> Folder[LogEvents]:
    """The last protocol events of slots and routers, by place."""
    return Folder(f"logs/{question}", {"": LogEvents})


ENDED_LOGS = logs("ended")  # of tasks that hand nothing over, by place; of one that has failed with "-failed" behind


# -- above -------------------------------------------------------------------------------------------------------------

ALL: Folder[Any] = Folder("", {})  # whatever is below the root
DRIVERS = Folder("drivers", {"": str})  # registered as long as their processes live, seen from the root of a job


def of_job(job: str) -> str:
    """The root of a job: has a folder for each attempt, and who drives it; see ``epoch``."""
    return f"/keyshift/{job}"


def of_attempt(number: int) -> Folder[Any]:
    """All of an attempt, seen from the root of its job."""
    return Folder(str(number), {})


def of_order(stage: str, slot: SlotId) -> str:
    """The root of the election among replicas of a slot, seen from that of their job; see ``election``."""
    return f"order/{stage}/{slot}"


def of_stage(attempt: int, stage: str) -> str:
    """The root of a stage, seen from that of its job."""
    return f"{attempt}/{stage}"
