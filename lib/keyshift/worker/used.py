"""What a pod uses, told by the routers and slots in it: the driver sees its own processes only.

Read from control groups, version 2, and from the network of the pod. Where there is none of that, nothing is told.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable

import psutil

from keyshift.clock import now_us
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.records import PodUsed
from keyshift.services import limits
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination

POD_ADDRESS = "SPARK_EXECUTOR_POD_IP"  # Spark sets it in the executors it makes on Kubernetes
TOLD_S = 1.0  # as often as the driver samples
_LOOPBACK = "lo"


def used(host: str) -> PodUsed:
    """Measure what the pod has used by now. Raises OSError or KeyError without control groups of version 2."""
    cpu_s = limits.numbers(limits.GROUPS / "cpu.stat")["usage_usec"] / 1e6
    networks = [each for name, each in psutil.net_io_counters(pernic=True, nowrap=False).items() if name != _LOOPBACK]
    sent, received = sum(each.bytes_sent for each in networks), sum(each.bytes_recv for each in networks)
    return PodUsed(host, now_us(), cpu_s, limits.in_use(limits.GROUPS), sent, received)


def tells_used(coordination: Coordination, name: str, closed: threading.Event) -> Callable[[], None] | None:
    """The work of a thread: tell it in the node of this ``name`` until ``closed`` is set. None if this is no pod."""
    if not (host := os.environ.get(POD_ADDRESS)):
        return None

    def tell() -> None:
        with contextlib.suppress(OSError, KeyError):
            while not closed.wait(TOLD_S - time.time() % TOLD_S):  # all of them at about the same time
                now = used(host)
                with contextlib.suppress(ServiceUnavailable):  # then nobody knows for a second
                    coordination.publish(nodes.USED[name], now)

    return tell
