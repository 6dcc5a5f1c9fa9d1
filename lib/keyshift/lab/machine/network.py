"""Bytes that processes of this machine send and receive over TCP, from the kernel's counters of each connection.

Linux alone has them. Connections between processes of this machine count like others, at both of their ends.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keyshift.model.records import Instance

ESTABLISHED = 1 << 1  # of the states of a connection
COUNTERS = 1 << 1  # ask for those, too (INET_DIAG_INFO)
SOCKET = "socket:["  # what a file descriptor of one is a link to begins so


class Bytes(NamedTuple):
    """Bytes over the network."""

    sent: int
    received: int


NOTHING = Bytes(0, 0)


class Connections:
    """Counts what goes over the connections of processes, from the first ``look`` on. For one thread.

    A connection that begins and ends between two looks does not count, nor what comes behind the last look at one.
    """

    def __init__(self) -> None:
        self._before: dict[int, Bytes] | None = None  # by connection, as the kernel numbers them (inodes)
        self._owner: dict[int, int] = {}  # pid by connection; 0: of none that was named when it was seen first
        self.total: dict[Instance, Bytes] = {}  # by what the processes are

    def look(self, instances: Mapping[int, Instance]) -> None:
        """Look at the connections of these processes, by pid. Where the kernel does not tell, ``total`` stays empty."""
        if sys.platform != "linux":
            return
        try:
            now = dict(_counters())
        except OSError:
            return
        known = self._owner
        if any(connection not in known for connection in now):
            known = {connection: pid for pid in instances for connection in _connections(pid)} | known
        self._owner = {connection: known.get(connection, 0) for connection in now}
        # What has gone before the first look may not be of the run.
        before, self._before = now if self._before is None else self._before, now
        for connection, (sent, received) in now.items():
            if of := instances.get(self._owner[connection]):
                last, total = before.get(connection, NOTHING), self.total.get(of, NOTHING)
                self.total[of] = Bytes(total.sent + sent - last.sent, total.received + received - last.received)


def _counters() -> Iterator[tuple[int, Bytes]]:
    """The counters of each connection, by its number. Raises OSError where the kernel does not tell."""
    from pyroute2.netlink.diag import DiagSocket  # takes a third of a second: not for commands without runs
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with DiagSocket() as kernel:
            for family in (socket.AF_INET, socket.AF_INET6):
                for each in kernel.get_sock_stats(family=family, states=ESTABLISHED, extensions=COUNTERS):
                    info = each.get_attr("INET_DIAG_INFO")
                    acknowledged = max(0, info["tcpi_bytes_acked"] - 1)  # to connect counts as one byte
                    yield each["idiag_inode"], Bytes(acknowledged, info["tcpi_bytes_received"])
    except NetlinkError as error:
        raise OSError(f"the kernel does not count by connection: {error}") from error


def _connections(pid: int) -> Iterator[int]:
    """The numbers of the connections of a process, which has other sockets, too."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for file in files:
            with contextlib.suppress(OSError):
                link = os.readlink(file.path)
                if link.startswith(SOCKET):
                    yield int(link[len(SOCKET) : -1])
