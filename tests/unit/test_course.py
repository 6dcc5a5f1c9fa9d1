from pathlib import Path
from types import SimpleNamespace

import pytest

from keyshift.endpoints import Endpoints
from keyshift.errors import QueryDied
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
