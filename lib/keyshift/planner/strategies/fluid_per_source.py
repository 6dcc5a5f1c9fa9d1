"""One unit of every source at a time.

Characteristic: the i-th leaving unit of every source makes the i-th step, so sources work side by side. Source: Spacker
with ``sync_keys = 1``.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy("one unit of every source per step, ascending id", "Spacker sync_keys=1", batch="per_source")
