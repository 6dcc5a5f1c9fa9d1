"""Savepoints in a MinIO whose files rot: it notices that itself, and delivers nothing, as if it were away."""

import secrets

import pytest
from small_bucket import state, write

from keyshift.endpoints import Endpoints
from keyshift.model.errors import Damaged, Undelivered
from keyshift.model.keys import Assignment
from keyshift.objects import damage_told
from keyshift.services.minio import BUCKET
from keyshift.wire.nodes import SlotSaved
from keyshift.wire.savepoint import SavepointManifest, SavepointStore

KEYS = 4000  # of a unit: what has more than 128 KiB is in a file of its own, and else in what MinIO knows of it


@pytest.fixture
def job() -> str:
    return f"damage-{secrets.token_hex(4)}"


@pytest.fixture
def store(stack: Endpoints, job: str) -> SavepointStore:
    """Has two snapshots."""
    made = SavepointStore(stack, job)
    for name in ("one", "two"):
        manifest = SavepointManifest("keycount")
        places = write(made, name, "counter-0", [(unit, state(unit, KEYS)) for unit in range(2)], 1 << 20)
        manifest.add("counter", {"slot-0": SlotSaved(tuple(places))}, Assignment(1, (0, 0)))
        made.commit(name, manifest)
    return made


@pytest.fixture
def rot(session_stack, job):
    """Changes the last bytes of the file of this name in the snapshot one."""

    def change(name: str) -> None:
        below = session_stack.home / "data" / "minio" / BUCKET / "savepoints" / job / "one"
        (file,) = below.glob(name)
        content = bytearray(file.read_bytes())
        content[-8:] = bytes(255 - byte for byte in content[-8:])
        file.write_bytes(content)

    return change


@pytest.mark.parametrize("file", ["counter-0-*/*/part.1", "manifest.json/xl.meta"])
def test_what_has_rotted_in_minio_is_damaged_and_nothing_else_is(store, rot, file):
    rot(file)
    with pytest.raises(Undelivered):
        store.require_whole("one")
    with pytest.raises(Damaged, match="answers otherwise: it is damaged"), damage_told(store.committed, "one"):
        store.require_whole("one")
    with damage_told(store.committed, "two"):
        store.require_whole("two")
