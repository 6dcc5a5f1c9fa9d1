"""Steps and assignments, from numbers."""

from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, UnitId


def step(*moves: tuple[int, int, int], mode: Mode | None = None) -> Step:
    """``moves``: unit, source, destination."""
    return Step(tuple(Move(UnitId(u), SlotId(s), SlotId(d)) for u, s, d in moves), mode or Mode())


def assignment(version: int, *owner: int) -> Assignment:
    return Assignment(version, tuple(map(SlotId, owner)))
