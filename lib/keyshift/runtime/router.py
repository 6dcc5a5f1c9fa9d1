"""The router: what it says to each slot about a frame, what it keeps back, and when it may take another frame."""

from collections.abc import Callable, Mapping, Sized
from typing import Generic, TypeVar

from keyshift.model.keys import Assignment
from keyshift.model.messages import encode
from keyshift.protocol.router import Barrier, CaptureBarrier, Resume, RouterMachine, SavepointBarrier
from keyshift.runtime.protocol_log import ProtocolLog
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, MOVED, SAVEPOINT, SNAPSHOT, TICK, Row
from keyshift.runtime.succession import UnitsMoved

Events = TypeVar("Events")
Routed = tuple[int, Row]  # a row, and the slot it goes to

# A slot for which a frame has no events gets a row all the same so often, and with every frame so long after a switch:
# it acts on what came for it beside its rows, and learns how far time has come, when a row comes.
TICK_US, AWAKE_US = 50_000, 2_000_000


class RouterCore(Generic[Events]):
    """One router. ``split(events, assignment)``: what each slot gets of them, if it gets anything.

    After each call its shell stamps what is new in ``log``.
    """

    behind = 0  # a barrier stands before its frame, which is the first behind it

    def __init__(
        self,
        machine: RouterMachine,
        slots: int,
        queue_bytes: int,
        split: Callable[[Events, Assignment], Mapping[int, Sized]],
    ) -> None:
        self.machine = machine
        self.watermark = 0  # of the last frame, in microseconds
        self.log = ProtocolLog()
        self._split, self._queue_bytes = split, queue_bytes
        self._kept: list[Routed] = []  # for paused slots
        self._kept_bytes = 0
        self._last_us = [0] * slots  # the time of the last frame that each slot got something of
        self._awake_us = 0  # until this time each slot gets something of every frame

    def frame(
        self, router: int, offset: int, events: Events, watermark: int, time_us: int | None = None
    ) -> tuple[list[Routed], list[str]]:
        """Rows for all slots: barriers that are due, then the slot's part of the frame, or a tick.

        And the savepoint or snapshot whose barriers are among them, if there is one: this frame is the first behind.
        ``time_us``: how far time has come, by which ticks are due, if the watermark does not tell it.
        """
        self.watermark = max(self.watermark, watermark)  # a cut frame has it once
        time_us = self.watermark if time_us is None else time_us
        rows, reached = self._barriers(router, offset, time_us)
        return rows + self._part(router, offset, events, time_us), reached

    def _barriers(self, router: int, offset: int, time_us: int) -> tuple[list[Routed], list[str]]:
        """The barriers that are due now, for all slots, and what they begin."""
        effects = self.machine.boundary()
        version, slots = self.machine.assignment.version, range(len(self._last_us))
        rows: list[Routed] = []
        reached: list[str] = []
        for effect in effects:
            self.log.place = f"router-{router}"
            match effect:
                case Resume():
                    self.log.note("resume")
                    rows += self.resume()
                    continue
                case Barrier(version, name):
                    kind, what = (SNAPSHOT, "snapshot") if name else (BARRIER, "switch")
                    self._awake_us = time_us + AWAKE_US
                case CaptureBarrier(name):
                    kind, what = CAPTURE, "capture"
                case SavepointBarrier(name):
                    kind, what = SAVEPOINT, "savepoint"
            self.log.note(what, version=version)
            barrier = Row(kind, router, version, offset, 0, name.encode())
            rows += [(slot, barrier) for slot in slots]
            reached += [name] if name else []
        return rows, reached

    def _part(self, router: int, offset: int, events: Events, time_us: int, to_all: bool = False) -> list[Routed]:
        """Give what each slot gets of a frame: events or, if one is due or the frame goes ``to_all``, a tick."""
        machine, rows = self.machine, list[Routed]()
        version = machine.assignment.version
        parts = self._split(events, machine.assignment) if machine.stopped_for is None else {}
        tick, bare_tick = (Row(TICK, router, version, offset, watermark) for watermark in (self.watermark, 0))
        for slot, last_us in enumerate(self._last_us):
            due = to_all or not 0 <= time_us - last_us < TICK_US or time_us <= self._awake_us
            if slot not in parts and not due:
                continue
            self._last_us[slot] = time_us
            said = Row(DATA, router, version, offset, self.watermark, parts[slot]) if slot in parts else tick
            if slot in machine.paused:  # what it gets is a row to act on, and no time passes
                self._kept.append((slot, said))
                self._kept_bytes += len(said.payload)
                said = bare_tick
            rows.append((slot, said))
        return rows

    def moved(self, router: int, offset: int, said: UnitsMoved) -> list[Routed]:
        """Rows for all slots about units that move in the stage before; behind what is kept back for a slot."""
        row = Row(MOVED, router, self.machine.assignment.version, offset, 0, encode(said))
        paused = self.machine.paused
        self._kept += [(slot, row) for slot in sorted(paused)]
        return [(slot, row) for slot in range(len(self._last_us)) if slot not in paused]

    def resume(self) -> list[Routed]:
        """Give what was kept back, in its order."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept

    @property
    def full(self) -> bool:
        """Whether more is kept back than should be: no further frame is to be taken, they wait where they come from."""
        return self._kept_bytes > self._queue_bytes and not self.machine.may_resume
