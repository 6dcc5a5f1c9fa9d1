"""Some units of every source at a time.

Characteristic: ``size`` chooses a point between ``fluid_per_source`` and ``all_at_once``. Source: Spacker with
``sync_keys = 8``; orders id, reverse and random are its own.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy("a chunk of units of every source per step", "Spacker sync_keys=8", batch="per_source", size=8)
