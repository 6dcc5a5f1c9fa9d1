"""Planning: from (current, target) to the steps of a migration. Pure: no clock, no random, no IO.

A new strategy is one file in ``strategies`` and one line here. One of a notebook's cell has the decorator ``strategy``.
"""

from collections.abc import Callable
from typing import Any, overload

from keyshift.planner.check import MEANINGS, change, check, settings
from keyshift.planner.model import Decision, Plan, Propose, Snapshot, Strategy
from keyshift.planner.plan import in_units, make_plan
from keyshift.planner.strategies import (
    all_at_once,
    chunked,
    drrs,
    fluid,
    fluid_per_source,
    hot_first,
    hybrid,
    lazy,
    matched,
    meces,
    order_unaware,
    pause_resume,
    replicated,
    rhino,
    spacker_dynamic,
    stop_restart,
)
from keyshift.registry import Registry

__all__ = [
    "MEANINGS",
    "Decision",
    "Plan",
    "Snapshot",
    "Strategy",
    "change",
    "check",
    "in_units",
    "make_plan",
    "settings",
    "strategies",
    "strategy",
]

strategies: Registry[Strategy] = Registry("strategy")
strategies.register("stop_restart", stop_restart.STRATEGY)
strategies.register("pause_resume", pause_resume.STRATEGY)
strategies.register("order_unaware", order_unaware.STRATEGY)
strategies.register("all_at_once", all_at_once.STRATEGY)
strategies.register("fluid", fluid.STRATEGY)
strategies.register("fluid_per_source", fluid_per_source.STRATEGY)
strategies.register("matched", matched.STRATEGY)
strategies.register("chunked", chunked.STRATEGY)
strategies.register("hot_first", hot_first.STRATEGY)
strategies.register("replicated", replicated.STRATEGY)
strategies.register("rhino", rhino.STRATEGY)
strategies.register("meces", meces.STRATEGY)
strategies.register("lazy", lazy.STRATEGY)
strategies.register("hybrid", hybrid.STRATEGY)
strategies.register("spacker_dynamic", spacker_dynamic.STRATEGY)
strategies.register("drrs", drrs.STRATEGY)


@overload
def strategy(source: Propose) -> Strategy: ...
@overload
def strategy(source: str = ..., **settings: Any) -> Callable[[Propose], Strategy]: ...
def strategy(source: str | Propose = "a notebook", **settings: Any) -> Strategy | Callable[[Propose], Strategy]:
    """A decorator: a function of a notebook's cell becomes a strategy, known by the function's name from now on.

    The function gets the strategy, a ``Snapshot`` and a log, and yields steps; ``make_plan`` says what a plan must be.
    The first line of its text is the summary. ``settings``: those of ``change``, such as ``unit`` and ``bins``; without
    any, ``@strategy`` alone will do.
    Raises BadInput for settings that are refused, or a name that is no word or belongs to the library.
    """
    if callable(source):
        return strategy()(source)
    of = source

    def defined(propose: Propose) -> Strategy:
        summary = (propose.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return strategies.define(propose.__name__, change(Strategy(summary, of, propose=propose), settings))

    return defined
