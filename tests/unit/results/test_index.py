"""The index of a store: a list of runs is right whatever became of the index, and reads manifests only once."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_store import result_store, run, tables

from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.results import index
from keyshift.results.manifest import SCHEMA_VERSION, Summary
from memory_bucket import MemoryBucket, s3_error

TABLES = tables(seconds=2, per_s=2)


class Counting(MemoryBucket):
    """Counts the manifests that are read. ``refuses``: it writes and removes nothing below that; ``ends``: whoever
    removes an object is killed behind that.
    """

    def __init__(self):
        super().__init__()
        self.manifests, self.refuses, self.ends = 0, "nothing", False

    def put_object(self, bucket, name, data, length, part_size):
        if name.startswith(self.refuses):
            raise s3_error("XMinioStorageFull")
        super().put_object(bucket, name, data, length, part_size)

    def remove_object(self, bucket, name):
        if name.startswith(self.refuses):
            raise s3_error("AccessDenied")
        super().remove_object(bucket, name)
        if self.ends:
            self.ends = False
            raise KeyboardInterrupt

    def get_object(self, bucket, name, offset=0, length=0):
        self.manifests += name.endswith("manifest.json")
        return super().get_object(bucket, name, offset, length)

    def index(self):
        return [name for name in self.objects if name.startswith("runs-index/")]


@pytest.fixture
def client():
    return Counting()


@pytest.fixture
def store(client):
    return result_store(client)


def ids(store):
    return store.list_runs()["run_id"].tolist()


def test_runs_are_listed_without_reading_their_manifests(store, client):
    stored = [store.put_run(run(number), tables()) for number in range(3)][::-1]
    client.manifests = 0
    listed = store.list_runs()
    for name in ("run_id", "started_at", "parameters"):
        assert listed[name].tolist() == [getattr(manifest, name) for manifest in stored]
    assert listed["spike_ms"].tolist() == [62, 61, 60]
    assert client.manifests == 0


def test_runs_from_before_the_index_are_read_once(store, client):
    for number in range(3):
        store.put_run(run(number, status="died" if number == 1 else "ok"), tables())
    for name in client.index():
        del client.objects[name]
    before = client.manifests
    assert store.list_runs(limit=2)["status"].tolist() == ["ok", "died"]
    assert client.manifests == before + 2, "no more than it needs"
    assert len(ids(store)) == 3
    assert len(ids(store)) == 3
    assert client.manifests == before + 3


def test_rows_of_a_keyshift_with_older_names_of_parameters_are_not_taken_for_todays(store, client, monkeypatch):
    """Its index is another one: the rows there have parameters as it called them, and manifests are read once more."""
    older = zlib.crc32(" ".join([*Summary.model_fields, *index.MADE_BY]).encode())
    with monkeypatch.context() as then:
        then.setattr(index, "VERSION", f"{SCHEMA_VERSION}-{older:08x}")
        store.put_run(run(0), tables())
    client.manifests = 0
    assert len(ids(store)) == client.manifests == 1


def test_many_objects_become_one_page_and_no_row_is_lost(store, client):
    expected = [put(store, number) for number in range(index.MOST + 5)]
    assert len(client.index()) == index.MOST + 5
    client.manifests = 0
    assert ids(store) == expected[::-1]
    assert len(client.index()) == 1
    assert ids(store) == expected[::-1]
    assert client.manifests == 0


def put(store, number):
    return store.put_run(run(number, status="died"), {}).run_id


def test_writers_and_readers_at_the_same_time_lose_nothing(store, client):
    """Two readers put the same objects into a page while a writer adds a run."""
    for number in range(index.MOST + 1):
        put(store, number)
    other, late = result_store(client), []
    listing = client.list_objects

    def meanwhile(bucket, prefix, recursive):
        found = listing(bucket, prefix, recursive)
        if prefix.startswith("runs-index") and not late:
            late.append(put(other, 999))
            other.list_runs()  # takes away what the first one has listed
        return found

    client.list_objects = meanwhile
    assert len(ids(store)) == index.MOST + 1, "the folders as they were"
    client.manifests = 0
    assert ids(store)[0] == late[0]
    assert len(ids(other)) == index.MOST + 2
    assert client.manifests == 0


@pytest.mark.parametrize("left", [0, 1])
def test_a_run_that_is_deleted_by_half_is_listed_only_if_its_manifest_is_there(store, client, left):
    stored = store.put_run(run(), tables()).run_id
    client.refuses = "runs/"
    with pytest.raises(ServiceUnavailable):
        store.delete_run(stored)  # it was taken out of the index
    if not left:
        del client.objects[f"runs/{stored}/manifest.json"]
    assert len(ids(store)) == len(ids(store)) == left
    client.refuses = "nothing"
    store.delete_run(stored)
    assert not [name for name in client.objects if name.startswith("runs/")], "the rest of it can be deleted"
    with pytest.raises(BadInput, match=f"^unknown run '{stored}'"):
        store.delete_run(stored)


def test_a_run_is_deleted_from_a_store_that_is_full_and_again_after_ctrl_c(store, client):
    stored = store.put_run(run(), tables()).run_id
    client.refuses, client.ends = "runs-index/", True
    with pytest.raises(KeyboardInterrupt):
        store.delete_run(stored)
    assert ids(store) == [stored]
    assert "manifest.json" in store.delete_run(stored)
    assert ids(store) == [] and not [name for name in client.objects if name.startswith("runs/")]


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x1f\x8b nonsense"])
def test_a_damaged_index_is_as_none(store, client, damage):
    stored = store.put_run(run(), tables()).run_id
    for name in client.index():
        client.objects[name] = damage
    assert ids(store) == [stored]


def test_what_has_rotted_in_the_store_hides_no_other_run(store, client):
    """It is listed there, and never delivered."""
    rotten, whole = (put(store, number) for number in range(2))
    client.rotten = {*client.index()}
    assert ids(store) == [whole, rotten]
    client.rotten = {*client.index(), name := f"runs/{rotten}/manifest.json"}
    assert store.list_runs()["status"].tolist() == ["died", "unreadable"]
    with pytest.raises(BadInput, match=f"^{name} cannot be read, and the store answers otherwise: it is damaged$"):
        store.get_manifest(rotten)
    store.delete_run(rotten)
    assert ids(store) == [whole]


def test_an_index_that_cannot_be_written_or_a_manifest_that_cannot_be_read_hides_no_run(store, client):
    client.refuses = "runs-index/"
    stored = store.put_run(run(), tables()).run_id
    assert ids(store) == [stored]
    assert not client.index()
    client.refuses, name = "nothing", f"runs/{stored}/manifest.json"
    whole, client.objects[name] = client.objects[name], b"{}"
    assert store.list_runs()["status"].tolist() == ["unreadable"]
    client.objects[name] = whole
    assert store.list_runs()["status"].tolist() == ["ok"]


ACTS = st.sampled_from(["put", "delete", "half", "list", "lose", "page", "torn", "files"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(0, 3)), max_size=25))
def test_whatever_is_done_the_list_has_the_runs_that_have_a_manifest(acts):
    client = Counting()
    store, spikes = result_store(client), {}
    for number, (act, which) in enumerate(acts):
        run_id, there = run(which).run_id, which in spikes
        if act == "put" and not there:
            store.put_run(run(which, spike_ms=float(number)), TABLES)
            spikes[which] = float(number)
        elif act == "delete" and there:
            store.delete_run(run_id)
            del spikes[which]
        elif act == "half" and there:  # killed behind the manifest
            client.ends = True
            with pytest.raises(KeyboardInterrupt):
                store.delete_run(run_id)
            del spikes[which]
        elif act == "files" and not there:  # killed before it
            client.objects[f"runs/{run_id}/latency.parquet"] = b""
        elif act == "lose":
            for name in client.index():
                del client.objects[name]
        elif act in ("page", "torn"):  # killed before all that is in the page has gone
            client.ends = act == "torn"
            with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
                patch.setattr(index, "MOST", 0)
                store.list_runs()
            client.ends = False
        else:
            store.list_runs()
    listed = store.list_runs()
    expected = sorted(spikes, reverse=True)
    assert listed["run_id"].tolist() == [run(which).run_id for which in expected]
    assert listed["spike_ms"].tolist() == [spikes[which] for which in expected]
