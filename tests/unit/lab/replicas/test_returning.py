"""The way back of a replica: what it waits for, what it says, and what is left if it fails."""

import re
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from keyshift.lab.replicas import returning
from keyshift.lab.replicas.resume_points import ResumePoint
from keyshift.lab.replicas.returning import Return, Returns
from keyshift.model.errors import MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.model.notes import Activity
from keyshift.traffic.copies import Standing
from keyshift.waiting import wait_until
from keyshift.wire.savepoint import Savepoint

SAVED = Savepoint("capture-1", {0: 7}, {"counter": {0: 1_000_000, 1: 500_000}}, {"counter": {0: 5}})
WRITTEN = SAVED, {"counter": 1_100_000}


class Application:
    """``struck``: Spark does not start any more."""

    def __init__(self):
        self.did, self.spark, self.struck = [], threading.Event(), False
        self.give_way_no_more, self.end = (lambda: self.did.append("important")), (lambda: self.did.append("ended"))
        self.kill = lambda: self.did.append("killed")
        self.spark.set()

    def await_ready(self):
        assert self.spark.wait(60)
        if self.struck:
            raise ServiceUnavailable("the application process died")

    def strike(self):
        self.struck = True
        self.spark.set()


class Replica:
    def __init__(self, number, lives):
        self.number, self.lives, self.application, self.stops, self.deaths = number, lives, Application(), 0, 1
        self.job = SimpleNamespace(check=self.check, config=SimpleNamespace(job=f"run-r{number}"))
        self.job.stages = [SimpleNamespace(name="counter", assignment=SimpleNamespace(version=3))]
        self.system = SimpleNamespace(plans=SimpleNamespace(busy=False))
        self.dies = None

    def stop(self):
        self.stops += 1

    def check(self):
        if self.dies:
            raise self.dies


class Replicas:
    def __init__(self):
        self.all, self.standings, self.led, self.damaged = [Replica(0, False), Replica(1, True)], {}, [], []
        self.captures, self.said = [lambda check: WRITTEN], []
        self.leave = lambda replica: replica.stop()
        self.begin_next = lambda replica: replica.application.did.append("begun")
        self.spares = SimpleNamespace(fill=lambda: None)
        self.say = lambda doing: self.said.append(doing.activity)

    @property
    def living(self):
        return [replica for replica in self.all if replica.lives]

    def capture(self, replica, check):
        assert replica is self.all[1]
        return (self.captures.pop(0) if self.captures[1:] else self.captures[0])(check)

    def lead_next(self, replica, saved, of, other):
        self.led.append((saved, of, other))
        if saved in self.damaged:
            raise QueryDied("a part is missing")
        replica.lives = True


@pytest.fixture
def replicas(monkeypatch):
    """Two of them, of which the first has died; ``captures`` are called one after the other when one is to be made."""
    made = Replicas()
    monkeypatch.setattr(returning, "LOOK_S", 0.002)
    monkeypatch.setattr(returning, "KEEPS_UP_S", 0.05)
    return made


def keeps_up(replicas, for_us):
    now_us = round(time.time() * 1e6)
    replicas.standings = {0: Standing(now_us - 10_000_000, now_us + for_us)}


def into(told):
    """What ``Returns`` is given to tell, and the notes."""
    return lambda line, kind: told.append(line), told


def over(way):
    assert wait_until(lambda: way.over, 60, 0.002)
    return way.report


def test_it_begins_from_what_another_one_writes_and_is_full_when_it_has_kept_up_since(replicas):
    dead, lives = replicas.all
    keeps_up(replicas, 10_000)
    way = Return(dead, replicas)
    assert wait_until(lambda: dead.lives, 60, 0.002)
    assert dead.stops == 1 and dead.application.did == ["begun"] and replicas.led == [(SAVED, "run-r1", lives)]
    time.sleep(0.05)
    assert not way.over and way.full_at is None, "what was before its first row counts for nothing"
    keeps_up(replicas, 10_000_000)
    told = over(way)
    assert told.startswith("replica 0 was full again ") and "; 1.1 MB of state were written" in told
    assert way.full_at is not None and dead.application.did == ["begun", "important"]
    assert way.begins_from == ("run-r1", "capture-1")


def written_before(version=3, of="run-r0", size=1 << 30, age_s=2.0):
    """By the replica that is dead now, under this version, in bytes."""
    history = SimpleNamespace(assignments=[SimpleNamespace(version=2), SimpleNamespace(version=version)])
    saved = Savepoint("capture-0", {0: 3}, {"counter": {0: size}})
    return ResumePoint(of, saved, {"counter": history}, {}, time.time() - age_s)


