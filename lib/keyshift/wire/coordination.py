"""ZooKeeper, through kazoo: carries the messages between the participants of a job, which are in ``nodes``.

The driver makes the root before its tasks begin. Nobody else does: what a task says late, when the job is over and its
nodes are removed, leaves nothing behind.
"""

import contextlib
import posixpath
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.security import make_acl

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.confirmed import ConfirmedWrites
from keyshift.wire.epoch import Epoch, begun, claimed
from keyshift.wire.nodes import Folder, Node, of_job
from keyshift.wire.session import GIVE_UP_S, Session
from keyshift.wire.tree import GuardedWrites, Tree

OF_ALL_JOBS = make_acl("world", "anyone", read=True, create=True, delete=True)  # the folder that their folders are in


T = TypeVar("T")


class Coordination(Session):
    """One participant, seen from the root of one job, who alone reads and writes what is made here with its ``secret``.

    A lost connection and an expired session pass unnoticed: calls wait, watches and registrations are made again, and
    each write is repeated until it is confirmed. Every method raises ServiceUnavailable if ZooKeeper is not there,
    refuses, or was away for ``GIVE_UP_S``; then for good. That of a driver has its ``epoch``: when another one has
    claimed the job it publishes and withdraws nothing, but raises Deposed.
    """

    def __init__(self, hosts: str, root: str, secret: str = "", epoch: Epoch | None = None) -> None:
        super().__init__(hosts, secret)
        self.root, self._epoch = root, epoch
        self._guarded = GuardedWrites(self._client, root, epoch)
        self._tree = Tree(self._client, root, self._guarded)
        self._held: dict[str, bytes] = {}  # registrations
        self._holding = threading.Lock()
        self._acknowledgements = ConfirmedWrites(self._client, root, self._refused)
        try:
            self._start()
            if secret and self._first:
                with self._talking():
                    self._client.ensure_path(root[: root.index("/", 1)], acl=[OF_ALL_JOBS])
        except BaseException:  # Ctrl-C, too
            self._end()
            raise

    def _renewed(self, expired: bool) -> None:
        """Make again what went with the session, and what may not have arrived; kazoo itself sees to the watches."""
        self._acknowledgements.repeat()
        if expired:
            try:
                with self._holding, self._talking():
                    for path, data in self._held.items():
                        self._tree.hold(path, data)
            except ServiceUnavailable as error:
                self._fail(str(error))

    def _lost(self) -> None:
        self._acknowledgements.end()

    def close(self, prepare_next: bool = False) -> None:
        """End the session, when what was acknowledged is there; ephemeral nodes go at once.

        With ``prepare_next`` the session of the next participant in this process begins now, when nobody waits for it.
        """
        if prepare_next:
            self._begin_next()
        try:
            with contextlib.suppress(ServiceUnavailable):  # then it never will be
                self._confirm()
        finally:  # after Ctrl-C, too
            self._end()

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the root: from now on there is something to take part in. Raises Deposed if the job is another's."""
        self.require_epoch()
        with self._talking():
            self._client.retry(self._client.ensure_path, self.root)

    def publish(self, node: Node[T], value: T) -> None:
        """Create or overwrite a node, behind what was acknowledged before.

        A deposed leader's writes are refused: when another one is elected, this raises ServiceUnavailable.
        """
        with self._talking():
            self._confirm()
            try:
                self._tree.write(_at(self.root, node), node.encode(value))
            except BadVersionError:
                told = f"{node.path} is not written: another coordinator leads {self.root} now"
                raise ServiceUnavailable(told) from None

    def acknowledge(self, node: Node[T], value: T) -> None:
        """Create a node that others wait for, without blocking; the first one counts."""
        self.check()
        self._acknowledgements.create(self._tree.writes(_at(self.root, node), node.encode(value)))

    def _confirm(self) -> None:
        """Wait until all that was acknowledged is there."""
        there = self._acknowledgements.wait(GIVE_UP_S)
        self.check()
        if not there:
            raise ServiceUnavailable(f"ZooKeeper at {self._hosts} did not answer within {GIVE_UP_S:g} s")

    def register(self, node: Node[T], value: T) -> None:
        """Create an ephemeral node, which goes when this object is closed. Takes over what an earlier holder left."""
        path, data = _at(self.root, node), node.encode(value)
        with self._holding, self._talking():
            self._held[path] = data
            self._tree.hold(path, data)

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:
        """Delete a node or a folder and all below it, if it is there."""
        path = _at(self.root, node)
        with self._holding:
            self._held.pop(path, None)
        with self._talking():
            self._tree.delete(path)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, node: Node[T]) -> T | None:
        """The value of a node, or None if it is not there."""
        with self._talking():
            data = self._tree.read(_at(self.root, node))
        return None if data is None else node.decode(data)

    def require(self, node: Node[T]) -> T:
        """The value of a node that must be there. Raises ServiceUnavailable if it is not."""
        value = self.read(node)
        if value is None:
            raise ServiceUnavailable(f"{_at(self.root, node)} is missing in ZooKeeper: was the job's folder removed?")
        return value

    def children(self, folder: Folder[Any]) -> list[str]:
        """Names in a folder; empty if it is not there."""
        with self._talking():
            return self._tree.names(_at(self.root, folder))

    def read_below(self, folder: Folder[T]) -> dict[str, T]:
        """The values of all nodes in a folder, by name."""
        with self._talking():
            found = self._tree.read_below(_at(self.root, folder))
        return {name: folder[name].decode(data) for name, data in found.items()}

    def watch(self, node: Node[T], call: Callable[[T], bool | None]) -> None:
        """Call with the value now (if any) and at every change, from kazoo's thread, until it returns False."""

        def changed(data: bytes | None, _stat: Any) -> bool | None:
            if not data:
                return None  # it is not there
            try:
                whole = self._client.retry(self._tree.whole, data)
            except NoNodeError:
                return None  # it was overwritten meanwhile: that is the next call
            return call(node.decode(whole))

        with self._talking():
            self._client.DataWatch(_at(self.root, node), changed)
        self.check()  # kazoo does not tell if it has ended

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call with the names in a folder, now and at every change, until what this gives is called. Creates the
        folder.
        """
        path = _at(self.root, folder)
        with self._talking():
            self._tree.ensure(path)
            watch = self._client.ChildrenWatch(path, call)
        self.check()

        def end() -> None:
            watch._stopped = True  # kazoo has no other way while nothing changes, and keeps the watch of what has gone
            self._client.remove_listener(watch._session_watcher)

        return end

    # -- leading ------------------------------------------------------------------------------------------------------

    def lead(self, name: str, act: Callable[[], None]) -> None:
        """Wait to be elected among those who want to lead the job, act, and step back.

        The first time begins a *term*, a version of the node ``leader``; it ends when another one is elected. A session
        that expires while nobody else wants to lead does not end it.
        """
        election = self._client.Election(f"{self.root}/election", name)

        def elected() -> None:
            self._tree.ensure(f"{self.root}/leader")
            self._guarded.keep_term(f"{self.root}/election/{election.lock.node}", name)
            act()

        with self._talking():
            election.run(elected)

    # -- driving ------------------------------------------------------------------------------------------------------

    def claim(self, job: str, first: bool = False) -> Epoch:
        """Become the driver of ``job``; who was it before is deposed. ``first``: there was none before.

        Raises JobOver if it is over and not yet deleted, NotThere if nothing is there of it.
        """
        with self._talking():
            return (begun if first else claimed)(self._client, job)

    def require_epoch(self) -> None:
        """Refuse to go on if this one is of a driver, and another one has claimed the job: Deposed."""
        if self._epoch is not None:
            with self._talking():
                self._epoch.require(self._client)

    def end_epoch(self) -> None:
        """End the job of this one's driver: nobody can claim it any more. Raises Deposed if it is another's."""
        if self._epoch is not None:
            with self._talking():
                self._epoch.end(self._client)


def attempts(participant: Coordination, job: str) -> list[int]:
    """The attempts of ``job`` of which there is anything, wherever in it the ``participant`` is."""
    return [int(name) for name in participant.children(Folder(of_job(job), {})) if name.isdigit()]


def _at(root: str, node: Node[Any] | Folder[Any]) -> str:
    """Return where ``node`` is: below ``root``, or from anywhere if its path begins with a slash."""
    return posixpath.join(root, node.path).rstrip("/")
