"""Costs, loads and plans that are small enough to follow by hand."""

import numpy as np

from keyshift.forecast import Cluster, Costs, Load, simulated
from keyshift.forecast.model import LEVELS
from keyshift.model.keys import Assignment, SlotId
from keyshift.planner import change, in_units, make_plan, strategies

FREE = Costs(
    request_s=0.0, notify_s=0.0, answer_s=0.0, ack_s=0.0, handover_s=0.0, stream_s=0.0, unit_s=0.0,
    byte_s=1e-15, restart_s=0.0,
    stored_byte_s=0.0, event_s=0.0, row_s=0.0, before_ms=tuple(0 * LEVELS),
)  # fmt: skip
ONE_LINK = Cluster(host_slots=1, cores=1, link_bytes_per_s=100.0)


def assignment(*owner):
    return Assignment(1, tuple(map(SlotId, owner)))


def load(rates, unit_bytes=100.0, frame_s=0.1, routers=1, **more):
    each = np.ones(len(rates))
    return Load(np.array(rates), unit_bytes * each, 10.0 * each, routers=routers, frame_s=frame_s, **more)


def carried_out(name, current, target, offered, cluster=ONE_LINK, costs=FREE, seed=1, **settings):
    strategy = change(strategies.get(name), settings).of_migration(0)
    current, target = in_units(strategy, current), in_units(strategy, target)
    plan = make_plan(strategy, current, target, offered.rates.tolist(), seed)
    return simulated(strategy, plan, current, target, offered, cluster, costs, seed)
