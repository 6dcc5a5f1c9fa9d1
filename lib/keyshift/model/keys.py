"""The vocabulary of placement: key -> bin -> key group -> unit -> slot, and what moves between slots.

A *key* is a 64-bit integer. Its *key group* is ``hash mod key_groups``; its *bin* is the next bits of the same hash
within the group. A *unit* is what a strategy moves: a group (``bins == 1``) or a bin. Units are numbered
``group * bins + bin``, so code that plans or moves units never needs to know which of the two they are.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator

from keyshift.model.errors import BadInput
from keyshift.model.ids import NO_VERSION as NO_VERSION
from keyshift.model.ids import RouterId as RouterId
from keyshift.model.ids import SlotId as SlotId
from keyshift.model.ids import UnitId as UnitId
from keyshift.model.ids import Version as Version
from keyshift.model.packed import Packed

Gate = Literal["none", "slots", "router", "query"]
Transfer = Literal["push", "fetch", "access", "remote"]

MAX_UNITS = 1 << 20  # an assignment is published whole, at every step; Megaphone's largest had as many bins


def hash_keys(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A stable, well mixed 64-bit hash of each key: shape (n,), the same on every machine and release.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    x = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def units_of(keys: npt.NDArray[np.int64], key_groups: int, bins: int = 1) -> npt.NDArray[np.int32]:
    """The unit of each key: shape (n,), int32 in ``[0, key_groups * bins)``."""
    hashed = hash_keys(keys)
    group = hashed % np.uint64(key_groups)
    if bins == 1:
        return group.astype(np.int32)
    bin_ = (hashed // np.uint64(key_groups)) % np.uint64(bins)
    return (group * np.uint64(bins) + bin_).astype(np.int32)


class SomeUnits(NamedTuple):
    """The units of these ``ranges``: from the first number of each on, those before its second one."""

    ranges: Sequence[tuple[int, int]]

    def have(self, units: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Find which of ``units`` are among them."""
        units, found = np.asarray(units), np.zeros(len(units), np.bool_)
        for first, end in self.ranges:
            found |= (first <= units) & (units < end)
        return found


FIRST_UNIT, UNITS_END = -(1 << 31), (1 << 31) - 1  # also of units that are not there, as a verdict may see some
ALL_UNITS = SomeUnits(((FIRST_UNIT, UNITS_END),))


class Move(NamedTuple):
    """One unit changes its slot."""

    unit: UnitId
    source: SlotId
    destination: SlotId


@dataclass(frozen=True, slots=True)
class Mode:
    """How the moves of a step are carried out.

    ``gate``, what waits while state moves: ``none`` of the units that stay; all records of the affected ``slots``, in
    front of them; all records for them, at the ``router``; the whole ``query``, which is stopped and started anew.
    ``transfer``, what makes state move: the source's ``push``; a record's ``fetch`` of its whole unit; a record's
    ``access`` to a key, which moves alone; or nothing: keys stay where they are and are used by ``remote`` access.
    """

    gate: Annotated[Gate, "what waits (none, slots, router, query)"] = "none"
    transfer: Annotated[Transfer, "what makes state move (push, fetch, access, remote)"] = "push"
    background: Annotated[bool, "whether what no record asks for moves too, behind what is asked for"] = True
    fetch_interval_ms: Annotated[int, "milliseconds of requests that are sent together; not with push"] = 0
    fetch_back: Annotated[int, "fetch: how often a unit may travel back for a late record of another router"] = 0
    cache: Annotated[bool, "remote: whether a copy of a key that was used is kept there, and written through"] = False


@dataclass(frozen=True, slots=True)
class Step:
    """Moves that switch together, under one new assignment version.

    With ``snapshot``, a name, nothing moves: all state is to be written down as it is when every router has switched.
    """

    moves: Annotated[tuple[Move, ...], Packed(Move)]
    mode: Mode = Mode()
    snapshot: str = ""


