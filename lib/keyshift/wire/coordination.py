"""ZooKeeper, through kazoo: carries the messages between the participants of a job, which are in ``nodes``.

A value that is too long for a node is in several, in a folder of ``parts``. Who leads is in ``election`` and
``leader``.

The driver makes the root before its tasks begin. Nobody else does: what a task says late, when the job is over and its
nodes are removed, leaves nothing behind.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.retry import ForceRetryError
from kazoo.security import make_acl
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.confirmed import ConfirmedWrites, Write, parents
from keyshift.wire.epoch import Epoch, begun, claimed
from keyshift.wire.nodes import Folder, Node
from keyshift.wire.session import GIVE_UP_S, Session

PART_BYTES = 512 << 10  # ZooKeeper takes less than 1 MiB in one message
PARTS = b"parts/"  # no JSON begins so

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
        self._held: dict[str, bytes] = {}  # registrations
        self._holding = threading.Lock()
        self._acknowledgements = ConfirmedWrites(self._client, root, self._refused)
        self._in_parts: dict[str, bytes] = {}  # published nodes -> what they hold
        self._term: int | None = None  # the version of ``leader`` while this one leads
        self._start()
        if secret and self._first:
            with self._talking():
                self._client.ensure_path(root[: root.index("/", 1)], acl=[OF_ALL_JOBS])

    def _renewed(self, expired: bool) -> None:
        """What went with the session, and what may not have arrived; kazoo itself sees to the watches."""
        self._acknowledgements.repeat()
        if expired:
            try:
                with self._holding, self._talking():
                    for node, data in self._held.items():
                        self._contend(NodeExistsError, self._claim, node, data)
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
        with contextlib.suppress(ServiceUnavailable):  # then it never will be
            self._confirm()
        self._end()

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the root: from now on there is something to take part in. Raises Deposed if the job is another's."""
        with self._talking():
            if self._epoch is not None:
                self._epoch.require(self._client)
            self._client.retry(self._client.ensure_path, self.root)

    def publish(self, node: Node[T], value: T) -> None:
        """Create or overwrite a node, behind what was acknowledged before.

        Who has led publishes only until another one is elected, and after that raises ServiceUnavailable.
        """
        path = self._at(node)
        *parts, (_, data) = self._writes(path, node.encode(value))
        with self._talking():
            self._confirm()
            for part, piece in parts:
                self._ensure(part, piece)  # it may have arrived, and the answer not
            try:
                self._client.retry(self._put, path, data)
            except BadVersionError:
                told = f"{node.path} is not written: another coordinator leads {self.root} now"
                raise ServiceUnavailable(told) from None
        if (before := self._in_parts.pop(path, None)) is not None:
            self._withdraw(f"{self.root}/{before.decode()}")
        if parts:
            self._in_parts[path] = data

    def _at(self, node: Node[Any] | Folder[Any]) -> str:
        return f"{self.root}/{node.path}".rstrip("/")

    def _put(self, node: str, data: bytes) -> None:
        """May be repeated: nobody else writes the node, or nobody who comes before in the order of terms."""
        try:
            self._in_term("set_data", node, data)
        except NoNodeError:
            self._make_parents(node)
            self._in_term("create", node, data)

    def _create(self, node: str, data: bytes, ephemeral: bool = False) -> None:
        try:
            self._client.retry(self._client.create, node, data, ephemeral=ephemeral)
        except NoNodeError:
            self._make_parents(node)
            self._client.retry(self._client.create, node, data, ephemeral=ephemeral)

    def _ensure(self, node: str, data: bytes = b"") -> None:
        """Create it, if it is not there."""
        with contextlib.suppress(NodeExistsError):
            self._create(node, data)

    def _make_parents(self, node: str) -> None:
        """Raises NoNodeError if the root is not there."""
        for parent in parents(self.root, node):
            with contextlib.suppress(NodeExistsError):
                self._client.retry(self._client.create, parent)

    def _in_term(self, write: str, node: str, *data: bytes) -> None:
        """One write, if this one is the driver still, and leads still."""
        transaction = self._transaction()
        if self._term is not None:
            transaction.check(f"{self.root}/leader", self._term)
        getattr(transaction, write)(node, *data)
        self._commit(transaction)

    def _transaction(self) -> TransactionRequest:
        transaction = self._client.transaction()
        if self._epoch is not None:
            self._epoch.also(transaction)
        return transaction

    def _commit(self, transaction: TransactionRequest) -> list[Any]:
        """All or nothing. Raises Deposed, and what kept it from being done, which kazoo hides among the results."""
        results: list[Any] = transaction.commit()
        for result in results:
            if isinstance(result, KazooException) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                if self._epoch is not None:
                    self._epoch.require(self._client)
                raise result
        return results

    def acknowledge(self, node: Node[T], value: T) -> None:
        """Create a node that others wait for, without blocking; the first one counts."""
        self.check()
        self._acknowledgements.create(self._writes(self._at(node), node.encode(value)))

    def _confirm(self) -> None:
        """Wait until all that was acknowledged is there."""
        there = self._acknowledgements.wait(GIVE_UP_S)
        self.check()
        if not there:
            raise ServiceUnavailable(f"ZooKeeper at {self._hosts} did not answer within {GIVE_UP_S:g} s")

    def _writes(self, node: str, data: bytes) -> list[Write]:
        """The writes after which ``node`` holds ``data``, that of the node itself last."""
        if len(data) <= PART_BYTES:
            return [(node, data)]
        pieces = [data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES)]
        folder = f"{PARTS.decode()}{secrets.token_hex(8)}-{len(pieces)}"
        parts = [(f"{self.root}/{folder}/{number}", piece) for number, piece in enumerate(pieces)]
        return [*parts, (node, folder.encode())]

    def register(self, node: Node[T], value: T) -> None:
        """An ephemeral node: it goes when this object is closed. Takes over what an earlier holder left."""
        path, data = self._at(node), node.encode(value)
        with self._holding, self._talking():
            self._held[path] = data
            self._contend(NodeExistsError, self._claim, path, data)

    def _claim(self, node: str, data: bytes) -> None:
        try:
            self._create(node, data, ephemeral=True)
        except NodeExistsError:
            self._delete(node)
            raise

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:
        """Delete a node or a folder and all below it, if it is there."""
        self._withdraw(self._at(node))

    def _withdraw(self, node: str) -> None:
        with self._holding:
            self._held.pop(node, None)
        with self._talking():
            self._delete(node)

    def _delete(self, node: str) -> None:
        self._contend(NotEmptyError, self._delete_below, node)

    def _delete_below(self, node: str) -> None:
        try:
            self._client.retry(self._in_term, "delete", node)
        except NoNodeError:
            pass
        except NotEmptyError:
            for name in self._names(node):
                self._delete(f"{node}/{name}")
            raise

    def _contend(self, refused: type[KazooException], act: Callable[..., None], *arguments: Any) -> None:
        """``act``, again while somebody else undoes what it has done, but not for ever."""
        again = Retrying(retry=retry_if_exception_type(refused), stop=stop_after_delay(GIVE_UP_S), reraise=True)
        again(act, *arguments)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, node: Node[T]) -> T | None:
        """The value of a node, or None if it is not there."""
        with self._talking():
            data = self._client.retry(self._read, self._at(node))
        return None if data is None else node.decode(data)

    def _read(self, node: str) -> bytes | None:
        try:
            data, _ = self._client.get(node)
        except NoNodeError:
            return None
        try:
            return self._whole(data)
        except NoNodeError:
            raise ForceRetryError from None  # it was overwritten meanwhile

    def _whole(self, data: bytes) -> bytes:
        """What a node holds, itself or in parts. Raises NoNodeError if these are gone: the node was overwritten."""
        if not data.startswith(PARTS):
            return data
        folder, count = data.decode(), int(data.rsplit(b"-", 1)[1])
        answers = [self._client.get_async(f"{self.root}/{folder}/{number}") for number in range(count)]
        return b"".join(answer.get()[0] for answer in answers)

    def require(self, node: Node[T]) -> T:
        """The value of a node that must be there. Raises ServiceUnavailable if it is not."""
        value = self.read(node)
        if value is None:
            raise ServiceUnavailable(f"{self._at(node)} is missing in ZooKeeper: was the job's folder removed?")
        return value

    def children(self, folder: Folder[Any]) -> list[str]:
        """Names in a folder; empty if it is not there."""
        with self._talking():
            return self._names(self._at(folder))

    def _names(self, node: str) -> list[str]:
        try:
            return self._client.retry(self._client.get_children, node)  # type: ignore[no-any-return]
        except NoNodeError:
            return []

    def read_below(self, folder: Folder[T]) -> dict[str, T]:
        """The values of all nodes in a folder, by name."""
        names = self.children(folder)
        with self._talking():
            found = self._client.retry(self._read_all, self._at(folder), names)
        return {name: folder[name].decode(data) for name, data in found.items()}

    def _read_all(self, folder: str, names: list[str]) -> dict[str, bytes]:
        answers = [self._client.get_async(f"{folder}/{name}") for name in names]  # all under way at once
        return {name: self._whole(answer.get()[0]) for name, answer in zip(names, answers, strict=True)}

    def watch(
        self, node: Node[T], call: Callable[[T], bool | None], gone: Callable[[], bool | None] = lambda: None
    ) -> None:
        """Call with the value now (if any) and at every change, from kazoo's thread, until it returns False.

        ``gone`` is called instead while there is no value.
        """

        def changed(data: bytes | None, _stat: Any) -> bool | None:
            if not data:
                return gone()
            try:
                whole = self._client.retry(self._whole, data)
            except NoNodeError:
                return None  # it was overwritten meanwhile: that is the next call
            return call(node.decode(whole))

        with self._talking():
            self._client.DataWatch(self._at(node), changed)
        self.check()  # kazoo does not tell if it has ended

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], bool | None]) -> None:
        """Call with the names in a folder, now and at every change, until it returns False. Creates the folder."""
        path = self._at(folder)
        with self._talking():
            self._ensure(path)
            self._client.ChildrenWatch(path, call)
        self.check()

    # -- leading ------------------------------------------------------------------------------------------------------

    def lead(self, name: str, act: Callable[[], None]) -> None:
        """Wait to be elected among those who want to lead the job, act, and step back.

        The first time begins a *term*, a version of the node ``leader``; it ends when another one is elected. A session
        that expires while nobody else wants to lead does not end it.
        """
        election = self._client.Election(f"{self.root}/election", name)

        def elected() -> None:
            if self._term is None:
                self._ensure(f"{self.root}/leader")
                self._term = self._client.retry(self._begin_term, f"{self.root}/election/{election.lock.node}", name)
            act()

        with self._talking():
            election.run(elected)

    def _begin_term(self, candidate: str, name: str) -> int:
        transaction = self._transaction()
        transaction.check(candidate, -1)  # whose session has expired since then is elected no more
        transaction.set_data(f"{self.root}/leader", name.encode())
        return self._commit(transaction)[-1].version  # type: ignore[no-any-return]

    # -- driving ------------------------------------------------------------------------------------------------------

    def claim(self, job: str, first: bool = False) -> Epoch:
        """Be the driver of ``job`` from now on; who was is deposed. ``first``: there was none before.

        Raises NotThere if the job is over.
        """
        with self._talking():
            return (begun if first else claimed)(self._client, job)

    def require_epoch(self) -> None:
        """Raises Deposed if this one is of a driver, and another one has claimed the job."""
        if self._epoch is not None:
            with self._talking():
                self._epoch.require(self._client)

    def end_epoch(self) -> None:
        """The job of this one's driver is over: nobody can claim it any more. Raises Deposed if it is another's."""
        if self._epoch is not None:
            with self._talking():
                self._epoch.end(self._client)
