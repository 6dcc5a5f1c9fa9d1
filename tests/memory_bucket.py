"""S3 in memory: the one stand-in for MinIO's client. ``tests/contract`` holds both to the same promises."""

import io
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from minio.error import S3Error
from urllib3.exceptions import ProtocolError


class MemoryBucket:
    """As much of the client as our code uses, over a dictionary.

    ``error``: what every call raises; ``failures``: what the next looks for the bucket raise, one each. ``rotten``:
    objects that are listed and never delivered.
    """

    def __init__(self, error: Exception | None = None, failures: Iterable[Exception] = ()) -> None:
        self.objects: dict[str, bytes] = {}
        self.sizes: dict[str, tuple[int, int]] = {}  # of what was written, and of its parts
        self.buckets: set[str] = set()
        self.rotten: set[str] = set()
        self.error, self.failures = error, list(failures)

    def _called(self) -> None:
        if self.error:
            raise self.error

    def put_object(self, bucket: str, name: str, data: io.BytesIO, length: int, part_size: int) -> None:
        self._called()
        content = data.read(length)
        assert len(content) == length
        self.objects[name], self.sizes[name] = content, (length, part_size)

    def get_object(self, bucket: str, name: str, offset: int = 0, length: int = 0) -> Any:
        self._called()
        if (found := self.objects.get(name)) is None:
            raise s3_error("NoSuchKey")
        if name in self.rotten:
            raise ProtocolError("connection broken")
        if (offset or length) and offset >= len(found):
            raise s3_error("InvalidRange")
        data = bytes(found[offset : offset + length if length else None])
        return SimpleNamespace(read=lambda: data, close=lambda: None, release_conn=lambda: None)

    def list_objects(self, bucket: str, prefix: str, recursive: bool) -> list[Any]:
        self._called()
        names = sorted(name for name in self.objects.copy() if name.startswith(prefix))  # others write meanwhile
        if not recursive:  # folders end in a slash
            below = (name.removeprefix(prefix).partition("/") for name in names)
            names = sorted({prefix + first + slash for first, slash, _ in below})
        return [SimpleNamespace(object_name=name) for name in names]

    def remove_object(self, bucket: str, name: str) -> None:
        self._called()
        self.objects.pop(name, None)

    def bucket_exists(self, bucket: str) -> bool:
        if self.failures:
            raise self.failures.pop(0)
        return bucket in self.buckets

    def make_bucket(self, bucket: str) -> None:
        self._called()
        self.buckets.add(bucket)


def s3_error(code: str) -> S3Error:
    """What MinIO's client raises for this answer of the store."""
    return S3Error(response=None, code=code, message="so it is", resource=None, request_id=None, host_id=None)  # type: ignore[arg-type]
