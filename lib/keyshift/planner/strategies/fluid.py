"""One unit at a time.

Characteristic: lowest spike, as only the records of one unit wait, and as many steps as units. Source: Megaphone,
strategy 'fluid'.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy("one unit per step, ascending id", "Megaphone fluid", batch="global")
