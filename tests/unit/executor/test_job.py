import itertools
import queue
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_job import CONFIG

from keyshift import waiting
from keyshift.errors import MigrationFailed, ServiceUnavailable
from keyshift.executor import job as module
from keyshift.executor.job import Job


@pytest.fixture
def job(monkeypatch):
    """A job with a deadline of a second, whose slots 0 and 1 answer after 5 and 9 seconds."""
    made = Job(None, replace(CONFIG, deadline_s=1.0), Path("nowhere"), 1.0)
    made.clock = SimpleNamespace(now=0.0)
    answers = {"slot-0": 5, "slot-1": 9}

    class Answers(queue.SimpleQueue):
        def get(self, timeout):
            before = names()
            made.clock.now += min(timeout, 0.05)
            if names() == before:
                raise queue.Empty
            return set(names())

    def names():
        return [name for name, after_s in answers.items() if made.clock.now > after_s]

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: made.clock.now))
    monkeypatch.setattr(module, "queue", SimpleNamespace(Queue=Answers, Empty=queue.Empty))
    made._coordination = SimpleNamespace(watch_children=lambda path, changed: changed(names()))
    return made


WANTED = {"slot-0", "slot-1"}


def test_a_deadline_is_for_silence_and_not_for_a_backlog_that_is_worked_off(job):
    job._await_children("path", WANTED, "savepoint", itertools.count().__next__)
    assert job.clock.now == pytest.approx(9, abs=0.1)


def test_a_slot_that_is_silent_for_longer_than_the_deadline_is_named(job):
    with pytest.raises(MigrationFailed, match="savepoint: slot-0, slot-1 did not answer within 1 s"):
        job._await_children("path", WANTED, "savepoint")
    assert job.clock.now == pytest.approx(1, abs=0.1)


def test_each_answer_begins_the_deadline_anew(job):
    job.config = replace(job.config, deadline_s=5.1)
    job._await_children("path", WANTED, "savepoint")
    assert job.clock.now == pytest.approx(9, abs=0.1)


def test_a_job_that_cannot_reach_its_tasks_any_more_ends(job):
    def lost():
        raise ServiceUnavailable("away")

    job._query, job._coordination = SimpleNamespace(isActive=True), SimpleNamespace(check=lambda: None)
    job.check()
    job._coordination.check = lost
    with pytest.raises(ServiceUnavailable):
        job.check()
