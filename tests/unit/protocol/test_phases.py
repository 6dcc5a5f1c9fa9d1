"""The table of transitions, and that a slot keeps to it: what a unit's phase does not allow is refused."""

import copy

import pytest

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Mode, Move, SlotId, Step, UnitId
from keyshift.protocol import SlotMachine
from keyshift.protocol.slot.phases import AWAITED, SERVED, TRANSITIONS, Event, Phase

LEND = Mode(transfer="fetch", fetch_back=2)
TO, FROM = (Step((Move(UnitId(0), SlotId(source), SlotId(1 - source)),), LEND) for source in (0, 1))
ONE = frozenset({1})
RETURNED = frozenset[int]()

# How the unit 0 of slot 0 comes to each phase: where it begins, and what happens then.
SERVING, MISSING, STRANGE = {"serving": [0]}, {"expected": [0]}, {}
LEND_IT = [("prepare", 2, TO), ("requested", 0, 2, 1, 0), ("barrier", 1, 2)]
BORROW_IT = [("prepare", 2, FROM), ("arrived", 0, ONE)]
RETURN_IT = [*BORROW_IT, ("requested", 0, 2, 0, 1)]
WAYS = {
    Phase.ELSEWHERE: (STRANGE, []),
    Phase.EXPECTED: (MISSING, []),
    Phase.HERE: (SERVING, []),
    Phase.STILL_EXPECTED: (MISSING, [("prepare", 2, TO)]),
    Phase.LEAVING: (SERVING, [("prepare", 2, TO)]),
    Phase.LENDING: (SERVING, LEND_IT),
    Phase.LENT: (SERVING, [*LEND_IT, ("acknowledged", 0)]),
    Phase.BACK: (SERVING, [*LEND_IT, ("arrived", 0, RETURNED)]),
    Phase.SENDING: (SERVING, [("prepare", 2, TO), ("barrier", 0, 2), ("barrier", 1, 2)]),
    Phase.ARRIVING: (STRANGE, [("prepare", 2, FROM)]),
    Phase.BORROWED: (STRANGE, BORROW_IT),
    Phase.RETURNING: (STRANGE, RETURN_IT),
    Phase.BORROWED_AGAIN: (STRANGE, [*RETURN_IT, ("arrived", 0, ONE)]),
    Phase.KEPT: (STRANGE, [*RETURN_IT, ("arrived", 0)]),
}
CALLS = {
    Event.TAKE: ("prepare", 2, TO),
    Event.BRING: ("prepare", 2, FROM),
    Event.DROP: ("cancel", 2),
    Event.ARRIVE: ("arrived", 0),
    Event.ARRIVE_LENT: ("arrived", 0, ONE),
    Event.OPEN: ("opened", 0),
    Event.ACKNOWLEDGE: ("acknowledged", 0),
}
OF_A_STEP = {Event.TAKE, Event.BRING, Event.DROP}  # that of another one does not come while this one is active
OWN = {Event.LEND, Event.RETURN, Event.GIVE}  # what the slot does itself; the ways and the other tests show it


def slot_in(phase: Phase) -> SlotMachine[str]:
    begin, calls = WAYS[phase]
    slot = SlotMachine[str](0, routers=2, version=1, **begin)
    for name, *arguments in calls:
        getattr(slot, name)(*arguments)
    assert slot.phase_of(0) == phase
    return slot


def test_every_phase_can_be_reached_and_every_event_has_its_call():
    assert WAYS.keys() == TRANSITIONS.keys() == set(Phase)
    assert CALLS.keys() | OWN == set(Event)


@pytest.mark.parametrize(
    ("phase", "event", "then"),
    [(phase, event, then) for phase, ways in TRANSITIONS.items() for event, then in ways.items() if event not in OWN],
)
def test_what_a_phase_allows_leads_to_the_next_one(phase, event, then):
    slot = slot_in(phase)
    name, *arguments = CALLS[event]
    getattr(slot, name)(*arguments)
    assert slot.phase_of(0) == then
    assert (slot.serving, slot.expected) == ({0} if then in SERVED else set(), {0} if then in AWAITED else set())


@pytest.mark.parametrize(
    ("phase", "event"),
    [(phase, event) for phase in Phase for event in CALLS if event not in {*OF_A_STEP, *TRANSITIONS[phase]}],
)
def test_what_a_phase_does_not_allow_is_refused_and_changes_nothing(phase, event):
    slot = slot_in(phase)
    before = copy.deepcopy(vars(slot))
    name, *arguments = CALLS[event]
    with pytest.raises(ProtocolViolation, match=rf"slot 0 \(.*unit 0 .* \({phase}\)"):
        getattr(slot, name)(*arguments)
    assert vars(slot) == before
