"""Copies of some units are kept at their destination all the time; the move hands over what has changed since.

Characteristic: hand-over in proportion to the dirty bytes, paid for by copying before. Source: Spacker with
``replicate_keys_filter = 2``, which resends a dirty unit whole (``handover = whole``) and pushes to all nodes.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "every second key group is copied before, moves send what changed",
    "Spacker replicate_keys_filter=2",
    replicate=2,
    replicas="periodic",
)
