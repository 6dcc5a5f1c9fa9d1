"""What the protocol did last in a slot or router, so that somebody can see why a run went wrong.

A core notes events, and its shell gives them the time. ``in_order`` puts those of all places one behind the other.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from keyshift.model.keys import NO_VERSION, SlotId, UnitId, Version
from keyshift.protocol import slot as protocol

EVENTS = 1000  # that a place remembers


class LogEvent(NamedTuple):
    """Something that happened at ``place``, such as ``slot-3`` or ``router-0``: see docs/results.md.

    ``at_us``: microseconds since the epoch by the clock of the place, at the end of the turn. ``other``: the place that
    it came from, or goes to.
    """

    at_us: int
    place: str
    event: str
    units: tuple[UnitId, ...] = ()
    version: Version = NO_VERSION
    hop: int = 0
    other: str = ""

    def within(self, part: str) -> "LogEvent":
        """The same event where several have places of these names: a stage or replica is in front of both places."""
        return self._replace(place=f"{part} {self.place}", other=self.other and f"{part} {self.other}")


class ProtocolLog:
    """The last events of one place. ``new``: those that have no time yet, until the shell calls ``stamp``."""

    def __init__(self, place: str = "") -> None:
        self.place = place
        self.new: deque[LogEvent] = deque(maxlen=EVENTS)
        self.events: deque[LogEvent] = deque(maxlen=EVENTS)
        self._sent: dict[UnitId, tuple[Version, int]] = {}  # unit -> version and hop of what is not acknowledged

    def note(
        self, event: str, units: Iterable[UnitId] = (), version: Version = NO_VERSION, hop: int = 0, other: str = ""
    ) -> None:
        """Note that ``event`` happens now."""
        self.new.append(LogEvent(0, self.place, event, tuple(units), version, hop, other))

    def effect(self, effect: protocol.SlotEffect) -> None:
        """Note a consequence of what was noted last."""
        match effect:
            case protocol.Send(unit, destination, version, routers, hop):
                event = "send" if routers is None else "lend" if routers else "return"
                self._note_sent(event, unit, version, hop, destination)
            case protocol.Open(unit, destination, version):
                self._note_sent("open", unit, version, 0, destination)
            case protocol.Request(unit, slot, version, _, hop):
                self.note("request", [unit], version, hop, f"slot-{slot}")
            case protocol.Prepared(version):
                self.note("prepared", (), version)
            case protocol.Installed(version, units) | protocol.Released(version, units):
                self.note(type(effect).__name__.lower(), sorted(units), version)
            case protocol.Hurry(unit):
                self.note("hurry", [unit])
            case protocol.Complete(unit):
                self.note("fetch rest", [unit])
            case protocol.Freeze():
                self.note("freeze")
            case protocol.Capture(_, version):
                self.note("capture", version=version)
            case protocol.Skip(_, version):
                self.note("skip", version=version)

    def _note_sent(self, event: str, unit: UnitId, version: Version, hop: int, destination: SlotId) -> None:
        self._sent[unit] = version, hop
        self.note(event, [unit], version, hop, f"slot-{destination}")

    def acknowledged(self, unit: UnitId) -> None:
        """Note that what was sent of ``unit`` last has arrived; nothing more of it is sent before."""
        self.note("acknowledged", [unit], *self._sent.pop(unit, (NO_VERSION, 0)))

    def stamp(self, now_us: int) -> None:
        """Give the time ``now_us`` to what was noted since the last call."""
        self.events += (event._replace(at_us=now_us) for event in self.new)
        self.new.clear()

    def remember(self, events: Iterable[LogEvent]) -> None:
        """Take over the last events from before, perhaps of another process."""
        self.events += events


def to_lines(events: Iterable[LogEvent]) -> str:
    """One JSON object per line."""
    return "".join(json.dumps(event._asdict()) + "\n" for event in events)


_step, _handing_over = attrgetter("version"), attrgetter("units", "version", "hop")


def _switch(event: LogEvent) -> Any:
    return event.version, event.other or event.place  # the router's


# What an event waits for: the events with one of these names and the same key, of each place the first.
CAUSES: dict[str, tuple[tuple[str, ...], Callable[[LogEvent], Any]]] = {
    "published": (("publish",), _step),
    "switched": (("prepared",), _step),
    "switch": (("switched",), _step),
    "complete": (("installed", "released"), _step),
    "barrier": (("switch",), _switch),
    "at savepoint": (("savepoint",), _switch),
    "at snapshot": (("snapshot",), _switch),
    "arrived": (("send", "lend", "return"), _handing_over),
    "opened": (("open",), _handing_over),
    "requested": (("request",), _handing_over),
    "acknowledged": (("arrived", "opened"), _handing_over),
}


def in_order(logs: Iterable[Iterable[LogEvent]]) -> list[LogEvent]:
    """The events of all places: each behind its cause, if that is known, and otherwise by time.

    Each log is that of one place, in its order. Clocks of several hosts differ, so times alone do not tell.
    """
    queues = [deque(log) for log in logs]
    to_come: dict[Any, set[str]] = defaultdict(set)  # what waits -> places where a cause of it is to come
    for queue in queues:
        for event in queue:
            for effect in _awaited(event):
                to_come[effect].add(event.place)
    ordered: list[LogEvent] = []
    while heads := [queue for queue in queues if queue]:
        free = [queue for queue in heads if not to_come.get(_waiting(queue[0]))]
        first = min(free or heads, key=lambda queue: queue[0].at_us).popleft()
        for effect in _awaited(first):
            to_come[effect].discard(first.place)
        ordered.append(first)
    return ordered


def _awaited(cause: LogEvent) -> list[Any]:
    return [(effect, key(cause)) for effect, (causes, key) in CAUSES.items() if cause.event in causes]


def _waiting(effect: LogEvent) -> Any:
    _, key = CAUSES.get(effect.event, ((), _step))
    return effect.event, key(effect)
