"""Code with one bug: what runs must find, or they prove little."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

Act = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """``act`` stands in for a method, a property or a function; it gets what it stands in for, and its arguments.

    One of ``checks`` must fail in a run of which ``pinned`` is given, and none in the same run without the bug.
    ``without``: what else does nothing, as it would keep the bug from doing harm. ``seed``: of a run that finds it,
    where few do; a hunt may begin with it.
    """

    owner: Any
    name: str
    act: Act
    checks: tuple[str, ...]
    pinned: dict[str, Any]
    without: tuple[tuple[Any, str], ...] = ()
    seed: int = 0

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Inside, the bug is there."""
        with contextlib.ExitStack() as patches:
            stand_in = _stand_in(getattr(self.owner, self.name), self.act)
            patches.enter_context(patch.object(self.owner, self.name, stand_in))
            for owner, name in self.without:
                patches.enter_context(patch.object(owner, name, lambda *_: None))
            yield

    def hunt(self, seeds: Iterable[int], run: Callable[..., Any]) -> Any:
        """The outcome of the first run that sees it; None if none does.

        What the same seed sees without it, such as a step that is late on a busy machine, is no sign of it.
        """
        for seed in seeds:
            with self.there():
                outcome = run(seed, **self.pinned)
            if self._is_seen(outcome) and not self._is_seen(run(seed, **self.pinned)):
                return outcome
        return None

    def _is_seen(self, outcome: Any) -> bool:
        return not outcome.problems.keys().isdisjoint(self.checks)


def _stand_in(original: Any, act: Act) -> Any:
    if isinstance(original, property):
        return property(functools.partial(act, original.fget))
    return functools.wraps(original)(lambda *arguments, **named: act(original, *arguments, **named))


@dataclass
class Mutants:
    """A decorator, and the mutants that it has made, by their names."""

    by_name: dict[str, Mutant] = field(default_factory=dict)

    def __call__(
        self,
        owner: Any,
        name: str,
        checks: str | tuple[str, ...],
        pinned: dict[str, Any] | None = None,
        without: tuple[tuple[Any, str], ...] = (),
        seed: int = 0,
        **more: Any,
    ) -> Callable[[Act], Act]:
        """``more``: what is pinned, too."""
        checks = (checks,) if isinstance(checks, str) else checks

        def register(act: Act) -> Act:
            self.by_name[act.__name__] = Mutant(owner, name, act, checks, {**(pinned or {}), **more}, without, seed)
            return act

        return register
