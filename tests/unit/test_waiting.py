"""Waiting ends with the first true answer, with the deadline, or with an error; progress puts the deadline off."""

import pytest

from keyshift import waiting
from keyshift.waiting import wait_until
from waits import Clock


def test_the_first_true_answer_ends_the_wait_and_with_no_time_at_all_it_is_asked_once():
    answers = iter([0, "", None, "here", "later"])
    assert wait_until(lambda: next(answers), 60.0, 0.0) == "here"
    assert next(answers) == "later"
    asked = []
    assert wait_until(lambda: asked.append(1), 0.0) is None
    assert asked == [1]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def test_without_one_the_last_answer_is_given_after_the_deadline_and_not_before(clock):
    asked = []
    assert wait_until(lambda: asked.append(1) or [], 2, 1) == []
    assert (clock.now, len(asked)) == (2, 3)


def test_while_something_moves_the_deadline_begins_anew(clock):
    assert wait_until(lambda: False, 3, 1, lambda: min(clock.now, 6)) is False
    assert clock.now == 9


@pytest.mark.parametrize("raises", ["done", "progress"])
def test_an_error_ends_the_wait(raises):
    calls = []

    def fails_later(what: str) -> bool:
        calls.append(what)
        if what == raises and calls.count(what) == 3:
            raise RuntimeError("the query has died")
        return False

    with pytest.raises(RuntimeError, match="has died"):
        wait_until(lambda: fails_later("done"), 60.0, 0.0, lambda: fails_later("progress"))
    assert calls.count(raises) == 3
