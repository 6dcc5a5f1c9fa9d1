"""Optimal edge colouring of a bipartite multigraph: the fewest steps in which no slot gives or takes two units.

Slots that give are one side, slots that take the other: a slot that does both is two vertices. A move is an edge, a
step is a colour. By König's theorem (1916) as many colours suffice as the largest degree; no plan can do with fewer, as
the moves of the vertex with that degree all need different steps.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import ceil

from keyshift.model.keys import Move, SlotId

Vertex = tuple[bool, SlotId]  # takes, slot


def fewest_steps(moves: Sequence[Move], cap: int = 0) -> list[list[Move]]:
    """The moves in steps that use every source and every destination at most once, as few as are possible.

    As many steps as the largest degree or, with a ``cap`` on the moves of a step, as ``len(moves) / cap`` rounded up if
    that is more. Earlier moves get earlier steps where that costs no step; within a step moves keep their order.
    Complexity: O(moves * slots) at the worst, with a cap O(moves * (moves + slots)); far less as a rule.
    """
    if not moves:
        return []
    colouring = _Colouring(moves, cap)
    for edge in range(len(moves)):
        colouring.insert(edge)
    colouring.keep_cap()
    colouring.shift_down()
    steps: list[list[Move]] = [[] for _ in range(colouring.colours)]
    for edge, move in enumerate(moves):
        steps[colouring.colour[edge]].append(move)
    return steps


class _Colouring:
    """Which step each move has so far. Colours free at a vertex are the bits of an integer."""

    def __init__(self, moves: Sequence[Move], cap: int) -> None:
        self._ends: list[tuple[Vertex, Vertex]] = [((False, m.source), (True, m.destination)) for m in moves]
        degree = Counter(vertex for ends in self._ends for vertex in ends)
        self.colours = max(max(degree.values()), ceil(len(moves) / cap) if cap else 0)
        self.colour: list[int] = []
        self._cap = cap or len(moves)
        self._size = [0] * self.colours
        self._free = dict.fromkeys(degree, (1 << self.colours) - 1)
        self._at: dict[tuple[Vertex, int], int] = {}  # the edge of this colour at this vertex

    def insert(self, edge: int) -> None:
        """Colour the next edge, with the earliest colour that both ends have free, if there is one."""
        giver, taker = self._ends[edge]
        if common := self._free[giver] & self._free[taker]:
            colour = _lowest(common)
        else:
            # The path of alternating colours from the taker cannot reach the giver: it would arrive there by an edge of
            # the colour that the giver has free. So exchanging its colours frees that colour at both ends.
            colour, other = _lowest(self._free[giver]), _lowest(self._free[taker])
            self._exchange(self._path(taker, colour, other), colour, other)
        self.colour.append(colour)
        self._place(edge)

    def keep_cap(self) -> None:
        """Exchange colours along paths until no colour has more edges than the cap (de Werra 1971)."""
        for colour in range(self.colours):
            while self._size[colour] > self._cap:
                other = min(range(self.colours), key=lambda candidate: (self._size[candidate], candidate))
                # Both colours together make paths and even cycles; as `colour` has more edges, some path begins and
                # ends with it, and exchanging that one moves exactly one edge over.
                starts = (vertex for vertex, free in self._free.items() if free >> other & 1 and not free >> colour & 1)
                paths = (self._path(vertex, colour, other) for vertex in starts)
                self._exchange(next(path for path in paths if len(path) % 2), colour, other)

    def shift_down(self) -> None:
        """Shift moves, the first first, until none fits into an earlier step; those with the same ends in order."""
        # A shift makes room for others, also for moves before it. It ends because every shift lowers some colour.
        while [edge for edge in range(len(self._ends)) if self._shift(edge)]:
            pass
        parallel: defaultdict[tuple[Vertex, Vertex], list[int]] = defaultdict(list)
        for edge, ends in enumerate(self._ends):
            parallel[ends].append(edge)
        for edges in parallel.values():
            for edge, colour in zip(edges, sorted(self.colour[edge] for edge in edges), strict=True):
                self.colour[edge] = colour

    def _shift(self, edge: int) -> bool:
        giver, taker = self._ends[edge]
        earlier = self._free[giver] & self._free[taker] & ((1 << self.colour[edge]) - 1)
        while earlier and self._size[_lowest(earlier)] >= self._cap:
            earlier &= earlier - 1
        if earlier:
            self._take(edge)
            self.colour[edge] = _lowest(earlier)
            self._place(edge)
        return bool(earlier)

    def _path(self, vertex: Vertex, colour: int, other: int) -> list[int]:
        """The edges of alternating colours from ``vertex``, where ``other`` is free, as far as they go."""
        edges = []
        while (edge := self._at.get((vertex, colour))) is not None:
            edges.append(edge)
            giver, taker = self._ends[edge]
            vertex = taker if vertex == giver else giver
            colour, other = other, colour
        return edges

    def _exchange(self, path: list[int], colour: int, other: int) -> None:
        for edge in path:
            self._take(edge)
        for edge in path:
            self.colour[edge] = other if self.colour[edge] == colour else colour
            self._place(edge)

    def _place(self, edge: int) -> None:
        colour = self.colour[edge]
        self._size[colour] += 1
        for vertex in self._ends[edge]:
            self._at[vertex, colour] = edge
            self._free[vertex] &= ~(1 << colour)

    def _take(self, edge: int) -> None:
        colour = self.colour[edge]
        self._size[colour] -= 1
        for vertex in self._ends[edge]:
            del self._at[vertex, colour]
            self._free[vertex] |= 1 << colour


def _lowest(bits: int) -> int:
    """The place of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
