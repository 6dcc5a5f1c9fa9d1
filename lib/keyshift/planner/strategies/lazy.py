"""All records switch at once; a key moves with the first record that needs it.

Characteristic: no downtime and nothing moved that nobody asks for; old owners serve until then, and may never be free.
Source: lazy migration of a Go runtime with decoupled compute and storage.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "a key moves with the first record that needs it",
    "lazy migration, decoupled compute and storage",
    order="access",
    unit="key",
    mode=Mode(transfer="access", background=False),
)
