"""The public face: all that notebooks import comes from here, and stays where it is when the library is rearranged."""

from keyshift.analysis import metrics
from keyshift.analysis.figures import panels, pareto
from keyshift.analysis.plan_figures import plan_panels
from keyshift.analysis.plans import CostModel, modelled, plan_sentences, plan_table
from keyshift.analysis.tables import comparison_table, sentences, tradeoff_sentences, tradeoffs
from keyshift.checks import check_backend, check_strategy, check_workload
from keyshift.errors import KeyshiftError
from keyshift.keys import Assignment, units_of
from keyshift.lab.connect import open_lab
from keyshift.lab.notebook import publish
from keyshift.lab.run import run_all
from keyshift.lab.sequential import run_sequentially
from keyshift.lab.spec import make_spec
from keyshift.planner import change, in_units, make_plan, settings, strategies, targets
from keyshift.state import backends
from keyshift.workloads import workloads

__all__ = [
    "Assignment",
    "CostModel",
    "KeyshiftError",
    "backends",
    "change",
    "check_backend",
    "check_strategy",
    "check_workload",
    "comparison_table",
    "in_units",
    "make_plan",
    "make_spec",
    "metrics",
    "modelled",
    "open_lab",
    "panels",
    "pareto",
    "plan_panels",
    "plan_sentences",
    "plan_table",
    "publish",
    "run_all",
    "run_sequentially",
    "sentences",
    "settings",
    "strategies",
    "targets",
    "tradeoff_sentences",
    "tradeoffs",
    "units_of",
    "workloads",
]
