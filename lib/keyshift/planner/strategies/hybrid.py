"""All records switch at once; keys that live elsewhere are used there, and cached.

Characteristic: nothing moves; every first use of a key pays a round trip. With ``background`` keys migrate as well.
Source: hybrid state (``useHybrid``, ``useCache``; ``useMigrate`` is ``background``) of the same runtime as ``lazy``.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "keys stay and are used by remote access, with a cache",
    "hybrid state, decoupled compute and storage",
    order="access",
    unit="key",
    mode=Mode(transfer="remote", background=False, cache=True),
)
