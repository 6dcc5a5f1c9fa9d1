"""Any event in any state of a slot: it keeps its invariants, or raises ProtocolViolation and has changed nothing."""

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyshift.errors import ProtocolViolation
from keyshift.keys import Move, SlotId, Step, UnitId
from keyshift.protocol import SlotMachine
from keyshift.protocol.slot import Effect, Forget, Freeze, Installed, Prepared, Released, Send

UNITS, SLOTS, ROUTERS = 4, 3, 2

units = st.integers(0, UNITS - 1)
routers = st.integers(-1, ROUTERS)  # one too few, one too many
versions = st.sampled_from((2, 2, 2, 3, 3, 1, 4))
steps = st.lists(
    st.builds(Move, units.map(UnitId), st.integers(0, SLOTS - 1).map(SlotId), st.integers(0, SLOTS - 1).map(SlotId)),
    max_size=3,
    unique_by=lambda move: move.unit,
).map(lambda moves: Step(tuple(moves)))


class AnyEventInAnyState(RuleBasedStateMachine):
    """Slot 0 of a stage, and what a bystander knows of it."""

    @initialize(placed=st.lists(st.sampled_from(["serving", "expected", "elsewhere"]), min_size=UNITS, max_size=UNITS))
    def begin(self, placed: list[str]) -> None:
        serving = [unit for unit, place in enumerate(placed) if place == "serving"]
        expected = [unit for unit, place in enumerate(placed) if place == "expected"]
        self.machine: SlotMachine[int] = SlotMachine(0, ROUTERS, serving, expected, version=1)
        self.prepared: dict[int, Step] = {}
        self.heard = dict.fromkeys(range(ROUTERS), 0)
        self.ended = False
        self.records = 0
        self.waiting: dict[int, list[int]] = {}  # unit -> records held, in order
        self.out: set[int] = set()  # sent, not yet acknowledged
        self.frozen = False

    def event(self, name: str, *arguments: Any) -> Any:
        """The result, or None if the machine refused; then it is what it was."""
        before = copy.deepcopy(vars(self.machine))
        try:
            result = getattr(self.machine, name)(*arguments)
        except ProtocolViolation as error:
            assert str(error).startswith("slot 0 (")
            assert vars(self.machine) == before
            return None
        if isinstance(result, list):
            self.check(result, before["_step"])
        return result

    def check(self, effects: list[Effect], step: Any) -> None:
        for effect in effects:
            match effect:
                case Send(unit, destination, version):
                    moves = {m.unit: m.destination for m in self.prepared[version].moves if m.source == 0}
                    assert moves[unit] == destination
                    assert self.ended or all(heard >= version for heard in self.heard.values())
                    assert not self.waiting.get(unit), "records are still queued"
                    self.out.add(unit)
                case Forget(unit):
                    self.out.remove(unit)
                case Released(version, left):
                    assert left == {m.unit for m in self.prepared[version].moves if m.source == 0}
                    assert not left & self.out
                case Installed(version, came):
                    assert came == {m.unit for m in self.prepared[version].moves if m.destination == 0}
                    assert not any(self.waiting.get(unit) for unit in came)
                case Prepared(version):
                    assert version in self.prepared
                case Freeze():
                    assert not self.frozen and self.machine.settled
                    self.frozen = True

    @rule(version=versions, step=steps)
    def prepare(self, version: int, step: Step) -> None:
        known = self.prepared.get(version)
        self.prepared.setdefault(version, step)
        if self.event("prepare", version, known or step) is None and known is None:
            del self.prepared[version]

    @rule(version=versions, some=st.sets(units, min_size=1))
    def prepare_what_is_possible(self, version: int, some: set[int]) -> None:
        here = self.machine.serving | self.machine.expected
        moves = (Move(UnitId(u), *((SlotId(0), SlotId(1)) if u in here else (SlotId(2), SlotId(0)))) for u in some)
        self.prepare(version, Step(tuple(moves)))

    @rule(version=versions)
    def barriers_of_all(self, version: int) -> None:
        for router in range(ROUTERS):
            self.barrier(router, version)

    @rule(version=versions)
    def cancel(self, version: int) -> None:
        self.event("cancel", version)

    @rule(router=routers, version=versions)
    def barrier(self, router: int, version: int) -> None:
        if router in self.heard:
            self.heard[router] = max(self.heard[router], version)
        self.event("barrier", router, version)

    @rule(unit=units)
    def arrived(self, unit: int) -> None:
        self.event("arrived", unit)

    @rule(unit=units)
    def acknowledged(self, unit: int) -> None:
        self.event("acknowledged", unit)

    @rule(router=routers, version=versions, some=st.sets(units, min_size=1))
    def records_come(self, router: int, version: int, some: set[int]) -> None:
        serving = set(self.machine.serving)
        held = self.event("admit", router, version, frozenset(some))
        if held is None:
            return
        assert some - held <= serving, "a record would be processed without its state"
        assert held >= {unit for unit in some if self.waiting.get(unit)}, "a record would overtake the queue"
        for unit in held:
            self.records += 1
            self.waiting.setdefault(unit, []).append(self.records)
            self.event("hold", unit, self.records)

    @rule(unit=units)
    def hold_what_need_not_wait(self, unit: int) -> None:
        before = copy.deepcopy(vars(self.machine))
        if unit not in self.machine._queues:
            self.event("hold", unit, 0)
            assert vars(self.machine) == before

    @rule(most=st.integers(1, 3))
    def drain(self, most: int) -> None:
        step, serving = self.machine._step, set(self.machine.serving)
        records, effects = self.machine.drain(most)
        assert len(records) <= most
        for record in records:
            unit = next(unit for unit, queue in self.waiting.items() if record in queue)
            assert unit in serving
            assert self.waiting[unit].pop(0) == record, "not the oldest record of its unit"
        self.check(effects, step)

    @rule(router=routers, savepoint=st.sampled_from(["a", "a", "b"]))
    def savepoint_barrier(self, router: int, savepoint: str) -> None:
        self.event("savepoint_barrier", router, savepoint)

    @rule()
    def end_of_input(self) -> None:
        self.ended = True
        self.event("end_of_input")

    @invariant()
    def a_unit_is_in_one_place(self) -> None:
        machine = self.machine
        assert not machine.serving & machine.expected
        assert not machine.serving & self.out
        assert set(machine.wanted) == machine.expected
        assert machine.expected <= machine._queues.keys() <= machine.expected | machine.serving
        if machine.settled:
            assert not self.out and not machine.expected and not any(self.waiting.values())


TestAnyEventInAnyState = AnyEventInAnyState.TestCase
TestAnyEventInAnyState.settings = settings(max_examples=settings.default.max_examples * 2 // 3 + 100)