@dataclass(frozen=True)
class Assignment:
    """Which slot owns each unit, at one version. ``owner[unit]`` is a slot; versions only grow."""

    version: Version
    owner: Annotated[tuple[SlotId, ...], Packed()]

    @classmethod
    def contiguous(cls, units: int, slots: int, version: int = 1) -> "Assignment":
        """Each slot owns one contiguous range, sizes differing by at most one, as systems with key groups begin."""
        if slots < 1 or slots > units:
            raise BadInput(f"slots = {slots}: must be between 1 and the number of units, {units}")
        return cls(Version(version), tuple(SlotId(unit * slots // units) for unit in range(units)))

    @cached_property
    def slot_of(self) -> npt.NDArray[np.int32]:
        """``owner`` as an array, to look up many units at once: shape (units,), int32."""
        return np.array(self.owner, dtype=np.int32)

    def units_of(self, slot: int) -> list[UnitId]:
        """The units a slot owns, ascending."""
        return [*map(UnitId, np.flatnonzero(self.slot_of == slot).tolist())]

    def after(self, step: Step) -> "Assignment":
        """The next version, with the moves of ``step`` made. Raises BadInput if a source is not the owner."""
        owner = list(self.owner)
        for move in step.moves:
            if owner[move.unit] != move.source:
                raise BadInput(f"unit {move.unit} belongs to slot {owner[move.unit]}, not to {move.source}")
            owner[move.unit] = move.destination
        return Assignment(Version(self.version + 1), tuple(owner))

    def by_bin(self, bins: int) -> "Assignment":
        """The same placement of the same groups, in units of ``bins`` bins per group."""
        return Assignment(self.version, tuple(slot for slot in self.owner for _ in range(bins)))

    def moves_to(self, target: "Assignment") -> tuple[Move, ...]:
        """List what has to move to reach ``target``, ascending by unit."""
        return tuple(
            Move(UnitId(unit), here, there)
            for unit, (here, there) in enumerate(zip(self.owner, target.owner, strict=True))
            if here != there
        )


class Assignments(Sequence[Assignment]):
    """Assignments of one stage by their version, ascending. Takes memory for what has changed, not for each version:
    versions in a row under the same owners are one entry.
    """

    def __init__(self, these: Iterable[Assignment] = ()) -> None:
        self._begin: tuple[SlotId, ...] = ()  # the owners before the first entry
        self._entries: list[tuple[Version, Version, list[tuple[int, SlotId]]]] = []  # first, last; unit and owner
        self._newest: Assignment | None = None
        for each in these:
            self.append(each)

    def append(self, assignment: Assignment) -> None:
        """Add the next one. Raises BadInput if it is not newer than the last, or of another number of units."""
        self._add(assignment.version, assignment.version, assignment.owner)

    def _add(self, first: Version, last: Version, owner: tuple[SlotId, ...]) -> None:
        newest = self._newest
        if newest is None:
            self._begin = owner
            self._entries.append((first, last, []))
        elif first <= newest.version or len(owner) != len(newest.owner):
            raise BadInput(f"assignment {first}: must be newer than {newest.version}, and of {len(newest.owner)} units")
        elif owner == newest.owner:
            owner = newest.owner
            begun, ended, changes = self._entries[-1]
            if first == ended + 1:
                self._entries[-1] = begun, last, changes
            else:
                self._entries.append((first, last, []))
        else:
            changes = [(unit, slot) for unit, slot in enumerate(owner) if slot != newest.owner[unit]]
            self._entries.append((first, last, changes))
        self._newest = Assignment(last, owner)

    def __add__(self, other: "Assignments") -> "Assignments":
        """Join these and, behind them, the others."""
        made = Assignments()
        made._begin, made._entries, made._newest = self._begin, list(self._entries), self._newest
        if other._newest is not None:
            (first, last, _), *entries = other._entries
            made._add(first, last, other._begin)
            made._entries += entries
            made._newest = other._newest
        return made

    def of(self, version: Version) -> Assignment:
        """The assignment at ``version``: the newest that is not newer. Raises BadInput if there is none."""
        if self._newest is not None and version >= self._newest.version:
            return self._newest
        found = [each for each in self if each.version <= version]
        if not found:
            raise BadInput(f"assignment {version}: there was none by then")
        return found[-1]

    def __iter__(self) -> Iterator[Assignment]:
        owner = self._begin
        for first, last, changes in list(self._entries):
            if changes:
                changed = list(owner)
                for unit, slot in changes:
                    changed[unit] = slot
                owner = tuple(changed)
            for version in range(first, last + 1):
                yield Assignment(Version(version), owner)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last, _ in self._entries)

    @overload
    def __getitem__(self, at: int) -> Assignment: ...

    @overload
    def __getitem__(self, at: slice) -> list[Assignment]: ...

    def __getitem__(self, at: int | slice) -> Assignment | list[Assignment]:
        if at == -1 and self._newest is not None:
            return self._newest
        return list(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assignments) and (self._begin, self._entries) == (other._begin, other._entries)

    def to_json(self) -> dict[str, Any]:
        """Give the first owners, and rows of first and last version, unit and owner of what had changed."""
        rows = [[first, last, [list(change) for change in changes]] for first, last, changes in self._entries]
        return {"begin": list(self._begin), "entries": rows}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Assignments":
        """The inverse of ``to_json``."""
        made = cls()
        made._begin = tuple(map(SlotId, raw["begin"]))
        made._entries = [(first, last, [(u, SlotId(s)) for u, s in changes]) for first, last, changes in raw["entries"]]
        made._newest = list(made)[-1] if made._entries else None
        return made


@dataclass(frozen=True)
class Versions:
    """Versions, as ``rows`` of those that follow each other: the first one, and the one behind the last; ascending.
    Takes memory for each row, however many versions are in it.
    """

    rows: tuple[tuple[int, int], ...] = ()

    def plus(self, first: int, end: int) -> "Versions":
        """Give these and those from ``first`` on that are before ``end``."""
        joined = [row for row in self.rows if row[0] <= end and first <= row[1]]
        apart = [row for row in self.rows if row not in joined]
        begins, ends = zip(*joined, (first, end), strict=True)
        return Versions(tuple(sorted((*apart, (min(begins), max(ends))))))

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, int | np.integer):
            return False
        at = bisect_right(self.rows, version, key=itemgetter(0))
        return at > 0 and bool(version < self.rows[at - 1][1])

    def __iter__(self) -> Iterator[int]:
        return (version for row in starmap(range, self.rows) for version in row)

    def __len__(self) -> int:
        return sum(end - first for first, end in self.rows)


def _in_rows(raw: Any) -> Any:
    """Give versions the form of today: older journals and manifests have a list of all of them."""
    if not isinstance(raw, list):
        return raw
    made = Versions()
    for each in sorted(raw):
        made = made.plus(each, each + 1)
    return made


VersionsInJson = Annotated[Versions, BeforeValidator(_in_rows)]
