"""Any event in any state of a slot: it keeps its invariants, or raises ProtocolViolation and has changed nothing."""

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Mode, Move, SlotId, Step, UnitId
from keyshift.protocol import SlotMachine, slot
from keyshift.protocol.slot.phases import AWAITED, SERVED, TO_LEAVE, Phase

UNITS, SLOTS, ROUTERS = 4, 3, 2

units = st.integers(0, UNITS - 1)
routers = st.integers(-1, ROUTERS)  # one too few, one too many
versions = st.sampled_from((2, 2, 2, 3, 3, 1, 4))
modes = st.sampled_from(
    (
        Mode(),
        Mode(gate="slots"),
        Mode(transfer="fetch"),
        Mode(transfer="fetch", fetch_back=1),
        Mode(transfer="fetch", fetch_back=2),
        Mode(transfer="access"),
    )
)
steps = st.builds(
    Step,
    st.lists(
        st.builds(
            Move, units.map(UnitId), st.integers(0, SLOTS - 1).map(SlotId), st.integers(0, SLOTS - 1).map(SlotId)
        ),
        max_size=3,
        unique_by=lambda move: move.unit,
    ).map(tuple),
    modes,
)


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
        self.waiting: dict[int, list[tuple[int, int]]] = {}  # unit -> records held, with their routers, in order
        self.out: dict[int, bool] = {}  # sent, not yet acknowledged -> whether for good
        self.borrowed: dict[int, frozenset[int]] = {}  # lent to us and here -> routers it may meet
        self.lent: set[int] = set()  # by us
        self.hops: dict[tuple[int, int], int] = {}  # (version, unit) -> how often it changed hands
        self.frozen = False
        self.snapshot: int | None = None  # the version of the one that was published
        self.standing: set[int] = set()  # routers that stand there
        self.last_snapshot = 0  # that was published, whatever became of it

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
            self.check(result)
        return result

    def moves(self, version: int, source: int | None = None, destination: int | None = None) -> dict[int, Move]:
        of = self.prepared[version].moves
        return {m.unit: m for m in of if source in (None, m.source) and destination in (None, m.destination)}

    def check(self, effects: list[slot.SlotEffect]) -> None:
        for effect in effects:
            match effect:
                case slot.Send(unit, other, version, to, hop):
                    self.hops[version, unit] = self.hops.get((version, unit), 0) + 1
                    assert hop == self.hops[version, unit]
                    assert unit not in self.machine.partial, "keys of it are elsewhere"
                    aligned = self.ended or all(heard >= version for heard in self.heard.values())
                    if to == frozenset():
                        assert self.moves(version, destination=0)[unit].source == other
                        del self.borrowed[unit]
                        self.out[unit] = False
                        continue
                    assert self.moves(version, source=0)[unit].destination == other
                    assert not self.waiting.get(unit), "records are still queued"
                    if to is None:
                        assert aligned
                        self.out[unit] = True
                    else:
                        assert not aligned
                        assert to == {router for router, heard in self.heard.items() if heard >= version}
                        assert hop < 2 * self.prepared[version].mode.fetch_back
                        self.lent.add(unit)
                        self.out[unit] = False
                case slot.Open(unit, other, version):
                    assert self.moves(version, source=0)[unit].destination == other
                    assert self.ended or all(heard >= version for heard in self.heard.values())
                    assert not self.waiting.get(unit), "late records are still queued"
                    self.lent.remove(unit)
                    self.out[unit] = True
                case slot.Request(unit, other, version, _, hop):
                    move = self.moves(version)[unit]
                    assert (other, 0) in ((move.source, move.destination), (move.destination, move.source))
                    assert unit not in self.machine.serving
                    assert hop == self.hops.get((version, unit), 0)
                case slot.Hurry(unit):
                    assert unit in self.out
                case slot.Complete(unit):
                    assert unit in self.machine.partial
                case slot.Released(version, left):
                    assert left == self.moves(version, source=0).keys()
                    assert not left & self.out.keys()
                case slot.Installed(version, came):
                    assert came == self.moves(version, destination=0).keys()
                    assert not any(self.waiting.get(unit) for unit in came)
                    assert not came & self.borrowed.keys()
                case slot.Prepared(version):
                    assert version in self.prepared or (version == self.snapshot and self.machine.settled)
                case slot.Capture(_, version):
                    assert version == self.snapshot and self.machine.settled
                    assert self.standing == set(range(ROUTERS))
                    self.snapshot, self.standing = None, set()
                case slot.Skip(_, version):
                    assert version == self.snapshot
                    self.snapshot, self.standing = None, set()
                case slot.Freeze():
                    assert not self.frozen and self.machine.settled
                    self.frozen = True

    @rule(version=versions, step=steps, before=versions | st.just(0))
    def prepare(self, version: int, step: Step, before: int) -> None:
        known = self.prepared.get(version)
        self.prepared.setdefault(version, step)
        if self.event("prepare", version, known or step, before) is None and known is None:
            del self.prepared[version]

    @rule(version=versions, some=st.sets(units, min_size=1), mode=modes, before=versions | st.just(0))
    def prepare_what_is_possible(self, version: int, some: set[int], mode: Mode, before: int) -> None:
        here = self.machine.serving | self.machine.expected
        moves = (Move(UnitId(u), *((SlotId(0), SlotId(1)) if u in here else (SlotId(2), SlotId(0)))) for u in some)
        self.prepare(version, Step(tuple(moves), mode), before)

    @rule(version=versions, some=st.sets(units, min_size=1), mode=modes)
    def prepare_what_is_possible_ahead(self, version: int, some: set[int], mode: Mode) -> None:
        moved = self.prepared.get(version - 1, Step(())).moves
        here = (self.machine.serving | self.machine.expected | {m.unit for m in moved if m.destination == 0}) - {
            m.unit for m in moved if m.source == 0
        }
        moves = (Move(UnitId(u), *((SlotId(0), SlotId(1)) if u in here else (SlotId(2), SlotId(0)))) for u in some)
        self.prepare(version, Step(tuple(moves), mode), version - 1)

    @rule(version=versions)
    def barriers_of_all(self, version: int) -> None:
        for router in range(ROUTERS):
            self.barrier(router, version)

    @rule(version=versions, before=versions | st.just(0))
    def cancel(self, version: int, before: int) -> None:
        self.event("cancel", version, before)

    @rule(router=routers, version=versions)
    def barrier(self, router: int, version: int) -> None:
        before = dict(self.heard)
        if router in self.heard:
            self.heard[router] = max(self.heard[router], version)
        if self.event("barrier", router, version) is None:
            self.heard = before

    @rule(unit=units, version=versions, router=routers, hop=st.integers(0, 3))
    def requested(self, unit: int, version: int, router: int, hop: int) -> None:
        self.event("requested", unit, version, router, hop)

    @rule(unit=units, version=versions, to=st.sets(st.integers(0, ROUTERS - 1)))
    def lent_or_returned(self, unit: int, version: int, to: set[int]) -> None:
        """As ``shipment_arrived`` does it: only what is awaited."""
        hop = self.hops.get((version, unit), 0) + 1
        if version not in self.prepared or not self.machine.awaits(unit, version, hop):
            return
        returned = unit in self.lent
        self.hops[version, unit] = hop
        if returned:
            self.lent.remove(unit)
        else:
            self.borrowed[unit] = frozenset(to)
        assert self.event("arrived", unit, frozenset(to)) is not None

    @rule(unit=units, partial=st.booleans())
    def arrived(self, unit: int, partial: bool) -> None:
        awaited = [v for v in self.prepared if self.machine.awaits(unit, v, self.hops.get((v, unit), 0) + 1)]
        if unit in self.lent:
            return  # what was lent never comes back for good
        before = dict(self.hops)
        for version in awaited:
            self.hops[version, unit] = self.hops.get((version, unit), 0) + 1
        if self.event("arrived", unit, None, partial) is None:
            self.hops = before

    @rule(unit=units)
    def opened(self, unit: int) -> None:
        before = self.borrowed.pop(unit, None)
        if self.event("opened", unit) is None:
            assert before is None

    @rule(unit=units)
    def completed(self, unit: int) -> None:
        partial = unit in self.machine.partial
        assert (self.event("completed", unit) is not None) == partial

    @rule(unit=units)
    def acknowledged(self, unit: int) -> None:
        sent = self.out.pop(unit, None)
        assert (self.event("acknowledged", unit) is None) == (sent is None)

    @rule(router=routers, version=versions, some=st.sets(units, min_size=1))
    def records_come(self, router: int, version: int, some: set[int]) -> None:
        serving = set(self.machine.serving)
        held = self.event("admit", router, version, frozenset(some))
        if held is None:
            return
        assert some - held <= serving, "a record would be processed without its state"
        assert held >= {unit for unit in some if self.waiting.get(unit)}, "a record would overtake the queue"
        assert all(router in self.borrowed[unit] for unit in some - held if unit in self.borrowed)
        for unit in held:
            self.records += 1
            self.waiting.setdefault(unit, []).append((router, self.records))
            assert self.event("hold", unit, router, self.records, 10) is not None

    @rule(router=st.integers(0, ROUTERS - 1), some=st.sets(units, min_size=1))
    def records_come_as_their_router_says(self, router: int, some: set[int]) -> None:
        self.records_come(router, self.heard[router], some)

    @rule(unit=units)
    def hold_what_need_not_wait(self, unit: int) -> None:
        step = self.machine._step
        may_wait = self.waiting.get(unit) or unit in {*self.machine.expected, *self.borrowed, *self.lent}
        if not may_wait and not (step and step.mode.gate == "slots"):
            assert self.event("hold", unit, 0, 0) is None

    @rule()
    def urge(self) -> None:
        assert all(isinstance(effect, slot.Request) for effect in self.event("urge"))

    @rule(most=st.integers(1, 3))
    def drain(self, most: int) -> None:
        serving, borrowed = set(self.machine.serving), dict(self.borrowed)
        records, emptied = self.machine.drain(most)
        assert len(records) <= most
        for record in records:
            unit, router = next((u, r) for u, queue in self.waiting.items() for r, held in queue if held == record)
            assert unit in serving
            behind = [(r, held) for r, held in self.waiting[unit] if unit not in borrowed or r in borrowed[unit]]
            assert behind[0] == (router, record), "not the oldest record of those that the unit may meet"
            self.waiting[unit].remove((router, record))
        self.check(self.machine.drained(emptied))

    @rule(router=routers, savepoint=st.sampled_from(["a", "a", "b"]))
    def savepoint_barrier(self, router: int, savepoint: str) -> None:
        self.event("savepoint_barrier", router, savepoint)

    @rule(version=versions)
    def a_snapshot_is_published(self, version: int) -> None:
        known = max(self.machine.version, self.last_snapshot)
        if version > known and not self.ended and self.snapshot is None:
            self.snapshot = version
            if self.event("published", version, [(version, Step((), snapshot="s"))]) is None:
                self.snapshot = None
            else:
                self.last_snapshot = version

    @rule(router=st.integers(0, ROUTERS - 1), version=versions)
    def snapshot_barrier(self, router: int, version: int) -> None:
        before, heard = set(self.standing), dict(self.heard)
        self.heard[router] = max(self.heard[router], version)
        if version == self.snapshot and self.machine._step is None:
            self.standing.add(router)
        if self.event("snapshot_barrier", router, version) is None:
            self.standing, self.heard = before, heard

    @precondition(lambda self: self.snapshot)
    @rule(router=st.integers(0, ROUTERS - 1))
    def a_router_comes_to_the_snapshot(self, router: int) -> None:
        self.snapshot_barrier(router, self.snapshot)

    @precondition(lambda self: self.snapshot)
    @rule()
    def too_much_is_kept_back(self) -> None:
        self.event("skip")

    @rule(seldom=st.integers(0, 9))
    def end_of_input(self, seldom: int) -> None:
        if not seldom:
            self.ended = True
            self.machine.forget_snapshot()
            if self.standing:
                self.snapshot, self.standing = None, set()
            self.event("end_of_input")

    # -- what is likely to be allowed, so that a run goes somewhere ---------------------------------------------------

    @precondition(lambda self: self.machine._step is None)
    @rule(some=st.sets(units, min_size=1), mode=modes)
    def prepare_the_next_step(self, some: set[int], mode: Mode) -> None:
        self.prepare_what_is_possible(max(self.machine.version, *self.heard.values()) + 1, some, mode, 0)

    @precondition(lambda self: self.machine._step is None and self.machine.serving - self.machine.partial)
    @rule(data=st.data(), fetch_back=st.integers(1, 2), acknowledged=st.booleans())
    def a_unit_is_lent(self, data: st.DataObject, fetch_back: int, acknowledged: bool) -> None:
        version = max(self.machine.version, *self.heard.values()) + 1
        unit = data.draw(st.sampled_from(sorted(self.machine.serving - self.machine.partial)))
        move = Move(UnitId(unit), SlotId(0), SlotId(1))
        self.prepare(version, Step((move,), Mode(transfer="fetch", fetch_back=fetch_back)), 0)
        self.barrier(0, version)
        self.requested(unit, version, 0, 0)
        if acknowledged and unit in self.out:
            self.acknowledged(unit)

    @precondition(lambda self: self.machine._step)
    @rule(router=st.integers(0, ROUTERS - 1))
    def a_router_switches(self, router: int) -> None:
        self.barrier(router, self.machine._step.version)

    @precondition(lambda self: self.machine.expected)
    @rule(data=st.data(), to=st.none() | st.sets(st.integers(0, ROUTERS - 1)), partial=st.booleans())
    def what_is_expected_arrives(self, data: st.DataObject, to: set[int] | None, partial: bool) -> None:
        unit = data.draw(st.sampled_from(sorted(self.machine.expected)))
        step = self.machine._step
        if to is None or step is None or unit not in step.arriving:
            self.arrived(unit, partial)
        else:
            self.lent_or_returned(unit, step.version, to)

    @precondition(lambda self: any(self.machine.phase_of(unit) in TO_LEAVE for unit in range(UNITS)))
    @rule(data=st.data(), router=st.integers(-1, ROUTERS - 1))
    def somebody_waits_for_what_leaves(self, data: st.DataObject, router: int) -> None:
        step = self.machine._step
        unit = data.draw(st.sampled_from([unit for unit in range(UNITS) if self.machine.phase_of(unit) in TO_LEAVE]))
        self.requested(unit, step.version, router, self.hops.get((step.version, unit), 0))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def what_was_lent_comes_back(self, data: st.DataObject) -> None:
        self.lent_or_returned(data.draw(st.sampled_from(sorted(self.lent))), self.machine._step.version, set())

    @precondition(lambda self: self.borrowed)
    @rule(data=st.data(), final=st.booleans())
    def what_is_borrowed_is_wanted_back_or_ours(self, data: st.DataObject, final: bool) -> None:
        unit = data.draw(st.sampled_from(sorted(self.borrowed)))
        if final:
            self.opened(unit)
        else:
            version = self.machine._step.version
            self.requested(unit, version, 0, self.hops.get((version, unit), 0))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def what_was_sent_is_acknowledged(self, data: st.DataObject) -> None:
        self.acknowledged(data.draw(st.sampled_from(sorted(self.out))))

    # -- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def a_unit_is_in_one_place(self) -> None:
        machine = self.machine
        assert not machine.serving & machine.expected
        assert not machine.serving & {unit for unit, for_good in self.out.items() if for_good}
        assert not machine.serving & self.lent
        assert self.borrowed.keys() <= machine.serving
        assert machine.partial <= machine.serving
        assert set(machine.wanted) == machine.expected
        assert machine.expected <= machine._queues.keys() <= machine.expected | machine.serving | self.lent

    @invariant()
    def what_is_kept_back_is_behind_a_snapshot(self) -> None:
        assert {router for router in range(ROUTERS) if self.machine.standing(router)} == self.standing

    @invariant()
    def phases_are_counted(self) -> None:
        phases = self.machine._phases
        assert {phase for phase in Phase if phases.any({phase})} == set(phases.values())
        assert self.machine.serving == {unit for unit, phase in phases.items() if phase in SERVED}
        assert self.machine.expected == {unit for unit, phase in phases.items() if phase in AWAITED}
        assert self.machine._step or set(phases.values()) <= {Phase.HERE, Phase.EXPECTED}

    @invariant()
    def what_waits_is_known(self) -> None:
        machine = self.machine
        assert machine.queued_bytes == 10 * sum(map(len, self.waiting.values()))
        assert not {unit for unit, queue in self.waiting.items() if queue} & set(machine.idle(range(UNITS)))
        assert not any(machine.stands(unit) for unit in machine.idle(range(UNITS)))
        if machine.settled:
            assert not (self.out or machine.expected or machine.partial or self.lent or self.borrowed)
            assert not any(self.waiting.values())


TestAnyEventInAnyState = AnyEventInAnyState.TestCase
TestAnyEventInAnyState.settings = settings(max_examples=settings.default.max_examples * 2 // 3 + 100)
