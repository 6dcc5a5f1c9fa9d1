"""What the simulations share: one event loop with one seed and virtual time, and what it has come to."""

import heapq
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keyshift.model.errors import ProtocolViolation


@dataclass
class Outcome:
    """``problems``: check -> what it saw first. ``story``: the last events before the end."""

    seed: int
    replay: str  # the call that repeats it
    shape: Any
    problems: dict[str, str] = field(default_factory=dict)
    story: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=50))
    seen: Counter[str] = field(default_factory=Counter)  # how often what the tests want to have covered happened

    def __str__(self) -> str:
        story = "\n".join(f"  {at:9.2f} {' '.join(map(str, what))}" for at, *what in self.story)
        problems = "\n".join(f"  {check}: {what}" for check, what in self.problems.items())
        return f"replay: {self.replay}\n{self.shape}\nlast events (virtual ms):\n{story}\nproblems:\n{problems}"


class VirtualTime:
    """``now``: virtual milliseconds. Calls that are due together keep their order."""

    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self.rng, self.outcome, self.seen = rng, outcome, outcome.seen
        self.now = 0.0
        self.calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, after_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at_time(self.now + max(0.0, after_ms), call, *arguments)

    def at_time(self, due_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self.calls, (due_ms, self._count, call, arguments))

    def delay(self, usual_ms: float) -> float:
        """Mostly below ``usual_ms``, sometimes far above: what is in order by luck alone does not stay so."""
        draw = self.rng.random()
        return usual_ms * draw * (6 if draw > 0.95 else 1)

    def pass_until(self, over: Callable[[], bool]) -> None:
        """Until it is ``over``, or nothing happens any more."""
        while self.calls and not over():
            self.now, _, call, arguments = heapq.heappop(self.calls)
            call(*arguments)

    def told(self, run: Callable[[], None]) -> None:
        """``run``; whatever it raises is a problem of the outcome."""
        try:
            run()
        except ProtocolViolation as error:
            self.problem("violation", str(error))
        except Exception:  # what a broken machine does to its shell
            self.problem("crash", traceback.format_exc(limit=-3))

    def log(self, *what: Any) -> None:
        self.outcome.story.append((self.now, *what))

    def problem(self, check: str, what: str) -> None:
        self.outcome.problems.setdefault(check, what)
