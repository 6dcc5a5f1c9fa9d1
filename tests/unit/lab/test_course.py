import math
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_bucket import state, store_of

from keyshift.endpoints import Endpoints
from keyshift.errors import QueryDied
from keyshift.executor.job import Savepoint
from keyshift.keys import Assignment
from keyshift.lab import course
from keyshift.lab.course import Course, _final_state, _hosts, _inventory, _unmoved
from keyshift.lab.spec import make_spec
from keyshift.state.timers import EVENT

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
    assert (every_s, lag_keys) == (spec.job.copy_every_s, spec.job.copy_lag_keys)
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
    run._idle_since, run._due, run.come = clock.now, 10_000, lambda s: 0

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


def test_a_run_in_which_nothing_moved_although_something_should_have_says_so():
    def migration(*rows):
        return dict(zip(("source", "destination", "installed_s"), map(list, zip(*rows, strict=True)), strict=True))

    assert _unmoved({3, 4}, migration((0, 1, 0.5), (0, 1, math.nan))) == []
    assert _unmoved(set(), migration((1, 1, 0.5))) == []
    no_step = {"source": [], "destination": [], "installed_s": []}
    for nothing in (migration((0, 1, math.nan)), migration((1, 1, 0.5)), no_step):
        (line,) = _unmoved({3, 4}, nothing)
        assert line.startswith("nothing moved: 2 units were to move")


def test_units_that_plans_want_elsewhere_are_those_that_were_to_move():
    run = Course(None, ENDPOINTS, make_spec({"strategy": "fluid"}), "run", Path("nowhere"), print, lambda: None)
    run._job = SimpleNamespace(assignment=run._spec.start())
    assert run._to_move is None
    wanted = {move.unit for step in run._plan(0, run._spec.start()) for move in step.moves}
    assert run._to_move == wanted != set()


def test_the_final_state_has_the_values_and_the_timers_of_every_unit_with_the_slot_that_wrote_it():
    store = store_of()
    rows = {
        str(slot): [list(astuple(place)) for place in store.write("one", slot, units, 10_000)]
        for slot, units in ((1, [(1, state(1)), (2, state(2, keys=0))]), (2, [(0, state(0, timers=1))]))
    }
    assignment = Assignment(3, (2, 1, 1))
    store.commit("one", {"offsets": {}, "assignment": assignment.to_json(), "places": rows})
    timers = []
    parts = list(_final_state(store, Savepoint("one", {}, 0, {}), timers))
    assert sorted({(int(p["unit"].iloc[0]), int(p["slot"].iloc[0]), len(p)) for p in parts}) == [(0, 2, 3), (1, 1, 3)]
    found = [(int(t["unit"].iloc[0]), int(t["slot"].iloc[0]), t[t["kind"] == EVENT]["time"].tolist()) for t in timers]
    assert sorted((unit, slot, sorted(times)) for unit, slot, times in found) == [
        (0, 2, [0]),
        (1, 1, [100, 101]),
        (2, 1, [200, 201]),
    ]
    inventory = _inventory("one", store.manifest("one"))
    assert (inventory.assignment, sorted(inventory.units)) == (assignment, [(0, 2), (1, 1), (2, 1)])


def test_keys_that_were_left_behind_are_waited_for_and_told_if_they_stay(loaded):
    said = [{0: [3], 1: []}, {0: [3], 1: []}, {0: [], 1: []}]

    def measure():
        answer = said.pop(0) if len(said) > 1 else said[0]
        return {slot: {"left_behind": units} for slot, units in answer.items()}

    loaded._job.measure = measure
    assert loaded._left_behind() == set()
    said[:] = [{0: [3], 1: [4, 5]}]
    assert loaded._left_behind() == {(3, 0), (4, 1), (5, 1)}
