"""A deadline of the driver is for silence, not for a backlog that is worked off."""

import itertools
import queue
from types import SimpleNamespace

import pytest

from keyshift import waiting
from keyshift.driver import questions
from keyshift.driver.questions import Questions
from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import Move
from keyshift.wire import nodes

WANTED = {"slot-0", "slot-1"}


@pytest.fixture
def ask(monkeypatch):
    """Ask slots 0 and 1, who answer after 5 and 9 seconds; ``ask.gone``: what was taken back."""
    clock, after_s, ended, gone = SimpleNamespace(now=0.0), {"slot-0": 5, "slot-1": 9}, [], []

    class Answers(queue.SimpleQueue):
        def get(self, timeout):
            before = names()
            clock.now += min(timeout, 0.05)
            if names() == before:
                raise queue.Empty
            return set(names())

    def names():
        return [name for name, after in after_s.items() if clock.now > after]

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda _: None))
    monkeypatch.setattr(questions, "queue", SimpleNamespace(Queue=Answers, Empty=queue.Empty))

    def watch_children(path, changed):
        changed(names())
        return lambda: ended.append(path)

    participant = SimpleNamespace(watch_children=watch_children, read_below=lambda path: dict.fromkeys(names(), path))
    participant.publish, participant.withdraw = lambda *what: None, lambda what: gone.append(what.path)

    def made(deadline_s=1.0):
        attempt = SimpleNamespace(participant=participant, config=SimpleNamespace(deadline_s=deadline_s, slots=2))
        return Questions(attempt, lambda: None)

    def ask(deadline_s=1.0, progress=lambda: None):
        return made(deadline_s).answers("path", WANTED, "savepoint", progress)

    ask.clock, ask.ended, ask.gone, ask.after_s = clock, ended, gone, after_s
    ask.participant, ask.questions = participant, made
    return ask


def test_a_deadline_is_for_silence_and_not_for_a_backlog_that_is_worked_off(ask):
    assert ask(progress=itertools.count().__next__) == dict.fromkeys(WANTED, "path")
    assert ask.clock.now == pytest.approx(9, abs=0.1)


def test_a_slot_that_is_silent_for_longer_than_the_deadline_is_named(ask):
    with pytest.raises(MigrationFailed, match="savepoint: slot-0, slot-1 did not answer within 1 s"):
        ask()
    assert ask.clock.now == pytest.approx(1, abs=0.1)
    assert ask.ended == ["path"], "nobody looks any more"


def test_who_only_looks_waits_for_a_slot_that_hangs_no_longer_than_it_says(ask):
    asked = ask.questions(3600.0)
    with pytest.raises(MigrationFailed, match="measure: 0, 1 did not answer within 2 s"):
        asked.measure(2.0)
    assert ask.gone == ["measure", "measured"], "what was answered goes, too"
    assert ask.clock.now == pytest.approx(2, abs=0.1)
    with pytest.raises(MigrationFailed, match="what was asked before"):
        asked.measure(progress=lambda: asked.measure(0.01))


def test_slots_are_waited_for_that_answer_only_in_their_next_batch_as_long_as_something_comes(ask):
    ask.after_s.clear()
    ask.after_s |= {"0": 5, "1": 9}
    assert list(ask.questions().measure(progress=itertools.count().__next__)) == [0, 1]
    assert ask.clock.now == pytest.approx(9, abs=0.1)


@pytest.mark.parametrize("told", [nodes.COPYING, nodes.RESTORING])
def test_copies_are_waited_for_as_long_as_they_grow_or_what_is_to_be_copied_comes(ask, told):
    ask.after_s.clear()
    ask.after_s["0"], read = 5, ask.participant.read_below
    ask.participant.read_below = lambda folder: {"0": ask.clock.now} if folder == told else read(folder)
    asked = ask.questions()
    asked.copy((Move(0, 0, 1),), 1.0, 0, whole=False)
    assert list(asked.await_copies()) == [0]


def test_each_answer_begins_the_deadline_anew(ask):
    ask(deadline_s=5.1)
    assert ask.clock.now == pytest.approx(9, abs=0.1)
