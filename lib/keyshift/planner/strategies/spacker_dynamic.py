"""The plan changes with each reconfiguration of the job.

Characteristic: all at once first, then chunks over copies of every second key group; a dirty one is sent whole.
Source: Spacker, scenario 'dynamic' and ``changePlan(sync_keys, filter, order)``, sync_keys 0, 8, 8 and filter 0, 2, 2.
"""

from keyshift.planner.model import Strategy

_CHUNKS_OVER_COPIES = {
    "batch": "per_source",
    "size": 8,
    "replicate": 2,
    "replicas": "periodic",
    "handover": "whole",
}
STRATEGY = Strategy(
    "all at once, then chunks over copies: another plan in each phase",
    "Spacker changePlan",
    phases=({"batch": "all"}, _CHUNKS_OVER_COPIES, _CHUNKS_OVER_COPIES),
)
