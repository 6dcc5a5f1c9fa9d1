"""Sub-scales: records of a few units switch at once, and each unit comes when one of them needs it.

Characteristic: re-routing does not wait for the transfer, and records are scheduled around missing state: those of a
unit that is not there yet wait in its queue, all others are served. A sub-scale is a step, of ``size`` units: routes of
all units cannot switch at once and their state still come in several steps. Source: DRRS (2025), as recalled from the
paper: decoupled re-routing, sub-scales, record scheduling.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "sub-scales: routes switch first, units come as records need them",
    "DRRS",
    order="access",
    batch="global",
    size=16,
    mode=Mode(transfer="fetch"),
)
