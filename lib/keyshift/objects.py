"""Objects in a bucket of an S3 store: MinIO, unless a profile names another. The only module that knows its client."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error
from tqdm.utils import CallbackIOWrapper
from urllib3.exceptions import HTTPError

from keyshift.endpoints import Endpoints
from keyshift.model.errors import (
    BadInput,
    Damaged,
    KeyshiftError,
    NotThere,
    Refused,
    ServiceUnavailable,
    Undelivered,
    service_errors,
)
from keyshift.progress import Say, tell
from keyshift.waiting import wait_until

T = TypeVar("T")

# S3 error codes by what the reader has to do about them.
REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"}
FULL = {"XMinioStorageFull", "XMinioDiskFull", "QuotaExceeded"}
PART_BYTES = 5 << 20  # the least the minio client accepts
CONNECT_S = 3.0
AWAY_S = 60.0  # for which who has worked for minutes waits for a store: one that was begun anew is there by then
ByteProgress = Callable[[int], None]  # hears of so many bytes more


class Bucket:
    """The objects of a bucket below ``prefix``, which ends in a slash or is empty; names are without it.

    ``answer_s``: how long to wait for an answer; ``retries``: how often to ask again. ``client``: of S3, in place of
    one of its own. Every method may raise ServiceUnavailable, in one line that names the object; ``Refused`` if the
    credentials do not fit.
    """

    def __init__(
        self, endpoints: Endpoints, prefix: str = "", answer_s: float = 60.0, retries: int = 2, client: Any = None
    ) -> None:
        self._address, self._name, self._prefix = endpoints.minio, endpoints.bucket, prefix
        # The client's own pool waits five minutes and tries six times before it says that nobody is there.
        pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT_S, read=answer_s),
            retries=urllib3.Retry(
                total=retries,
                connect=min(1, retries),
                backoff_factor=0.2,
                status_forcelist=[502, 503, 504],
                respect_retry_after_header=False,  # MinIO asks for a minute or two, also while it starts
            ),
        )
        try:
            self._client: Minio = client or Minio(
                endpoints.minio,
                access_key=endpoints.access_key,
                secret_key=endpoints.secret_key,
                secure=endpoints.secure,
                http_client=pool,
            )
        except ValueError as error:
            raise BadInput(f"MinIO address {endpoints.minio!r}: {error}; expected host:port") from None

    def put(
        self,
        name: str,
        content: bytes | bytearray,
        in_parts: bool = False,
        progress: ByteProgress = lambda more: None,
    ) -> None:
        """Write an object, or replace one.

        In one request, so that nothing stays behind if it is interrupted; ``in_parts`` takes less memory. ``progress``
        hears of each part when it is to be sent: the one before has arrived.
        """
        told: Any = CallbackIOWrapper(progress, io.BytesIO(content))  # a file for whoever reads it
        with self._talking(f"{self._prefix}{name} cannot be written"):
            self._client.put_object(
                self._name,
                self._prefix + name,
                told,
                len(content),
                part_size=0 if in_parts else max(len(content), PART_BYTES),
            )

    def get(self, name: str, offset: int = 0, length: int = 0) -> bytes:
        """Read ``length`` bytes of an object from ``offset`` on (0: all). Raises NotThere if there is no such object,
        Damaged if it ends before them, and Undelivered if they do not come.
        """
        with self._talking(f"{self._prefix}{name} cannot be read", Undelivered):
            response = self._client.get_object(self._name, self._prefix + name, offset=offset, length=length)
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()

    def read(self, name: str) -> bytes:
        """Read a whole object, once more if that seems damaged. Raises NotThere, and Damaged as ``surely``."""
        return surely(self.get, name, self.names)

    def names(self, begin: str = "") -> list[str]:
        """Names of the objects that begin so."""
        prefix = self._prefix + begin
        with self._talking(f"{prefix} cannot be listed"):
            found = self._client.list_objects(self._name, prefix=prefix, recursive=True)
            return [str(each.object_name).removeprefix(self._prefix) for each in found]

    def folders(self) -> list[str]:
        """Names of the folders directly below the prefix, without the slash."""
        with self._talking(f"{self._prefix} cannot be listed"):
            found = self._client.list_objects(self._name, prefix=self._prefix, recursive=False)
            names = (str(each.object_name).removeprefix(self._prefix) for each in found)
            return [name.removesuffix("/") for name in names if name.endswith("/")]

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects one after the other, in this order; whether they are there or not."""
        for name in names:
            with self._talking(f"{self._prefix}{name} cannot be removed"):
                self._client.remove_object(self._name, self._prefix + name)

    def make(self) -> bool:
        """Make the bucket unless it is there; says whether it did. Raises BadInput for a name S3 does not allow."""
        try:
            with self._talking(f"bucket {self._name!r} cannot be made"):
                if self._client.bucket_exists(self._name):
                    return False
                try:
                    self._client.make_bucket(self._name)
                except S3Error as error:
                    if error.code != "BucketAlreadyOwnedByYou":  # somebody else was faster
                        raise
                    return False
        except ValueError as error:
            raise BadInput(f"bucket {self._name!r}: {error}; 3 to 63 small letters, digits, dots and dashes") from None
        return True

    def _talking(
        self, trouble: str, otherwise: type[ServiceUnavailable] = ServiceUnavailable
    ) -> AbstractContextManager[None]:
        return service_errors(
            (MinioException, HTTPError, OSError, ParseError), lambda error: self._explained(trouble, error, otherwise)
        )

    def _explained(self, trouble: str, error: Exception, otherwise: type[ServiceUnavailable]) -> KeyshiftError:
        where = f"MinIO at {self._address}"
        if isinstance(error, S3Error):
            if error.code in REFUSED:
                remedy = "check the access key and the secret key, and what they may do"
                return Refused(f"{trouble}: {where} refused the credentials ({error.code}): {remedy}")
            if error.code == "NoSuchKey":
                return NotThere(f"{trouble}: it does not exist in bucket {self._name!r} of {where}")
            if error.code == "InvalidRange":
                return Damaged(f"{trouble}: it is shorter in bucket {self._name!r} of {where} than it was written")
            if error.code == "NoSuchBucket":
                how = "`keyshift up`; in a store of others its own tool, or the image's `bucket`"
                said = f"has no bucket {self._name!r}: make it ({how}), or name another"
            elif error.code in FULL:
                said = f"has no space left ({error.code}): delete runs (`keyshift results delete`) or free its disk"
            else:
                said = f"answered {error.code}: {error.message}"
        elif isinstance(error, (HTTPError, OSError)):
            cause = getattr(error, "reason", None) or error
            said = f"does not answer ({type(cause).__name__}): start it with `keyshift up`, or check the address"
        else:
            said = f"does not answer like MinIO ({str(error).partition(chr(10))[0][:120]}): check the address"
        return otherwise(f"{trouble}: {where} {said}")


