"""Bins move when a record asks for them; the rest follows in the background, a few per step.

Characteristic: hot keys move first because they are asked for first; during alignment a bin may travel back for a late
record. Source: Meces, with ``num_bins = 16``, ``batch_size = 8``, ``max_fetch_times = 2``, ``fetch_interval_ms = 3``;
its gradual migration switches at most one key group (16 bins) of each source at a time, and at most 8 groups in all.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "bins are fetched by the records that need them, others follow behind",
    "Meces",
    order="access",
    batch="per_source",
    size=16,
    cap=128,
    unit="bin",
    bins=16,
    mode=Mode(transfer="fetch", fetch_back=2, fetch_interval_ms=3),
)
