"""What a slot does with the rows that come: it gives them to its core as they come, or in turns.

All methods are called under the slot's lock, and those that work on rows in a turn of ``SlotEffects``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from keyshift.clock import now_us
from keyshift.model import messages
from keyshift.model.errors import KeyshiftError
from keyshift.model.markers import SlotMarker
from keyshift.ordering import Local, OrderEffect, Ordering, Position, Propose, Record, Resign
from keyshift.runtime.row import KINDS, Row
from keyshift.runtime.slot import SlotCore
from keyshift.runtime.turns import TurnCore
from keyshift.wire.spark_rows import MARKER
from keyshift.worker.order.following import Following
from keyshift.worker.slot.markers import Markers
from keyshift.worker.slot.shared import slice_of_time

MOST_WAITING = 4  # times ``queue_bytes``: what an order machine may keep


class Intake:
    """The intake without an order: rows as they come."""

    def __init__(self, core: SlotCore[Any, Any], markers: Markers) -> None:
        self._core, self._markers = core, markers
        # By name: where the slot stood in its order at savepoints and snapshots that it has come to in this batch.
        self.stood: dict[str, Position] = {}

    def begin(self, left: Iterable[Row]) -> None:
        """Begin with the rows that the batch before has ``left``; there are none without an order."""

    def come(self, rows: Sequence[Row]) -> None:
        """Take rows of routers that have come."""
        self._core.on_rows((row for row in rows if row.kind in KINDS), now_us(), slice_of_time())
        self._pass_on(rows)

    def go_on(self) -> None:
        """Work on what waits: no row has come."""
        self._core.drain(now_us(), slice_of_time())

    def over(self) -> bool:
        """Hear that no row will come any more in this batch, and work on what waits. Gives whether all that can be
        worked on in it was given to the core.
        """
        return True

    def left(self) -> tuple[Position | None, Sequence[Row]]:
        """Return what is left for the next batch: where the slot stands in the order, and the rows not worked on."""
        return None, ()

    def _pass_on(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.kind == MARKER:
                self._markers.pass_on(messages.decode(SlotMarker, bytes(row.payload)))


class TurnIntake(Intake):
    """The intake behind an ``order``: it takes all that comes, and works on a turn when its rows and state are here.

    What was left of the batch before comes first, even if it comes late: until then rows are kept.
    """

    def __init__(self, core: TurnCore[Any, Any], markers: Markers, order: Ordering, queue_bytes: int) -> None:
        super().__init__(core, markers)
        self._turns, self._order, self._most_bytes = core, order, MOST_WAITING * queue_bytes
        self._early: list[Row] | None = []  # None: what was left has come

    def begin(self, left: Iterable[Row]) -> None:  # noqa: D102
        early, self._early = self._early or [], None
        self._order.arrived(left)
        self._order.arrived(early)

    def come(self, rows: Sequence[Row]) -> None:  # noqa: D102
        if self._early is not None:
            self._early += rows
            return
        self._order.arrived(rows)
        self.go_on()
        if (waiting := self._order.waiting_bytes) > self._most_bytes:
            raise KeyshiftError(
                f"slot {self._core.machine.slot}: {waiting >> 20} MiB of rows wait for the marks of routers that are "
                f"behind the others, for a leader, or for state, and {self._most_bytes >> 20} MiB may; raise "
                "queue_bytes"
            )

    def go_on(self) -> None:  # noqa: D102
        order, core = self._order, self._turns
        while turn := order.take(core.ready):
            for barrier in turn.barriers[:1]:
                self.stood[bytes(barrier.payload).decode()] = order.position
            core.deliver(turn)
        for effect in order.take_effects():
            self._carry_out(effect)

    def _carry_out(self, effect: OrderEffect) -> None:
        if isinstance(effect, Local):
            self._pass_on([effect.row])

    def over(self) -> bool:  # noqa: D102
        if self._early is not None:
            return False
        self.go_on()
        return self._turns.ready

    def left(self) -> tuple[Position | None, Sequence[Row]]:  # noqa: D102
        return self._order.save()


class LedIntake(TurnIntake):
    """The intake behind an order that comes from a leader, who may be this replica: ``following`` tells it.

    When the rows of a batch have come, and every barrier that all channels have was worked on, nothing more is worked
    on in it: what is not ordered by then goes to the next one. Barriers may not: those of the other slots have come in
    this batch, too, and a slot that is behind them waits in it for the state of all. Who is done does not lead: others
    may have to work on more than this one.
    """

    def __init__(
        self, core: TurnCore[Any, Any], markers: Markers, order: Ordering, queue_bytes: int, following: Following
    ) -> None:
        super().__init__(core, markers, order, queue_bytes)
        self._following, self._over = following, False

    def heard(self, records: Sequence[tuple[int, Record]]) -> None:
        """Take records of the order log with their offsets; perhaps none, as time has passed."""
        if not self._over:
            self._order.heard(records)
            self.go_on()

    def elected(self, term: int) -> None:
        """The replica leads in this term."""
        if not self._over:
            self._order.elected(term)
            self.go_on()

    @property
    def abreast(self) -> bool:
        """See ``Ordering.abreast``."""
        return self._order.abreast

    def go_on(self) -> None:  # noqa: D102
        if not self._over:
            self._order.propose(now_us())
            super().go_on()

    def over(self) -> bool:  # noqa: D102
        self._over = super().over() and not self._order.owes_barriers
        if self._over:
            self._following.withdraw()
        return self._over

    def _carry_out(self, effect: OrderEffect) -> None:
        match effect:
            case Propose(record):
                self._following.append(record)
            case Resign():
                self._following.resign()
            case _:
                super()._carry_out(effect)
