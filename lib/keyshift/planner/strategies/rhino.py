"""A copy of everything is kept at the next slot of a ring all the time; the move hands over the increment.

Characteristic: survives the loss of a slot, and costs the most copying; a unit profits only if it moves to the slot
that has its copy. Source: Rhino, as re-created for Meces: every 60 s along a ring.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "everything is copied to the next slot of a ring, moves send the rest",
    "Rhino",
    replicate=1,
    replicas="periodic",
    holders="ring",
)
