"""Steps and assignments, from numbers; and a slot that drains."""

from typing import Any

from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, UnitId
from keyshift.protocol.slot import SlotEffect, SlotMachine


def step(*moves: tuple[int, int, int], mode: Mode | None = None) -> Step:
    """``moves``: unit, source, destination."""
    return Step(tuple(Move(UnitId(u), SlotId(s), SlotId(d)) for u, s, d in moves), mode or Mode())


def assignment(version: int, *owner: int) -> Assignment:
    return Assignment(version, tuple(map(SlotId, owner)))


def drain(slot: SlotMachine[Any], most: int) -> tuple[list[Any], list[SlotEffect]]:
    """The records that come out of the queues, and what follows once they are processed."""
    records, emptied = slot.drain(most)
    return records, slot.drained(emptied)
