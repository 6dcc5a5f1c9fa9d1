"""What follows from what happens to a slot: a step begins and ends here, units are asked for and go on their way.

What leads a unit from one phase to the next is in ``phases``.
"""

from collections.abc import Iterable

from keyshift.model.keys import RouterId, Step, UnitId, Version
from keyshift.protocol.slot.effects import (
    Capture,
    Complete,
    Installed,
    Open,
    Prepared,
    Released,
    Request,
    Send,
    SlotEffect,
)
from keyshift.protocol.slot.phases import AT_THE_OTHER, NOT_INSTALLED, NOT_RELEASED, Event, Phase
from keyshift.protocol.slot.queues import Record
from keyshift.protocol.slot.situation import ActiveStep, Situation


class Consequences(Situation[Record]):
    """What follows from an event, and changes the situation; the rest is effects, for whoever drives the slot."""

    def _advance(self, touched: Iterable[UnitId] = ()) -> list[SlotEffect]:
        """Do what follows from an event. Of the step's units only those ``touched`` by it may be ready to go now."""
        effects: list[SlotEffect] = []
        if step := self._step:
            if not step.aligned and self._ready(step):
                step.aligned = True
                touched = [*step.other, *touched]
            for unit in sorted(touched, key=lambda unit: unit not in step.asked):  # what somebody waits for goes first
                effects += self._hand_over(step, unit)
            effects += self._report(step)
        if self._ending.over or self._ending.at_savepoint or self._snapshot:
            effects += [rest for unit in sorted(self._partial) for rest in self._complete(unit)]
        if self.settled:
            effects += self._ending.freeze()
            effects += self._capture()
        return effects

    def _capture(self) -> list[SlotEffect]:
        """Capture the snapshot, if every router stands there: all state is here."""
        if (pending := self._snapshot) is None:
            return []
        effects: list[SlotEffect] = []
        if not pending.prepared:
            pending.prepared = True
            effects.append(Prepared(pending.version))
        if len(pending.standing) == len(self._heard):
            self._snapshot, self.version = None, pending.version
            effects.append(Capture(pending.name, pending.version))
        return effects

    # -- steps ---------------------------------------------------------------------------------------------------------

    def prepare(self, version: Version, step: Step, before: int = 0) -> list[SlotEffect]:
        """Prepare a published step that will switch with ``version``. Repeated or outdated calls change nothing.

        The step of version ``before`` has switched and has to end first. Any other earlier one was cancelled, if this
        slot did not hear of that. After the end of input nothing is prepared: no barrier can come any more, so the next
        holder of the slot does it.
        """
        active = self._step
        known = max(self.version, active.version if active else 0)
        if self._ending.over or version <= known or version < max(self._heard.values()):
            return []
        waits = active is not None and active.version == before
        if active and not waits and self._switched(active):
            raise self._violation(f"step {version} prepared while step {active.version} is active")
        leaving = {m.unit: m.destination for m in step.moves if m.source == self.slot}
        arriving = {m.unit: m.source for m in step.moves if m.destination == self.slot}
        ours = self.serving | self.expected
        if active:
            ours = (ours | active.arriving) - active.leaving if waits else ours - active.arriving
        if strangers := leaving.keys() - ours:
            raise self._violation(f"step {version} takes units {sorted(strangers)[:5]} that are not here")
        if here := arriving.keys() & ours:
            raise self._violation(f"step {version} brings units {sorted(here)[:5]} that are here already")
        if waits:
            self._ahead = version, step
            return []
        if active:
            self._drop(active)
        if not leaving and not arriving:
            return self._advance()
        self._step = ActiveStep(version, step.mode, leaving | arriving, frozenset(leaving), frozenset(arriving))
        for unit in leaving:
            self._phases.move(unit, Event.TAKE)
        for unit in arriving:
            self._phases.move(unit, Event.BRING)
            self._queues.open(unit)
        return [Prepared(version), *self._advance()]

    def _drop(self, step: ActiveStep) -> None:
        """Forget a step that did not switch: nothing came for it yet."""
        for unit in (*step.leaving, *step.arriving):
            self._phases.move(unit, Event.DROP)
        for unit in step.arriving:
            del self._queues[unit]
        self._step = self._ahead = None

    def _report(self, step: ActiveStep) -> list[SlotEffect]:
        """Report what of the step is done here, once; then the step has ended here, and the one ahead is prepared."""
        effects: list[SlotEffect] = []
        # A pure destination does not wait for its own last barrier: with the state here, every router has switched.
        if not step.released and not self._phases.any(NOT_RELEASED):
            step.released = True
            if step.leaving:
                effects.append(Released(step.version, step.leaving))
        if not step.installed and self._installed(step):
            step.installed = True
            if step.arriving:
                effects.append(Installed(step.version, step.arriving))
        if step.released and step.installed:
            self.version, self._step = step.version, None
            if self._ahead:
                ahead, self._ahead = self._ahead, None
                effects += self.prepare(*ahead)
        return effects

    def _installed(self, step: ActiveStep) -> bool:
        return not self._phases.any(NOT_INSTALLED) and step.arriving.isdisjoint(self._queues)

    # -- units ---------------------------------------------------------------------------------------------------------

    def _hand_over(self, step: ActiveStep, unit: UnitId) -> list[SlotEffect]:
        """Send ``unit`` to the other slot of its move, if it may go now."""
        match self._phases[unit]:
            case Phase.BORROWED if unit in step.asked:
                return self._give_back(step, unit)
            case Phase.LEAVING | Phase.LENT if unit in self._queues:
                return []  # what waits for it here goes first
            case Phase.LEAVING if unit in self._partial:
                return self._complete(unit) if step.aligned else []
            case Phase.LEAVING if step.aligned:
                return [self._send(step, unit, Event.GIVE)]
            case Phase.LENT if step.aligned:
                self._phases.move(unit, Event.GIVE)
                return [Open(unit, step.other[unit], step.version)]
            case Phase.LEAVING if step.hops[unit] < 2 * step.mode.fetch_back:
                return self._lend(step, unit)
        return []

    def _lend(self, step: ActiveStep, unit: UnitId) -> list[SlotEffect]:
        """Lend ``unit``, but not before the router has switched whose record waits at the destination."""
        heard = frozenset(RouterId(router) for router, version in self._heard.items() if version >= step.version)
        if step.asked.get(unit) not in heard:
            return []
        del step.asked[unit]
        return [self._send(step, unit, Event.LEND, heard)]

    def _give_back(self, step: ActiveStep, unit: UnitId) -> list[SlotEffect]:
        """Give back what was lent to us; it is asked for again if records wait for it."""
        del step.borrowed[unit], step.asked[unit]
        effects: list[SlotEffect] = [self._send(step, unit, Event.RETURN, frozenset())]
        self._queues.open(unit)
        if queue := self._queues[unit]:
            effects += self._ask(unit, queue[0][0])
        return effects

    def _send(self, step: ActiveStep, unit: UnitId, how: Event, routers: frozenset[RouterId] | None = None) -> Send:
        self._phases.move(unit, how)
        step.wanted.discard(unit)
        step.hops[unit] += 1
        return Send(unit, step.other[unit], step.version, routers, step.hops[unit])

    def _ask(self, unit: UnitId, router: int) -> list[SlotEffect]:
        """Ask the other slot of the move, once per stay of ``unit`` there."""
        step = self._step
        if step is None or unit in step.wanted or self._phases[unit] not in AT_THE_OTHER:
            return []
        step.wanted.add(unit)
        return [Request(unit, step.other[unit], step.version, RouterId(router), step.hops[unit])]

    def _complete(self, unit: UnitId) -> list[SlotEffect]:
        """Ask for the rest of a partial unit, once."""
        if self._partial[unit]:
            return []
        self._partial[unit] = True
        return [Complete(unit)]

    def _move(self, unit: UnitId, event: Event, otherwise: str) -> None:
        """Let ``event`` happen to ``unit``. Raises ProtocolViolation, with ``otherwise``, if its phase forbids it."""
        try:
            self._phases.move(unit, event)
        except KeyError:
            raise self._violation(f"{otherwise} ({self._phases[unit]})") from None
