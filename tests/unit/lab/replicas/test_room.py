"""Whether there is room for the replicas of a job."""

from types import SimpleNamespace

import pytest

from keyshift.experiment.spec import make_spec
from keyshift.lab.replicas import room
from keyshift.model.errors import BadInput
from keyshift.place.profile import SparkProfile

SPEC = make_spec({"replicas": 3, "ordering": "live_robin"})  # of two routers and two slots each
HERE = SparkProfile()


@pytest.fixture
def machine(monkeypatch):
    """Says how many processors and how many MiB of free memory there are."""

    def be(cpus, mib):
        monkeypatch.setattr(room, "describe_machine", lambda: SimpleNamespace(cpus=cpus))
        monkeypatch.setattr(room.psutil, "virtual_memory", lambda: SimpleNamespace(available=mib << 20))

    return be


def test_where_there_is_room_nothing_is_said(machine):
    machine(3, 3900)
    room.require_room(SPEC, HERE)
    machine(1, 1)
    room.require_room(make_spec({}), HERE)


@pytest.mark.parametrize(
    ("cpus", "mib", "words"),
    [
        (2, 9000, "replicas = 3: each needs a processor at the least, so 3, and this machine has 2; lower replicas"),
        (3, 3899, "replicas = 3: they need 3900 MiB of memory without state, and 3899 MiB are free; lower replicas"),
    ],
)
def test_what_is_missing_is_named_with_what_is_needed(machine, cpus, mib, words):
    machine(cpus, mib)
    with pytest.raises(BadInput, match=words):
        room.require_room(SPEC, HERE)


def test_executors_elsewhere_have_no_replicas_yet(machine):
    machine(8, 99_999)
    for master in ("local-cluster", "k8s://https://here"):
        with pytest.raises(BadInput, match="only Spark on this machine has replicas yet; use `--profile local`"):
            room.require_room(SPEC, SparkProfile(master=master))
