"""Whether a strategy, a workload, a state backend or an order protocol of one's own keeps its promises; also from a
notebook.

    >>> from keyshift.checks import check_strategy
    >>> from keyshift.planner import strategies
    >>> check_strategy(strategies.get("fluid"))

Each check returns nothing, or raises ContractBroken with one plain line. None of them needs a service. ``examples``:
how many to look at; the same ``seed`` gives the same ones.
"""

from keyshift.checks.backend import check_backend
from keyshift.checks.ordering import check_ordering
from keyshift.checks.strategy import check_plan, check_strategy
from keyshift.checks.workload import check_workload

__all__ = ["check_backend", "check_ordering", "check_plan", "check_strategy", "check_workload"]
