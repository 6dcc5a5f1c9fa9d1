from pathlib import Path
from types import SimpleNamespace

import pytest

from keyshift.endpoints import Endpoints
from keyshift.errors import QueryDied
from keyshift.lab import course
from keyshift.lab.course import Course, _hosts
from keyshift.lab.spec import make_spec

ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")


@pytest.mark.parametrize(("handover", "whole"), [(None, True), ("delta", False)])
def test_copies_of_a_later_phase_are_handed_over_as_that_phase_says(handover, whole):
    given = {} if handover is None else {"handover": handover}
    if given:  # what is handed over counts only where something is copied
        given |= {"replicate": 2}
    spec = make_spec({"strategy": "spacker_dynamic", "slots": 6, "to_slots": 2, "then_slots": "4,3"} | given)
    run = Course(None, ENDPOINTS, spec, "run", Path("nowhere"), print, lambda: None)
    asked = []
    run._job = SimpleNamespace(assignment=spec.start(), copy=lambda *order: asked.append(order) or "name")
    run._plan(1, spec.target(spec.start(), 0))
    (copies, every_s, lag_keys, asked_whole) = asked[0]
    assert copies
    assert (every_s, lag_keys) == (spec.copy_every_s, spec.copy_lag_keys)
    assert asked_whole is whole


def test_where_slots_were_is_told_if_it_was_not_one_host():
    assert _hosts({0: {"host": "a"}, 1: {"host": "a"}}) == []
    assert _hosts({1: {"host": "b"}, 0: {"host": "a"}, 2: {"host": "a"}}) == ["slots 0, 2 on a; slots 1 on b"]


@pytest.fixture
def dying():
    """A run whose query dies at the first tries, of which the second is a recovery; what was tried is kept."""
    run = Course(None, ENDPOINTS, make_spec({"recoveries": 2}), "run", Path("nowhere"), print, lambda: None)
    tried: list[str] = []

    def trying(what):
        def attempt(*_):
            tried.append(what)
            if len(tried) <= run.deaths:
                raise QueryDied("gone")

        return attempt

    run._recover = trying("recovery")
    return run, trying("step"), tried


def test_a_query_that_dies_while_it_recovers_is_recovered_again(dying):
    run, step, tried = dying
    run.deaths = 2
    run._surviving(step)
    assert tried == ["step", "recovery", "recovery", "step"]


def test_a_query_that_dies_more_often_than_a_run_may_survive_ends_it(dying):
    run, step, tried = dying
    run.deaths = 3
    with pytest.raises(QueryDied):
        run._surviving(step)
    assert tried == ["step", "recovery", "recovery"]


@pytest.fixture
def loaded(monkeypatch):
    """A run whose load is over; its results come as ``come`` says, one number per look at the clock."""
    run = Course(None, ENDPOINTS, make_spec({"catch_up_s": 30.0}), "run", Path("nowhere"), print, lambda: None)
    clock = SimpleNamespace(now=1000.0)
    run._idle_since, run._offered, run.come = clock.now, 10_000, lambda s: 0

    def sleep(seconds):
        clock.now += seconds
        run._received = run.come(clock.now - 1000.0)

    run._job = SimpleNamespace(check=lambda: None, cancelled=[], cancel=lambda: run._job.cancelled.append(clock.now))
    fake = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(course, "time", fake)
    run.clock = clock
    return run


def test_a_backlog_is_waited_for_as_long_as_results_come(loaded):
    loaded.come = lambda s: min(10_000, round(s * 400))
    loaded._await_results()
    assert not loaded._overloaded
    assert loaded.clock.now == pytest.approx(1025, abs=1)


def test_a_backlog_that_takes_longer_than_is_allowed_makes_the_job_overloaded(loaded):
    loaded.come = lambda s: round(s * 100)
    loaded._await_results()
    assert loaded._overloaded
    assert loaded.clock.now == pytest.approx(1030, abs=1)


def test_results_that_do_not_come_any_more_are_lost_and_the_job_is_not_overloaded(loaded):
    loaded.come = lambda s: min(9_000, round(s * 1000))
    loaded._await_results()
    assert not loaded._overloaded
    assert loaded.clock.now == pytest.approx(1019, abs=1)


def test_steps_that_have_not_begun_are_taken_back_when_the_time_for_the_backlog_is_up(loaded):
    loaded._check_backlog()
    loaded.clock.now += 31
    loaded._check_backlog()
    loaded._check_backlog()
    assert loaded._job.cancelled == [1031.0]
    assert loaded._overloaded


def test_a_migration_that_outlasts_the_load_of_a_job_without_backlog_is_not_taken_back(loaded):
    loaded._received = 10_000
    loaded.clock.now += 1000
    loaded._check_backlog()
    assert not loaded._job.cancelled
    assert not loaded._overloaded
