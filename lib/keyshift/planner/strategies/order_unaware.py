"""Block the affected slots, move everything in no order of interest, switch.

Characteristic: as ``pause_resume``, but records pile up in front of the slots that block. Source: Meces, its comparator
'Order-Unaware'.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "affected slots block until everything has moved",
    "Meces' comparator Order-Unaware",
    mode=Mode(gate="slots"),
)