@pytest.mark.parametrize(
    "other",
    [{"version": 2}, {"of": "run-r1"}, {"size": 1 << 20}, {"age_s": 600.0}],
    ids=["something has switched since", "who wrote it writes only what has changed", "little is written", "long ago"],
)
def test_it_does_not_begin_from_what_was_written_before_if(replicas, other):
    keeps_up(replicas, 60_000_000)
    way = Return(replicas.all[0], replicas, lambda: written_before(**other))
    assert "of state were written" in over(way) and way.begins_from == ("run-r1", "capture-1")


def test_if_the_state_was_written_down_before_nobody_has_to_write_it_unless_it_goes_as_there_is_a_newer_one(replicas):
    """A way back says what it needs, and whoever takes the next one removes what nobody needs."""
    newer = Savepoint("capture-7", {0: 5}, {"counter": {0: 1 << 30}})
    points = [written_before(), replace(written_before(), savepoint=newer)]
    keeps_up(replicas, 60_000_000)
    way = Return(replicas.all[0], replicas, lambda: points.pop(0) if points[1:] else points[0])
    assert over(way).endswith("; its state was there, in capture-7")
    assert replicas.led == [(newer, "run-r0", replicas.all[1])] and way.begins_from == ("run-r0", "capture-7")


def test_if_that_is_damaged_another_one_writes_it(replicas):
    point, told = written_before(), []
    replicas.damaged.append(point.savepoint)
    keeps_up(replicas, 60_000_000)
    ways = Returns(replicas, lambda: point, *into(told), partial(nullcontext, True))
    ways.begin(replicas.all[0])
    assert wait_until(lambda: ways.look() or not ways.under_way, 60, 0.002)
    assert told[0] == "replica 0 did not come back: a part is missing" and told[1].startswith(
        "replica 0 was full again"
    )
    assert [saved for saved, *_ in replicas.led] == [point.savepoint, SAVED]


fails = Mock(side_effect=MigrationFailed("slot-0 did not answer"))


@pytest.mark.parametrize("for_ever", [False, True])
def test_a_way_back_that_fails_is_a_death_and_begins_again_as_often_as_behind_others(replicas, monkeypatch, for_ever):
    monkeypatch.setattr(returning, "WRITE_S", -1.0)
    dead, told, spares = replicas.all[0], [], []
    replicas.captures = [fails, *([] if for_ever else [lambda check: WRITTEN])]
    replicas.spares.fill = lambda: spares.append(dead.deaths)
    keeps_up(replicas, 60_000_000)
    ways = Returns(replicas, lambda: None, *into(told), partial(nullcontext, True))
    ways.begin(dead)
    assert wait_until(lambda: ways.look() or not ways.under_way, 60, 0.002)
    failed = "replica 0 did not come back: slot-0 did not answer"
    if for_ever:
        assert told == [failed] * returning.MOST_RETURNS + ["replica 0 does not come back: it has begun to 5 times"]
    else:
        assert told[0] == failed and told[1].startswith("replica 0 was full again") and dead.lives
    assert spares == [dead.deaths] == [6 if for_ever else 2], "the next way may need one that was not taken"


def test_how_long_it_took_is_counted_from_the_death_though_the_way_back_begins_late_and_once_more(
    replicas, monkeypatch
):
    monkeypatch.setattr(returning, "WRITE_S", -1.0)
    dead, told, alike = replicas.all[0], [], [False]
    dead.lives, replicas.captures = True, [fails, lambda check: WRITTEN]
    keeps_up(replicas, 60_000_000)
    ways = Returns(replicas, lambda: None, lambda line, kind: told.append(line), told, lambda: nullcontext(alike[0]))
    with ways.surviving(dead):
        raise QueryDied("its process is gone")
    assert ways.to_come and not ways.under_way, "the others do not have the same assignment"
    time.sleep(0.3)
    alike[0] = True
    ways.begin_all()
    assert wait_until(lambda: ways.look() or not ways.under_way, 60, 0.002)
    assert told[1] == "replica 0 did not come back: slot-0 did not answer"
    took_s = re.match(r"replica 0 was full again ([\d.]+) s after its death was known; ", told[2])
    assert took_s and float(took_s[1]) >= 0.3


def test_who_cannot_write_now_is_asked_again(replicas):
    replicas.captures = [fails, fails, lambda check: WRITTEN]
    keeps_up(replicas, 60_000_000)
    assert over(Return(replicas.all[0], replicas)).startswith("replica 0 was full again")


