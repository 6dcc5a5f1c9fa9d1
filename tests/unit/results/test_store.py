"""What a store asks of its bucket; the rest of it is tried on a real MinIO (``tests/integration/test_store.py``)."""

import pytest
from small_store import result_store, run, tables

from keyshift.model.errors import BadInput
from memory_bucket import MemoryBucket


class Watched(MemoryBucket):
    def __init__(self):
        super().__init__()
        self.listed = []

    def list_objects(self, bucket, prefix, recursive):
        found = super().list_objects(bucket, prefix, recursive)
        self.listed += [each.object_name for each in found]
        return found

    def get_object(self, bucket, name, offset=0, length=0):
        self.listed.append(name)
        return super().get_object(bucket, name, offset, length)


@pytest.mark.parametrize(
    ("run_id", "hint", "looked_at"),
    [
        ("XYZ", "", 0),
        ("20260102", "", 0),
        ("20260101T120100-keycount-flujd-000001", "did you mean '20260101T120100-keycount-fluid-000001'? ", 50),
    ],
)
def test_an_unknown_run_is_looked_for_among_those_of_its_day_and_no_others(run_id, hint, looked_at):
    bucket = Watched()
    store = result_store(bucket)
    for number in [*range(50), *range(5000, 5050)]:  # of the first of January, and of the fourth
        store.put_run(run(number, status="died"), {})
    bucket.listed.clear()
    with pytest.raises(BadInput) as error:
        store.get_manifest(run_id)
    assert str(error.value) == f"unknown run {run_id!r}: {hint}`keyshift results list` shows the newest ones"
    assert len(bucket.listed) == looked_at


@pytest.mark.parametrize("damaged", [lambda whole: whole[:-9], lambda whole: b"", lambda whole: b"PAR1" + bytes(99)])
def test_a_damaged_table_is_told_with_its_run(damaged):
    bucket = MemoryBucket()
    store = result_store(bucket)
    stored = store.put_run(run(), tables()).run_id
    name = f"runs/{stored}/latency.parquet"
    bucket.objects[name] = damaged(bucket.objects[name])
    with pytest.raises(BadInput, match=rf"^run {stored}: its table latency is damaged \(.+\): leave this run out$"):
        store.get_table(stored, "latency")
    assert len(store.get_table(stored, "migration"))


class TwoAtOnce(MemoryBucket):
    """Another process adds a file to the run while this one writes its own."""

    def put_object(self, bucket, name, data, length, part_size):
        super().put_object(bucket, name, data, length, part_size)
        if name.endswith("/mine.html"):
            result_store(self).put_file(run().run_id, "theirs.html", b"theirs")


def test_two_who_add_a_file_to_a_run_at_once_lose_neither():
    store = result_store(TwoAtOnce())
    store.put_run(run(status="died"), {})
    store.put_file(run().run_id, "mine.html", b"mine")
    assert store.get_manifest(run().run_id).files == ["mine.html", "theirs.html"]
