"""What a store says becomes one line that names the object, the address and the remedy; the client is a stand-in.

What objects promise otherwise: tests/contract.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree.ElementTree import ParseError

import pytest
import urllib3.util.retry
from minio.error import InvalidResponseError
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, ProtocolError

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, Damaged, NotThere, Refused, ServiceUnavailable, Undelivered
from keyshift.objects import PART_BYTES, Bucket, damage_told, surely
from memory_bucket import MemoryBucket, s3_error
from waits import only_here

ENDPOINTS = Endpoints("", "", "store:9000", "somebody", "a-secret", bucket="results")


def objects(client: MemoryBucket, prefix: str = "runs/") -> Bucket:
    return Bucket(ENDPOINTS, prefix, client=client)


def test_an_object_goes_in_one_request_unless_in_parts_is_said():
    client = MemoryBucket()
    for name, size, in_parts in (("small", 1, False), ("large", 2 * PART_BYTES, False), ("parts", PART_BYTES, True)):
        objects(client, "").put(name, bytes(size), in_parts)
    sizes = {"small": (1, PART_BYTES), "large": (2 * PART_BYTES, 2 * PART_BYTES), "parts": (PART_BYTES, 0)}
    assert client.sizes == sizes


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
        (s3_error("SignatureDoesNotMatch"), "refused the credentials (SignatureDoesNotMatch): check the access key"),
        (s3_error("NoSuchBucket"), "has no bucket 'results': make it (`keyshift up`; in a store of others its own"),
        (s3_error("XMinioStorageFull"), "has no space left (XMinioStorageFull): delete runs"),
        (s3_error("SlowDown"), "answered SlowDown: so it is"),
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
            call(objects(MemoryBucket(error)))
        line = str(told.value)
        assert line.startswith(f"{trouble}: MinIO at store:9000 {words}")
        assert "\n" not in line and "a-secret" not in line


@pytest.mark.parametrize("error", [UNREACHABLE, ProtocolError("cut off"), s3_error("SlowDownRead")])
def test_an_object_that_does_not_come_is_told_from_anything_else_that_is_not_done(error):
    """The store may have found that it is damaged."""
    for call in CALLS.values():
        with pytest.raises(ServiceUnavailable) as told:
            call(objects(MemoryBucket(error)))
        assert isinstance(told.value, Undelivered) is (call is CALLS["runs/a/1 cannot be read"])


def test_what_a_store_does_not_deliver_that_answers_otherwise_is_damaged():
    client = MemoryBucket()
    here = objects(client)
    for name in ("a/1", "a/2"):
        here.put(name, b"content")
    client.rotten = {"runs/a/1"}
    words = "^runs/a/1 cannot be read, and the store answers otherwise: it is damaged$"
    with pytest.raises(Damaged, match=words), damage_told(here.names, "a"):
        here.get("a/1")
    with damage_told(here.names, "a"):
        assert here.get("a/2") == b"content"


def test_a_connection_that_broke_once_is_no_damage():
    client = MemoryBucket()
    here = objects(client)
    here.put("a/1", b"content")
    client.rotten = {"runs/a/1"}

    def names(begin):
        client.rotten = set()
        return here.names(begin)

    assert surely(here.get, "a/1", names) == b"content"
    client.rotten = {"runs/a/1"}
    with pytest.raises(Damaged, match="answers otherwise: it is damaged"):
        surely(here.get, "a/1", here.names)


@pytest.mark.parametrize("error", [UNREACHABLE, s3_error("SlowDown")])
def test_of_a_store_that_is_away_nothing_is_known(error):
    here = objects(MemoryBucket(error))
    with pytest.raises(Undelivered, match="a/1 cannot be read"), damage_told(here.names, "a"):
        here.get("a/1")
    with pytest.raises(ServiceUnavailable) as told:
        surely(here.get, "a/1", here.names)
    assert not isinstance(told.value, Damaged)


@pytest.mark.parametrize("error", [Refused("AccessDenied"), ServiceUnavailable("no database can be made")])
def test_what_else_fails_while_an_object_is_read_says_nothing_about_it(error):
    with pytest.raises(type(error), match=str(error)), damage_told(objects(MemoryBucket()).names, "a"):
        raise error


def test_refused_credentials_and_a_missing_object_are_told_from_a_store_that_is_away():
    with pytest.raises(Refused):
        objects(MemoryBucket(s3_error("AccessDenied"))).names()
    with pytest.raises(NotThere, match="runs/a/1 cannot be read: it does not exist in bucket 'results' of MinIO"):
        objects(MemoryBucket(s3_error("NoSuchKey"))).get("a/1")


def test_a_bucket_that_somebody_else_makes_at_the_same_time_is_there():
    assert objects(MemoryBucket(s3_error("BucketAlreadyOwnedByYou"))).make() is False


def test_a_name_or_an_address_that_is_none_is_bad_input():
    with pytest.raises(BadInput, match="bucket 'results': no capitals; 3 to 63 small letters"):
        objects(MemoryBucket(ValueError("no capitals"))).make()
    with pytest.raises(BadInput, match=r"MinIO address 'http://here': .*expected host:port"):
        Bucket(Endpoints("", "", "http://here", "a", "s"))


@contextlib.contextmanager
def served(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Bucket]:
    """The bucket, with the real client, of a server that answers each question so."""

    class Server(BaseHTTPRequestHandler):
        do_GET = answer

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Bucket(replace(ENDPOINTS, minio=f"127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()


def test_a_store_that_wants_to_be_asked_in_a_minute_is_asked_at_once(monkeypatch):
    def starting(request):
        asked.append(request.path)
        request.send_response(503)
        request.send_header("Retry-After", "60")
        request.send_header("Content-Length", "0")
        request.end_headers()

    asked, slept = [], []
    monkeypatch.setattr(urllib3.util.retry.time, "sleep", only_here(slept.append, time.sleep))
    with served(starting) as bucket, pytest.raises(ServiceUnavailable):
        bucket.get("a/1")
    assert len(asked) == 3
    assert max(slept, default=0) < 5


def test_another_service_on_the_port_is_told_in_one_line():
    def welcome(request):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"<html><p>Welcome<br>\nto something else")

    with served(welcome) as bucket, pytest.raises(ServiceUnavailable, match="does not answer like MinIO") as told:
        bucket.names()
    assert "\n" not in str(told.value)
