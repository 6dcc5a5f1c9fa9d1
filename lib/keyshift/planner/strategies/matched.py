"""Every source gives and every destination takes at most one unit per step, in the fewest possible steps.

Characteristic: no slot has more than one unit in hand per direction, as with ``fluid``, in as many steps as the busiest
slot has moves. Source: Megaphone, strategy 'batched', by optimal edge colouring instead of repeated matching.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy("at most one unit per source and destination, fewest steps", "Megaphone batched", batch="matched")
