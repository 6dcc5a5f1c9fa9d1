"""What a store says becomes one line that names the object, the address and the remedy; the client is a stand-in.

tests/integration has a real MinIO.
"""

from types import SimpleNamespace
from xml.etree.ElementTree import ParseError

import pytest
from minio.error import InvalidResponseError, S3Error
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, ProtocolError

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, NotThere, Refused, ServiceUnavailable
from keyshift.objects import PART_BYTES, Bucket

ENDPOINTS = Endpoints("", "", "store:9000", "somebody", "a-secret", bucket="results")


class Client:
    """As much of MinIO's client as a bucket uses; every call raises ``error`` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.objects, self.sizes = error, {}, {}
        self.buckets: list[str] = []

    def _called(self) -> None:
        if self.error:
            raise self.error

    def put_object(self, bucket, name, data, length, part_size):
        self._called()
        self.objects[name] = data.read()
        self.sizes[name] = length, part_size

    def get_object(self, bucket, name, offset, length):
        self._called()
        data = self.objects[name][offset : offset + length if length else None]
        return SimpleNamespace(read=lambda: data, close=lambda: None, release_conn=lambda: None)

    def list_objects(self, bucket, prefix, recursive):
        self._called()
        return [SimpleNamespace(object_name=name) for name in sorted(self.objects) if name.startswith(prefix)]

    def remove_object(self, bucket, name):
        self._called()
        self.objects.pop(name, None)

    def bucket_exists(self, bucket):
        return bucket in self.buckets

    def make_bucket(self, bucket):
        self._called()
        self.buckets.append(bucket)


def bucket(client: Client, prefix: str = "runs/") -> Bucket:
    made = Bucket(ENDPOINTS, prefix)
    made._client = client
    return made


def s3(code: str) -> S3Error:
    return S3Error(response=None, code=code, message="so it is", resource=None, request_id=None, host_id=None)


def test_objects_come_back_whole_or_in_part_under_the_names_without_the_prefix():
    client = Client()
    here, other = bucket(client), bucket(client, "batches/")
    here.put("a/1", b"one and all")
    here.put("a/2", bytearray(b"two"))
    other.put("a/3", b"three")
    assert (here.get("a/1"), here.get("a/2"), here.get("a/1", 4, 3)) == (b"one and all", b"two", b"and")
    assert here.names() == here.names("a/") == ["a/1", "a/2"]
    assert here.names("a/2") == ["a/2"]
    here.remove(["a/2", "a/none", "a/1"])
    assert list(client.objects) == ["batches/a/3"]


def test_an_object_goes_in_one_request_unless_in_parts_is_said():
    client = Client()
    for name, size, in_parts in (("small", 1, False), ("large", 2 * PART_BYTES, False), ("parts", PART_BYTES, True)):
        bucket(client, "").put(name, bytes(size), in_parts)
    assert client.sizes == {
        "small": (1, PART_BYTES),
        "large": (2 * PART_BYTES, 2 * PART_BYTES),
        "parts": (PART_BYTES, 0),
    }


CALLS = {
    "runs/a/1 cannot be read": lambda objects: objects.get("a/1"),
    "runs/a/1 cannot be written": lambda objects: objects.put("a/1", b""),
    "runs/a/1 cannot be removed": lambda objects: objects.remove(["a/1"]),
    "runs/a cannot be listed": lambda objects: objects.names("a"),
    "bucket 'results' cannot be made": lambda objects: objects.make(),
}
UNREACHABLE = MaxRetryError(None, "/", ConnectTimeoutError("no route"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (s3("SignatureDoesNotMatch"), "refused the credentials (SignatureDoesNotMatch): check the access key"),
        (s3("NoSuchBucket"), "has no bucket 'results': create it (`keyshift up` does)"),
        (s3("XMinioStorageFull"), "has no space left (XMinioStorageFull): delete runs"),
        (s3("SlowDown"), "answered SlowDown: so it is"),
        (UNREACHABLE, "does not answer (ConnectTimeoutError): start it with `keyshift up`"),
        (ProtocolError("cut off"), "does not answer (ProtocolError)"),
        (ConnectionResetError(), "does not answer (ConnectionResetError)"),
        (InvalidResponseError(200, "text/html", "<p>\nhello"), "does not answer like MinIO ("),
        (ParseError("mismatched tag"), "does not answer like MinIO (mismatched tag)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_whatever_goes_wrong_is_one_line_that_names_the_object_the_address_and_what_to_do(error, words):
    for trouble, call in CALLS.items():
        with pytest.raises(ServiceUnavailable) as told:
            call(bucket(Client(error)))
        line = str(told.value)
        assert line.startswith(f"{trouble}: MinIO at store:9000 {words}")
        assert "\n" not in line and "a-secret" not in line


def test_refused_credentials_and_a_missing_object_are_told_from_a_store_that_is_away():
    with pytest.raises(Refused):
        bucket(Client(s3("AccessDenied"))).names()
    with pytest.raises(
        NotThere, match="runs/a/1 cannot be read: it does not exist in bucket 'results' of MinIO at store"
    ):
        bucket(Client(s3("NoSuchKey"))).get("a/1")


def test_a_bucket_is_made_once_whoever_is_first():
    client = Client()
    assert [bucket(client).make(), bucket(client).make()] == [True, False]
    assert client.buckets == ["results"]
    assert bucket(Client(s3("BucketAlreadyOwnedByYou"))).make() is False


def test_a_name_or_an_address_that_is_none_is_bad_input():
    with pytest.raises(BadInput, match="bucket 'results': no capitals; 3 to 63 small letters"):
        bucket(Client(ValueError("no capitals"))).make()
    with pytest.raises(BadInput, match=r"MinIO address 'http://here': .*expected host:port"):
        Bucket(Endpoints("", "", "http://here", "a", "s"))
