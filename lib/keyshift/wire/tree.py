"""The nodes of ZooKeeper below one root, as bytes.

A value that is too long for one node is compressed, in a folder of ``parts``: what is long says much the same of each
unit. Who leads is in ``election`` and ``leader``.
"""

import contextlib
import re
import secrets
import zlib
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.retry import ForceRetryError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from keyshift.wire.client import GIVE_UP_S
from keyshift.wire.confirmed import Write, parents
from keyshift.wire.epoch import Epoch

PART_BYTES = 512 << 10  # ZooKeeper takes less than 1 MiB in one message
PARTS = "parts"
_IN_PARTS = b"/"  # so begins what is held in place of a long value, the path of its parts, and no JSON
_PART = re.compile(rf".*/{PARTS}/[0-9a-f]{{16}}-\d+/\d+")  # the path of a part, from whatever root it is seen
_FAST = 1  # level of zlib


class GuardedWrites:
    """Writes below ``root`` that are refused once the session's driver or coordinator has a successor.

    With an ``epoch`` they raise Deposed when another driver has claimed the job; in a term they raise BadVersionError
    when another coordinator leads.
    """

    def __init__(self, client: KazooClient, root: str, epoch: Epoch | None) -> None:
        self._client, self._leader, self._epoch = client, f"{root}/leader", epoch
        self._term: int | None = None  # the version of ``leader`` while this session leads

    def keep_term(self, candidate: str, name: str) -> None:
        """Lead as by ``begin_term``, or go on in a term that was begun in this session. Writes are refused when it is
        over.
        """
        if self._term is None:
            self._term = self.begin_term(candidate, name)

    def begin_term(self, candidate: str, name: str) -> int:
        """Let ``name`` lead from now on, and give the term. Raises NoNodeError if its ``candidate`` has gone: its
        session has expired.
        """
        return self._client.retry(self._led, candidate, name)  # type: ignore[no-any-return]

    def _led(self, candidate: str, name: str) -> int:
        transaction = self._transaction()
        transaction.check(candidate, -1)  # whose session has expired since then is elected no more
        transaction.set_data(self._leader, name.encode())
        return self._commit(transaction)[-1].version  # type: ignore[no-any-return]

    def write(self, operation: str, path: str, *data: bytes) -> None:
        """Do one ``operation`` of a transaction: ``set_data``, ``create`` or ``delete``."""
        transaction = self._transaction()
        if self._term is not None:
            transaction.check(self._leader, self._term)
        getattr(transaction, operation)(path, *data)
        self._commit(transaction)

    def _transaction(self) -> TransactionRequest:
        transaction = self._client.transaction()
        if self._epoch is not None:
            self._epoch.also(transaction)
        return transaction

    def _commit(self, transaction: TransactionRequest) -> list[Any]:
        """Do all or nothing. Raises Deposed, and what kept it from being done, which kazoo hides among the results."""
        results: list[Any] = transaction.commit()
        for result in results:
            if isinstance(result, KazooException) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                if self._epoch is not None:
                    self._epoch.require(self._client)
                raise result
        return results


