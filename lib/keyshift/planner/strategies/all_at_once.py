"""Everything in one step, nothing blocked.

Characteristic: shortest completion, and the most records that wait for their unit at the same time. Source: Megaphone,
strategy 'sudden'; Spacker with ``sync_keys = 0``.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy("everything in one step, unaffected keys keep flowing", "Megaphone sudden; Spacker sync_keys=0")
