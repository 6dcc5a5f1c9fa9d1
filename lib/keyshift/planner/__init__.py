"""Planning: from (current, target) to the steps of a migration. Pure: no clock, no random, no IO.

A new point of the space is one entry of ``presets``. A strategy with code of its own is one file, and one line here.
One of a notebook's cell has the decorator ``strategy``.
"""

from collections.abc import Callable
from typing import Any, overload

from keyshift.planner.check import MEANINGS, change, check, settings, turn_conflicts
from keyshift.planner.model import Decision, Plan, Proposer, Strategy, View
from keyshift.planner.plan import in_units, make_plan, require_units
from keyshift.planner.presets import PRESETS
from keyshift.registry import Registry

__all__ = [
    "MEANINGS",
    "Decision",
    "Plan",
    "Strategy",
    "View",
    "change",
    "check",
    "in_units",
    "make_plan",
    "require_units",
    "settings",
    "strategies",
    "strategy",
    "turn_conflicts",
]

strategies: Registry[Strategy] = Registry("strategy")
for _name, _preset in PRESETS.items():
    strategies.register(_name, _preset)


@overload
def strategy(source: Proposer) -> Strategy: ...
@overload
def strategy(source: str = ..., **settings: Any) -> Callable[[Proposer], Strategy]: ...
def strategy(source: str | Proposer = "a notebook", **settings: Any) -> Strategy | Callable[[Proposer], Strategy]:
    """A decorator: a function of a notebook's cell becomes a strategy, known by the function's name from now on.

    The function gets the strategy, a ``View`` and a log, and yields steps; ``make_plan`` says what a plan must be.
    The first line of its text is the summary. ``settings``: those of ``change``, such as ``unit`` and ``bins``; without
    any, ``@strategy`` alone will do.
    Raises BadInput for settings that are refused, or a name that is no word or belongs to the library.
    """
    if callable(source):
        return strategy()(source)
    of = source

    def defined(propose: Proposer) -> Strategy:
        summary = (propose.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return strategies.define(propose.__name__, change(Strategy(summary, of, propose=propose), settings))

    return defined