def test_nobody_writes_while_its_state_moves_however_long_that_takes(replicas, monkeypatch):
    monkeypatch.setattr(returning, "WRITE_S", 0.0)
    dead, lives = replicas.all
    lives.system.plans.busy = True
    keeps_up(replicas, 60_000_000)
    way = Return(dead, replicas)
    time.sleep(0.05)
    assert replicas.led == []
    lives.system.plans.busy = False
    assert over(way).startswith("replica 0 was full again")


def test_if_nobody_can_write_it_does_not_come_back_and_nothing_of_it_is_left(replicas, monkeypatch):
    monkeypatch.setattr(returning, "WRITE_S", 0.02)
    replicas.captures = [Mock(side_effect=ServiceUnavailable("no bucket"))]
    dead = replicas.all[0]
    assert over(Return(dead, replicas)) == "replica 0 did not come back: no bucket"
    assert not dead.lives and dead.application.did == ["begun", "ended"]
    replicas.all[1].lives = False
    assert "no other replica is left that could write" in over(Return(dead, replicas))


def test_one_that_cannot_catch_up_beside_others_gives_way_no_more(replicas, monkeypatch):
    monkeypatch.setattr(returning, "GIVES_WAY_S", 0.02)
    dead = replicas.all[0]
    way = Return(dead, replicas)
    assert wait_until(lambda: "important" in dead.application.did, 60, 0.002) and way.full_at is None
    keeps_up(replicas, 60_000_000)
    assert over(way).startswith("replica 0 was full again")
    assert dead.application.did == ["begun", "important"]


@pytest.mark.parametrize("lives", [False, True])
def test_it_ends_when_nobody_waits_for_it_any_more_wherever_it_is(replicas, lives):
    dead = replicas.all[0]
    if not lives:
        dead.application.spark.clear()
    way = Return(dead, replicas)
    assert wait_until(lambda: dead.lives if lives else dead.application.did, 60, 0.002)
    way.end()
    assert way.over and dead.application.struck is not lives
    assert ("came back, and was not full" if lives else "did not come back") in way.report
    assert ("ended" in dead.application.did) is not lives


def test_what_should_not_have_happened_is_the_controlling_threads(replicas):
    replicas.captures = [Mock(side_effect=AssertionError("a bug"))]
    way = Return(replicas.all[0], replicas)
    with pytest.raises(AssertionError, match="a bug"):
        wait_until(lambda: way.over, 60, 0.002)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("keeps up", "was full again "),
        ("does not keep up", "came back, and was not full again: it did not keep up within 0 s"),
        ("dies again", "came back, and was not full again: once more"),
        ("nobody waits any more", "came back, and was not full again: nobody waits for it any more"),
    ],
)
def test_only_who_was_full_again_counts_as_full_and_has_recovered(replicas, monkeypatch, end, words):
    dead, told = replicas.all[0], []
    ways = Returns(replicas, lambda: None, *into(told), partial(nullcontext, True))
    ways.count()
    ways.begin(dead)
    assert wait_until(lambda: dead.lives, 60, 0.002)
    ways.count()
    if end == "keeps up":
        keeps_up(replicas, 60_000_000)
    elif end == "does not keep up":
        monkeypatch.setattr(returning, "FULL_S", 0.0)
    elif end == "dies again":
        dead.dies = QueryDied("once more")
    else:
        ways.end(dead)
    assert wait_until(lambda: ways.look() or not ways.under_way, 60, 0.002)
    assert told[0].startswith(f"replica 0 {words}") and not told[1:] and "ended" not in dead.application.did
    dead.lives = dead.dies is None  # that is known later
    ways.count()
    assert [full for _, full in ways.strength] == ([1, 2] if end == "keeps up" else [1])
    assert replicas.said == ([Activity.RECOVERED] if end == "keeps up" else [])


def test_a_spare_that_cannot_be_started_ends_nothing_and_is_tried_again_behind_the_next_way(replicas):
    dead, told, tried = replicas.all[0], [], []

    def fill():
        tried.append(True)
        raise OSError(28, "No space left on device")

    replicas.spares.fill = fill
    ways = Returns(replicas, lambda: None, *into(told), partial(nullcontext, True))
    for _ in range(2):
        dead.lives = False
        ways.begin(dead)
        assert wait_until(lambda: dead.lives, 60, 0.002)
        keeps_up(replicas, 60_000_000)
        assert wait_until(lambda: ways.look() or not ways.under_way, 60, 0.002)
    assert len(tried) == 2 and replicas.said == [Activity.RECOVERED] * 2
    assert "No space left on device" in told[1] and told[1].startswith("no spare Spark could be started: ")
