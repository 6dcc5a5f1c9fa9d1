"""What savepoints, runs and records may rely on of their bucket: with the real MinIO, and with the stand-ins."""

import secrets
from dataclasses import replace

import pytest
from engine import Bucket as HarnessBucket

from keyshift.endpoints import Endpoints
from keyshift.model.errors import Damaged, NotThere
from keyshift.objects import PART_BYTES, Bucket
from memory_bucket import MemoryBucket


@pytest.fixture(params=["memory", "harness", "minio"])
def place(request):
    """Endpoints, and a client that is not the real one."""
    if request.param == "minio":
        return request.getfixturevalue("session_stack").endpoints(), None
    client = MemoryBucket() if request.param == "memory" else HarnessBucket()
    return Endpoints("", "", "memory:1", "a", "s"), client


@pytest.fixture
def below(place):
    """Makes the objects below a prefix, in a folder of the test's own."""
    (endpoints, client), own = place, f"contract-{secrets.token_hex(4)}/"
    return lambda prefix="": Bucket(endpoints, own + prefix, client=client)


def test_an_object_comes_back_whole_or_in_part_as_it_was_written_last(below):
    here = below()
    here.put("a/1", b"something else that is longer")
    here.put("a/1", b"one and all")
    assert here.get("a/1") == b"one and all"
    assert [here.get("a/1", *part) for part in ((4, 3), (8,), (8, 99))] == [b"and", b"all", b"all"]


def test_a_large_object_may_go_in_parts(below):
    content = bytearray(secrets.token_bytes(PART_BYTES + 1))
    below().put("large", content, in_parts=True)
    assert below().get("large") == content
    assert below().get("large", PART_BYTES - 1, 2) == content[-2:]


def test_what_is_not_there_is_told_from_what_is_shorter_than_it_was(below):
    below().put("a/1", b"one")
    with pytest.raises(NotThere):
        below().get("a/2")
    for offset in (3, 9):
        with pytest.raises(Damaged, match="a/1 cannot be read: it is shorter in bucket"):
            below().get("a/1", offset, 5)


def test_names_are_those_below_the_prefix_sorted_and_folders_those_that_hold_something(below):
    runs, other = below("runs/"), below("runs-index/")
    for name in ("b/2", "a/3", "c", "a/1/deep"):
        runs.put(name, b"content")
    other.put("z/1", b"content")
    assert runs.names() == ["a/1/deep", "a/3", "b/2", "c"]
    assert (runs.names("a/"), runs.names("b"), runs.names("d")) == (["a/1/deep", "a/3"], ["b/2"], [])
    assert (sorted(runs.folders()), other.folders(), below("none/").folders()) == (["a", "b"], ["z"], [])


def test_what_is_removed_is_gone_whether_it_was_there_or_not(below):
    runs, other = below("runs/"), below("runs-index/")
    for objects in (runs, other):
        objects.put("a/1", b"content")
    runs.remove(["a/none", "a/1"])
    assert (runs.names(), runs.folders(), other.names()) == ([], [], ["a/1"])


def test_a_bucket_is_made_once(place):
    endpoints, client = place
    new = replace(endpoints, bucket=f"contract-{secrets.token_hex(4)}")
    assert [Bucket(new, client=client).make() for _ in range(2)] == [True, False]
