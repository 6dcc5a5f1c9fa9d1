"""A slot that works in turns: what ``SlotCore`` does beside ``on_rows`` when its job is replicated.

State and results are a function of the turns. So nothing of a turn waits in here: it is delivered only when ``ready``.
All its rows meet one watermark and one processing time, which are those of the turn, and then timers fire, once. What a
slot knows of its own watermark, ticks, calls and clock counts for nothing.

A *capture* writes the state down and changes nothing: a replica has it alone, for another one that is to go on from it.

Refused under an order are lending, keys that stay behind, and gates: state comes with ``push``, or is fetched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import NO_VERSION, Version
from keyshift.protocol.slot import Skip, TurnMachine
from keyshift.runtime.computation import Result
from keyshift.runtime.operator import Events, WaitingRecord
from keyshift.runtime.row import CAPTURE, DATA, Row
from keyshift.runtime.slot import Cut, SlotCore
from keyshift.runtime.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Among results: those before it are of turn ``number``, and no later one is of an earlier time than ``reached``.

    ``chain``: see ``Turn``. None behind a savepoint, which each replica has at a place of its own: nothing comes out
    any more.
    """

    number: int
    reached: int
    chain: int | None


class TurnCore(SlotCore[Events, Result | TurnEnd]):
    """One slot during one batch. ``watermarks`` and the position of its order machine are handed over together."""

    machine: TurnMachine[WaitingRecord[Events]]

    @property
    def ready(self) -> bool:
        """Whether a turn of rows may be delivered. Barriers may at any time."""
        return self.machine.all_here

    def begin(self, versions: Sequence[Version]) -> None:
        """Begin with each router's version in the position of the order machine, which keeps a new batch's barriers."""
        for router, version in enumerate(versions):
            self._follow(self.machine.barrier(router, version))

    def deliver(self, turn: Turn) -> None:
        """Work on the rows of ``turn``, or on its barriers. Raises ProtocolViolation if there are rows, and state that
        they may need is elsewhere.
        """
        self._now_us = turn.clock
        if turn.barriers:
            return self._at_barriers(turn.barriers)
        if not self.ready:
            missing = sorted(self.machine.expected)
            raise ProtocolViolation(f"turn {turn.number} is delivered, and state of units {missing[:5]} is elsewhere")
        for kind, router, version, offset, _, payload, _ in turn.rows:
            if kind == DATA:
                self._admit(self.operator.events(payload), (router, version, offset, turn.met))
        stands = self.machine.stopping or bool(self.savepoint)  # behind one no time passes, until the attempt ends
        if not stands:
            self.results += self.computation.timers_due(turn.reached, turn.clock, at_once=True)
        self.watermarks = [turn.reached] * len(self.watermarks)
        self.results.append(TurnEnd(turn.number, turn.reached, None if stands else turn.chain))

    def drain(self, now_us: int, in_time: Callable[[], bool]) -> None:
        """Do nothing: nothing waits in here. Least of all tell the time: it stays that of the turn, also at a savepoint
        whose state comes late.
        """

    def _at_barriers(self, barriers: Sequence[Row]) -> None:
        first, *_ = barriers
        if first.kind != CAPTURE:
            for barrier in barriers:
                self._take(barrier)
            return
        name = bytes(first.payload).decode()
        self.log.note("at capture", version=first.version)
        self.results.append(Cut(name, True))  # the next stage comes to it, whether it could be written here or not
        self._effects.append(self._captured(name, NO_VERSION) if self.machine.settled else Skip(name, NO_VERSION))