def surely(read: Callable[[str], T], name: str, ask: Callable[[str], object]) -> T:
    """Return what ``read`` gives of ``name``, once more if that seems damaged: a connection may have broken. Raises
    Damaged as ``damage_told`` does.
    """
    with suppress(Damaged), damage_told(ask, name):
        return read(name)
    with damage_told(ask, name):
        return read(name)


def await_answer(ask: Callable[[], T], within_s: float = AWAY_S, say: Say = tell) -> T:
    """Ask a store until it answers, for so long at the most, and return what it says. That it is away is told once.

    Raises ServiceUnavailable if it has not answered by then, Refused at once.
    """
    found, problem = list[T](), ""

    def answered() -> bool:
        nonlocal problem
        try:
            found.append(ask())
        except Refused:
            raise
        except ServiceUnavailable as error:
            if not problem:
                say(f"waiting for the store, for up to {within_s:.0f} s: {error}")
            problem = str(error)
        return bool(found)

    if not wait_until(answered, within_s, every_s=1.0):
        raise ServiceUnavailable(f"{problem} (tried for {within_s:.0f} s)")
    return found[0]


@contextmanager
def damage_told(ask: Callable[[str], object], name: str) -> Iterator[None]:
    """Raise Damaged, in place of Undelivered, if the store answers when something else is asked of it about ``name``.
    Inside, an object is read, as often as there is time for.

    MinIO has checksums of its files. Where one has rotted or is gone it delivers no bytes, but breaks off, or says that
    it is busy or has an internal error, as often as it is asked: whoever reads takes that for a store that is away.
    """
    try:
        yield
    except Undelivered as error:
        try:
            ask(name)
        except ServiceUnavailable:
            raise error from None
        what, *_ = str(error).split(": ")  # the rest tells how to start a store that is away
        raise Damaged(f"{what}, and the store answers otherwise: it is damaged") from error
