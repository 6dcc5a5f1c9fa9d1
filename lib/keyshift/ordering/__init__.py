"""Order protocols: what makes all replicas of a slot work on the same rows in the same order.

Each replica is a whole job that reads the same input. What one channel carries is the same in all of them; how the
channels of a slot interleave is not. So an order protocol is a machine in front of a slot's core: rows go in as they
came, and turns come out that all replicas share. Pure: no clock, thread, socket or random number. It knows rows, and
neither events, state, other replicas nor the assignment.

A protocol is one file and one line here. ``keyshift.checks.check_ordering`` tries it.
"""

from collections.abc import Callable
from typing import NamedTuple

from keyshift.ordering.kazoo import Kazoo
from keyshift.ordering.live_robin import LiveRobin
from keyshift.ordering.machine import Ordering
from keyshift.ordering.model import (
    ChannelPlace,
    Local,
    LogPlace,
    OrderEffect,
    Position,
    Propose,
    Record,
    Resign,
    Setting,
)
from keyshift.ordering.time_merge import TimeMerge
from keyshift.registry import Registry

__all__ = [
    "ChannelPlace",
    "Local",
    "LogPlace",
    "OrderEffect",
    "OrderProtocol",
    "Ordering",
    "Position",
    "Propose",
    "Record",
    "Resign",
    "Setting",
    "orderings",
]


class OrderProtocol(NamedTuple):
    """A way to agree on an order. ``open``: the machine of one slot, from where it stands.

    ``agrees``: whether replicas deliver the same turns. Otherwise slots do not work in turns, and no machine is opened.
    ``leads``: whether one of them leads, and the order comes from an order log. Otherwise it follows from the channels
    alone, and then the order of a unit's events does not depend on the slot that owns the unit.
    """

    open: Callable[[Setting, Position], Ordering]
    summary: str
    source: str
    agrees: bool = True
    leads: bool = False


orderings: Registry[OrderProtocol] = Registry("order protocol")
orderings.register(
    "none",
    OrderProtocol(Ordering, "rows are delivered as they come; replicas differ", "no protocol", agrees=False),
)
orderings.register(
    "live_robin",
    OrderProtocol(LiveRobin, "channels take turns, each up to the mark of an epoch; nobody talks", "LiveRobin"),
)
orderings.register(
    "time_merge", OrderProtocol(TimeMerge, "as live_robin, with the events of an epoch by their time", "TimeMerge")
)
orderings.register(
    "kazoo",
    OrderProtocol(Kazoo, "a leader per slot writes the order into a log, from which all deliver", "KaZoo", leads=True),
)
