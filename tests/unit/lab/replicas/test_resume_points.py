"""What a replica writes down for another process to go on from: when, by whom, and what goes."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from keyshift.lab.replicas import resume_points
from keyshift.lab.replicas.resume_points import ResumePoint, ResumePoints
from keyshift.model.errors import Deposed, MigrationFailed, ServiceUnavailable
from keyshift.waiting import wait_until
from keyshift.wire.savepoint import Savepoint


class World:
    """Two replicas. ``kept``: what had to stay, again and again; ``fails``: what the next ones raise who write;
    ``seen``: at each look, whether nothing moved; ``keeps_all``: why nothing that is older goes; ``cleared``: of which
    stages acknowledgements went, and which.
    """

    def __init__(self):
        self.keeps_all, self.cleared = None, []
        self.kept, self.fails, self.said, self.seen, self.still, self.go, self.number = [], [], [], [], True, None, 0
        self.all = self.living = [self.replica(name) for name in ("run-r0", "run-r1")]

    def replica(self, name):
        failover = SimpleNamespace(histories=lambda: {"counter": name}, plans=lambda: {"counter": "plans"})
        log = None if name == "run-r0" else SimpleNamespace(told_by_all={5, 7})  # nobody leads the first one now
        stages = [SimpleNamespace(name=name, log=log)]
        job = SimpleNamespace(config=SimpleNamespace(job=name, endpoints=None), check=lambda: None, stages=stages)
        return SimpleNamespace(job=job, system=SimpleNamespace(failover=failover))

    def capture(self, replica, check):
        check()
        if self.fails:
            raise self.fails.pop(0)
        while self.go is not None and not self.go.wait(0.002):
            check()
        self.number += 1
        sizes = {"counter": {0: 100, 1: 60}}
        return Savepoint(f"capture-{self.number:03}", {0: 7}, sizes, {"counter": {0: 5}}), {"counter": 25}

    @contextlib.contextmanager
    def stands(self):
        self.seen.append(self.still)
        yield self.seen[-1]


OTHER = ("run-r1", "capture-0")  # a replica comes back from it


@pytest.fixture
def world(monkeypatch):
    world = World()

    def store(_, job):
        def keep_only(names, of):
            if world.keeps_all:
                raise world.keeps_all
            world.kept.append((job, names, of))

        return SimpleNamespace(keep_only=keep_only)

    def clear(stage, log, needless):
        world.cleared.append((stage.name, needless))
        raise ServiceUnavailable("it has just died")

    monkeypatch.setattr(resume_points, "SavepointStore", store)
    monkeypatch.setattr(resume_points, "clear_acknowledgements", clear)
    monkeypatch.setattr(resume_points, "LOOK_S", 0.002)
    return world


def points_of(world, every_s=0.005):
    return ResumePoints(world, every_s, world.stands, lambda: {OTHER}, world.said.append)


@pytest.fixture
def made(world):
    made = points_of(world)
    yield made
    made.end()


def come(made, number):
    assert wait_until(lambda: made.newest and len(made.taken) >= number, 60, 0.002)


def test_the_one_that_has_lived_for_longest_writes_and_another_one_if_it_has_died(world, made):
    made.begin()
    come(made, 1)
    assert made.newest.of == "run-r0" and made.newest.histories == {"counter": "run-r0"}
    assert (made.taken[0].written, made.taken[0].state) == ({"counter": 25}, {"counter": 160})
    assert made.newest.plans == {"counter": "plans"}
    world.living = world.all[1:]
    assert wait_until(lambda: made.newest.of == "run-r1", 60, 0.002)
    assert not world.said


def test_what_a_journal_on_disk_has_stays_and_the_last_two_and_what_others_need(world, made):
    made.begin(ResumePoint("run-r1", Savepoint("before", {}, {}), {}, {}))
    come(made, 4)  # and behind the third one it was seen what may go
    made.in_journals = made.written
    come(made, len(made.taken) + 3)
    made.end()
    others, mine = ([names for job, names, _ in world.kept if job == of] for of in ("run-r1", "run-r0"))
    assert {of for _, _, of in world.kept} == {"capture-"}
    assert mine[:3] == [["capture-001"], ["capture-001", "capture-002"], ["capture-002", "capture-003"]]
    assert others[:3] == [["before", "capture-0"]] * 3, "no newer one has come into a journal"
    assert others[-1] == ["capture-0"]
    names = [point.savepoint.name for point in (*made.in_journals, *made.written)]
    assert len({*names}) == 4 and mine[-1] == names


def test_nothing_is_written_while_something_moves_or_nobody_lives(world, made):
    world.still = False
    made.begin()
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    world.living, world.still = [], True
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    world.living = world.all
    come(made, 1)


def test_when_something_has_moved_that_is_written_down_at_once(world, monkeypatch):
    rarely = points_of(world, every_s=600.0)
    rarely.begin()
    assert not wait_until(lambda: rarely.taken, 0.05, 0.002)
    world.still = False
    assert wait_until(lambda: False in world.seen, 60, 0.002)
    assert not rarely.taken
    world.still = True
    come(rarely, 1)
    assert not wait_until(lambda: rarely.taken[1:], 0.05, 0.002)
    rarely.end()


def test_whoever_cannot_write_is_asked_again_and_that_is_told_once(world, made):
    world.fails = [MigrationFailed("slot-0 did not answer"), ServiceUnavailable("no bucket")]
    made.begin()
    come(made, 2)
    world.fails = [ServiceUnavailable("no bucket again")]
    come(made, len(made.taken) + 2)
    assert [line.partition(": ")[2] for line in world.said] == ["slot-0 did not answer", "no bucket again"]
    assert world.said[0].startswith("the state could not be written down; it is tried every 0.005 s")


def test_that_what_is_older_cannot_go_is_told_as_that_and_once(world, made):
    world.keeps_all = ServiceUnavailable("no bucket")
    made.begin()
    come(made, 3)
    assert world.said == ["the state is written down, and what is older stays where it is: no bucket"]
    world.keeps_all = None
    assert wait_until(lambda: world.kept, 60, 0.002)


def test_what_slots_have_said_of_steps_goes_in_all_replicas_that_somebody_leads(world, made):
    made.begin()
    come(made, 2)
    assert wait_until(lambda: len(world.cleared) > 1, 60, 0.002)
    assert world.cleared[0] == ("run-r1", {5, 7}) and not world.said


def test_it_ends_under_way_and_another_driver_ends_it(world, made):
    world.go = threading.Event()
    made.begin()
    assert not wait_until(lambda: made.taken, 0.05, 0.002)
    made.end()
    assert not made.taken and not world.said
    other = points_of(world)
    world.fails = [Deposed("another process drives the job")]
    other.begin()
    with pytest.raises(Deposed):
        wait_until(other.check, 60, 0.002)
    made.check()


def test_without_an_interval_nothing_is_written(world):
    none = points_of(world, every_s=0.0)
    none.begin()
    none.end()
    assert not none.taken and none.newest is None
