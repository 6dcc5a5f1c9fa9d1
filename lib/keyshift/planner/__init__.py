"""Planning: from (current, target) to the steps of a migration. Pure: no clock, no random, no IO.

A new strategy is one file in ``strategies`` and one line here.
"""

from keyshift.planner.model import Plan, Snapshot, Strategy, make_plan
from keyshift.planner.strategies import all_at_once, fluid, fluid_per_source, stop_restart
from keyshift.registry import Registry

__all__ = ["Plan", "Snapshot", "Strategy", "make_plan", "strategies"]

strategies: Registry[Strategy] = Registry("strategy")
strategies.register("all_at_once", all_at_once.STRATEGY)
strategies.register("fluid", fluid.STRATEGY)
strategies.register("fluid_per_source", fluid_per_source.STRATEGY)
strategies.register("stop_restart", stop_restart.STRATEGY)
