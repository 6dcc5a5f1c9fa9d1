"""What a slot has found to be damaged is, as long as nobody else can read it either."""

import pytest
from small_bucket import state, store_of, write

from keyshift.driver.completed import is_damaged
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.wire.nodes import SlotSaved
from keyshift.wire.savepoint import SavepointManifest
from memory_bucket import s3_error


@pytest.fixture
def store():
    """Has the snapshots one and two."""
    made = store_of()
    for name in ("one", "two"):
        manifest, saved = SavepointManifest("keycount"), SlotSaved(tuple(write(made, name, "0", [(0, state(0))])))
        manifest.add("counter", {"slot-0": saved}, Assignment(1, (0,)))
        made.commit(name, manifest)
    return made


def test_what_a_slot_found_damaged_is_as_long_as_it_cannot_be_read_here_either(store):
    objects = store.client.objects
    (segment,) = [name for name in objects if name.startswith("savepoints/job/one/0-")]
    store.client.rotten = {segment, "savepoints/job/two/manifest.json"}
    assert is_damaged(store, "one") and is_damaged(store, "two")
    store.client.rotten = set()
    assert not is_damaged(store, "one") and not is_damaged(store, "two"), "the store has it back"
    objects[segment] = objects[segment][:-1]
    assert is_damaged(store, "one") and not is_damaged(store, "two")
    del objects["savepoints/job/two/manifest.json"]
    assert is_damaged(store, "two")


def test_while_a_store_is_away_nobody_knows_whether_a_slot_was_right(store):
    store.client.error = s3_error("SlowDown")
    with pytest.raises(ServiceUnavailable, match="SlowDown"):
        is_damaged(store, "one")
