"""Pause the affected slots at the router, move everything, resume.

Characteristic: the query stays up and other slots go on; records of an affected slot wait upstream, also for units that
stay. Source: Trisk, pause and resume of affected tasks only.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "routers hold the records of affected slots until everything has moved",
    "Trisk",
    mode=Mode(gate="router"),
)
