"""What a replica writes down for another process to go on from: when, by whom, and what goes."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from keyshift.lab.replicas import captures
from keyshift.lab.replicas.captures import Captured, Captures
from keyshift.model.errors import Deposed, MigrationFailed, ServiceUnavailable
from keyshift.waiting import wait_until
from keyshift.wire.savepoint import Savepoint


class World:
    """Two replicas. ``stored``: what there is of each job; ``fails``: what the next ones raise who write."""

    def __init__(self):
        self.stored, self.fails, self.said, self.still, self.go = {"run-r0": set(), "run-r1": set()}, [], [], True, None
        self.all = [self.replica(name) for name in self.stored]
        self.living = self.all

    def replica(self, name):
        failover = SimpleNamespace(histories=lambda: {"counter": name}, plans=lambda: {"counter": "plans"})
        config = SimpleNamespace(job=name, attempt=2, endpoints=None)
        return SimpleNamespace(
            job=SimpleNamespace(config=config, check=lambda: None), system=SimpleNamespace(failover=failover)
        )

    def capture(self, replica, check, name):
        check()
        if self.fails:
            raise self.fails.pop(0)
        while self.go is not None and not self.go.wait(0.002):
            check()
        self.stored[replica.job.config.job].add(name)
        return Savepoint(name, {0: 7}, {"counter": {0: 100, 1: 60}}, {"counter": {0: 5}})

    @contextlib.contextmanager
    def stands(self):
        yield self.still


@pytest.fixture
def world(monkeypatch):
    world = World()

    def store(_, job):
        names = world.stored[job]
        return SimpleNamespace(committed=lambda of: sorted(n for n in names if n.startswith(of)), remove=names.remove)

    monkeypatch.setattr(captures, "SavepointStore", store)
    monkeypatch.setattr(captures, "LOOK_S", 0.002)
    return world


@pytest.fixture
def made(world):
    made = Captures(world, 0.005, world.stands, world.said.append)
    yield made
    made.end()


def come(made, number):
    assert wait_until(lambda: len(made.taken) >= number, 60, 0.002)


def test_the_one_that_has_lived_for_longest_writes_and_another_one_if_it_has_died(world, made):
    made.begin()
    come(made, 1)
    assert made.newest.of == "run-r0" and made.newest.histories == {"counter": "run-r0"}
    assert made.taken[0].state == {"counter": 160} and made.newest.plans == {"counter": "plans"}
    world.living = world.all[1:]
    assert wait_until(lambda: made.newest.of == "run-r1", 60, 0.002)
    assert not world.said


def test_what_no_journal_may_have_goes_also_what_a_process_before_has_left(world, made):
    world.stored["run-r1"] |= {"resume-000-000007", "resume-001-000001", "capture-1"}
    before = Captured("run-r1", Savepoint("resume-001-000001", {}, {}), {}, {})
    made.begin(before)
    come(made, 3)
    made.end()
    assert world.stored["run-r1"] == {"resume-001-000001", "capture-1"}, (
        "a journal on disk has it; a replica comes back"
    )
    assert made.newest.savepoint.name in world.stored["run-r0"]
    made._remove_old()
    assert world.stored["run-r0"] == {made.newest.savepoint.name}
    made.kept = made.newest
    made._remove_old()
    assert world.stored["run-r1"] == {"capture-1"}


def test_nothing_is_written_while_something_moves_or_nobody_lives(world, made):
    world.still = False
    made.begin()
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    world.still, world.living = True, []
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    world.living = world.all
    come(made, 1)


def test_whoever_cannot_write_is_asked_again_and_that_is_told_once(world, made):
    world.fails = [MigrationFailed("slot-0 did not answer"), ServiceUnavailable("no bucket")]
    made.begin()
    come(made, 2)
    world.fails = [ServiceUnavailable("no bucket again")]
    come(made, len(made.taken) + 2)
    assert [line.partition(": ")[2] for line in world.said] == ["slot-0 did not answer", "no bucket again"]
    assert world.said[0].startswith("the state could not be written down; it is tried every 0.005 s")


def test_it_ends_under_way_and_another_driver_ends_it(world, made):
    world.go = threading.Event()
    made.begin()
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    made.end()
    assert not made.taken and not world.said
    other = Captures(world, 0.005, world.stands, world.said.append)
    world.fails = [Deposed("another process drives the job")]
    other.begin()
    other._thread.join(60)
    with pytest.raises(Deposed):
        other.check()
    made.check()


def test_without_an_interval_nothing_is_written(world):
    none = Captures(world, 0.0, world.stands, world.said.append)
    none.begin()
    none.end()
    assert not none.taken and none.newest is None
