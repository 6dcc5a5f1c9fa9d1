"""Nodes in ZooKeeper that are created without waiting, and repeated until it is certain that they are there."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError, SessionExpiredError

Write = tuple[str, bytes]  # a node, and what it is to hold


def parents(root: str, node: str) -> list[str]:
    """The nodes between ``root`` and ``node``, from above."""
    names = node.removeprefix(f"{root}/").split("/")[:-1]
    return [f"{root}/{'/'.join(names[: depth + 1])}" for depth in range(len(names))]


class ConfirmedWrites:
    """The writes of one session, below ``root``. A node that is there already counts as written: its first value stays.

    ``refused(node, error)`` is called from kazoo's thread for a write that ZooKeeper does not take.
    """

    def __init__(self, client: KazooClient, root: str, refused: Callable[[str, Exception], None]) -> None:
        self._client, self._root, self._refused = client, root, refused
        self._unconfirmed: dict[str, deque[Write]] = {}  # by the last node of each
        self._changed = threading.Condition()
        self._ended = False

    def create(self, writes: Sequence[Write]) -> None:
        """Create these nodes one after the other, or the last might be there before its parts. Does not wait."""
        node, _ = writes[-1]
        with self._changed:
            if node in self._unconfirmed:
                return
            self._unconfirmed[node] = deque(writes)
        self._send(node)

    def repeat(self) -> None:
        """Send again what is not confirmed: the connection was lost, and with it perhaps the write or its answer."""
        with self._changed:
            nodes = list(self._unconfirmed)
        for node in nodes:
            self._send(node)

    def end(self) -> None:
        """End all waiting: nothing more will be confirmed."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, within_s: float) -> bool:
        """Wait until everything is there, or until the end; False if it was neither within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended or not self._unconfirmed, within_s)

    def _send(self, node: str) -> None:
        with self._changed:
            writes = self._unconfirmed.get(node)
            if not writes:
                return
            left, (path, data) = len(writes), writes[0]
        answer = self._client.create_async(path, data)
        answer.rawlink(partial(self._answered, node, left))

    def _answered(self, node: str, left: int, answer: Any) -> None:
        """Take the answer to a write, from kazoo's thread."""
        error = answer.exception
        if isinstance(error, (ConnectionLoss, SessionExpiredError)):
            return  # it is sent again with the next connection
        with self._changed:
            writes = self._unconfirmed.get(node)
            if writes is None or len(writes) != left:
                return  # sent twice, and answered before
            missing = parents(self._root, writes[0][0]) if isinstance(error, NoNodeError) else []
            if error is None or isinstance(error, NodeExistsError):
                writes.popleft()
            elif missing:
                writes.extendleft((parent, b"") for parent in reversed(missing))
            else:
                return self._refused(node, error)
            if not writes:
                del self._unconfirmed[node]
                self._changed.notify_all()
        self._send(node)