class Tree:
    """What one session reads and writes below ``root``. All methods take whole paths and raise errors of kazoo.

    Nobody makes the root here: each write below a root that is not there raises NoNodeError. ``write`` and ``delete``
    are refused as ``guarded`` says.
    """

    def __init__(self, client: KazooClient, root: str, guarded: GuardedWrites) -> None:
        self.root, self._client, self._guarded = root, client, guarded
        self._written: dict[str, bytes] = {}  # nodes -> what this session has made them hold, if it is in parts

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Create or overwrite a node. Of what it held before, the parts go, whoever wrote them."""
        *parts, (_, held) = self.writes(path, data)
        for part, piece in parts:
            self.ensure(part, piece)  # it may have arrived, and the answer not
        if (before := self._written.get(path)) is None:
            before = self._held(path)
        self._client.retry(self._put, path, held)
        self._written[path] = held if parts else b""
        if before and before.startswith(_IN_PARTS):
            self.delete(before.decode())

    def writes(self, path: str, data: bytes) -> list[Write]:
        """The writes after which the node holds ``data``, that of the node itself last."""
        if len(data) <= PART_BYTES:
            return [(path, data)]
        data = zlib.compress(data, _FAST)
        pieces = [data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES)]
        folder = f"{self.root}/{PARTS}/{secrets.token_hex(8)}-{len(pieces)}"
        parts = [(f"{folder}/{number}", piece) for number, piece in enumerate(pieces)]
        return [*parts, (path, folder.encode())]

    def ensure(self, path: str, data: bytes = b"") -> None:
        """Create a node, if it is not there."""
        with contextlib.suppress(NodeExistsError):
            self._create(path, data)

    def hold(self, path: str, data: bytes) -> None:
        """Create an ephemeral node in place of one that an earlier holder left."""
        _contend(NodeExistsError, self._hold, path, data)

    def delete(self, path: str) -> None:
        """Delete a node and all below it, if it is there. Of what it held, the parts go, too."""
        _contend(NotEmptyError, self._delete_below, path)

    def _put(self, path: str, data: bytes) -> None:
        """Put a node. May be repeated: nobody else writes it, or nobody who comes before in the order of terms."""
        try:
            self._guarded.write("set_data", path, data)
        except NoNodeError:
            self._make_parents(path)
            self._guarded.write("create", path, data)

    def _create(self, path: str, data: bytes, ephemeral: bool = False) -> None:
        try:
            self._client.retry(self._client.create, path, data, ephemeral=ephemeral)
        except NoNodeError:
            self._make_parents(path)
            self._client.retry(self._client.create, path, data, ephemeral=ephemeral)

    def _make_parents(self, path: str) -> None:
        for parent in parents(self.root, path):
            with contextlib.suppress(NodeExistsError):
                self._client.retry(self._client.create, parent)

    def _hold(self, path: str, data: bytes) -> None:
        try:
            self._create(path, data, ephemeral=True)
        except NodeExistsError:
            self.delete(path)
            raise

    def _delete_below(self, path: str) -> None:
        held = b"" if _PART.fullmatch(path) else self._held(path)  # a part may be long, and holds no path
        if held is None:
            return
        try:
            self._delete_alone(path)
        except NotEmptyError:
            for name in self.names(path):
                self.delete(f"{path}/{name}")
            self._delete_alone(path)  # at once: many children may take longer than there is time to contend
        self._written.pop(path, None)
        if held.startswith(_IN_PARTS):
            self.delete(held.decode())

    def _delete_alone(self, path: str) -> None:
        with contextlib.suppress(NoNodeError):  # it was sent twice
            self._client.retry(self._guarded.write, "delete", path)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _held(self, path: str) -> bytes | None:
        """Read what ZooKeeper has of a node itself; None if it is not there."""
        try:
            return self._client.retry(self._client.get, path)[0]  # type: ignore[no-any-return]
        except NoNodeError:
            return None

    def read(self, path: str) -> bytes | None:
        """Read what a node holds; None if it is not there."""
        return self._client.retry(self._read, path)  # type: ignore[no-any-return]

    def _read(self, path: str) -> bytes | None:
        try:
            data, _ = self._client.get(path)
        except NoNodeError:
            return None
        try:
            return self.whole(data)
        except NoNodeError:
            raise ForceRetryError from None  # it was overwritten meanwhile

    def whole(self, data: bytes) -> bytes:
        """Return what a node with ``data`` holds, itself or in parts. Raises NoNodeError if it was overwritten."""
        if not data.startswith(_IN_PARTS):
            return data
        folder, count = data.decode(), int(data.rsplit(b"-", 1)[1])
        answers = [self._client.get_async(f"{folder}/{number}") for number in range(count)]
        return zlib.decompress(b"".join(answer.get()[0] for answer in answers))

    def names(self, path: str) -> list[str]:
        """Names below a node; none if it is not there."""
        try:
            return self._client.retry(self._client.get_children, path)  # type: ignore[no-any-return]
        except NoNodeError:
            return []

    def read_below(self, path: str) -> dict[str, bytes]:
        """Read what all nodes below one hold, by name."""
        return self._client.retry(self._read_all, path, self.names(path))  # type: ignore[no-any-return]

    def _read_all(self, path: str, names: list[str]) -> dict[str, bytes]:
        answers = [self._client.get_async(f"{path}/{name}") for name in names]  # all under way at once
        found = {}
        for name, answer in zip(names, answers, strict=True):
            with contextlib.suppress(NoNodeError):  # it has gone since it was listed
                found[name] = answer.get()[0]
        try:
            return {name: self.whole(data) for name, data in found.items()}
        except NoNodeError:
            raise ForceRetryError from None  # one was overwritten meanwhile, or has gone


def _contend(refused: type[KazooException], act: Callable[..., None], *arguments: Any) -> None:
    """Call ``act``, again while somebody else undoes what it has done, but not for ever."""
    again = Retrying(retry=retry_if_exception_type(refused), stop=stop_after_delay(GIVE_UP_S), reraise=True)
    again(act, *arguments)
