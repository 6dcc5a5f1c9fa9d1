"""What the plans of the real planner would cost where nobody can measure: on a cluster that is not at hand.

Real: the plan (``planner``), and which step is prepared, switched and complete when (``CoordinatorMachine``, driven by
simulated acknowledgements).

As in the job: routers whose frames take turns switch one after the other; a stream from slot to slot sends unit after
unit, what was asked for last first; records of what is on its way wait, or those of whole slots, as the gate says.

Modelled: events are a fluid. Each unit has a rate, bytes and keys, each slot a time per event and row, each host cores
and a link that streams share. Times come from measured runs (``fitting``), nothing else does.

Not modelled: deadlines, faults, keys that move one by one (transfers ``access`` and ``remote``), units that travel back
(``fetch_back``), what state on its way takes from the events of the same host. Without clock, thread or socket.
"""

from keyshift.forecast.engine import Simulated, check_costs, require_possible, simulated
from keyshift.forecast.fitting import Fit, MeasuredRun, fit
from keyshift.forecast.model import Cluster, Costs, Load

__all__ = [
    "Cluster",
    "Costs",
    "Fit",
    "Load",
    "MeasuredRun",
    "Simulated",
    "check_costs",
    "fit",
    "require_possible",
    "simulated",
]
