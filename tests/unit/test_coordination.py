"""What the wrapper adds to kazoo; with a real ZooKeeper see tests/integration."""

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, NotEmptyError

from keyshift.errors import ServiceUnavailable
from keyshift.executor import coordination
from keyshift.executor.coordination import Coordination, steps_of, steps_to_json
from keyshift.keys import Mode, Move, SlotId, Step, UnitId


class Client:
    """A client whose answers to ``delete`` are given; an exception is raised."""

    answers: list

    def __init__(self, **_):
        self.deleted = []

    def start(self, timeout):
        pass

    def add_listener(self, listener):
        pass

    def delete(self, path, recursive):
        self.deleted.append((path, recursive))
        if answer := self.answers.pop(0):
            raise answer


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(coordination, "KazooClient", Client)
    return Coordination("nowhere:1", "/job")


def test_a_folder_that_somebody_writes_into_is_deleted_again_until_it_is_gone(job):
    job._client.answers = [NotEmptyError(), NotEmptyError(), None]
    job.withdraw("")
    assert job._client.deleted == [("/job", True)] * 3


def test_a_node_that_is_not_there_is_deleted(job):
    job._client.answers = [NotEmptyError(), NoNodeError()]
    job.withdraw("slots/1")
    assert job._client.deleted == [("/job/slots/1", True)] * 2


def test_other_errors_end_a_deletion(job):
    job._client.answers = [ConnectionLoss(), None]
    with pytest.raises(ServiceUnavailable, match="ConnectionLoss"):
        job.withdraw("")
    assert len(job._client.deleted) == 1


def test_steps_come_back_as_they_were_published():
    first = Step((Move(UnitId(1), SlotId(0), SlotId(2)),), Mode(gate="slots"))
    second = Step((Move(UnitId(3), SlotId(2), SlotId(0)),))
    assert steps_of(steps_to_json(9, ((7, first), (8, second)))) == (9, [(7, first), (8, second)])
    assert steps_of(steps_to_json(9, ())) == (9, [])
