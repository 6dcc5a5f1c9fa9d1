"""What a pod uses, told by the routers and slots in it: the driver sees its own processes only.

Read from control groups, version 2, and from the network of the pod. Where there is none of that, nothing is told.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from keyshift.clock import now_us
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.records import PodUsed
from keyshift.services import limits
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination

POD_ADDRESS = "SPARK_EXECUTOR_POD_IP"  # Spark sets it in the executors it makes on Kubernetes
TOLD_S = 1.0  # as often as the driver samples
ROOT = Path("/")
_LOOPBACK = "lo"


def used(host: str, root: Path = ROOT) -> PodUsed:
    """Measure what the pod has used by now. ``root``: of the file system. Raises OSError or KeyError without control
    groups of version 2.
    """
    groups = root / limits.GROUPS.relative_to("/")
    cpu_s = limits.numbers(groups / "cpu.stat")["usage_usec"] / 1e6
    received = sent = 0
    for line in (root / "proc/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != _LOOPBACK:
            columns = counts.split()
            received, sent = received + int(columns[0]), sent + int(columns[8])
    return PodUsed(host, now_us(), cpu_s, limits.in_use(groups), sent, received)


def tells_used(
    coordination: Coordination, name: str, closed: threading.Event, root: Path = ROOT
) -> Callable[[], None] | None:
    """The work of a thread: tell it in the node of this ``name`` until ``closed`` is set. None if this is no pod."""
    if not (host := os.environ.get(POD_ADDRESS)):
        return None

    def tell() -> None:
        with contextlib.suppress(OSError, KeyError):
            while not closed.wait(TOLD_S - time.time() % TOLD_S):  # all of them at about the same time
                now = used(host, root)
                with contextlib.suppress(ServiceUnavailable):  # then nobody knows for a second
                    coordination.publish(nodes.USED[name], now)

    return tell
