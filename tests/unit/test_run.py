from pathlib import Path
from types import SimpleNamespace

import pytest

from keyshift.endpoints import Endpoints
from keyshift.lab.run import _Run
from keyshift.lab.spec import make_spec

ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")


@pytest.mark.parametrize(("handover", "whole"), [(None, True), ("delta", False)])
def test_copies_of_a_later_phase_are_handed_over_as_that_phase_says(handover, whole):
    given = {} if handover is None else {"handover": handover}
    if given:  # what is handed over counts only where something is copied
        given |= {"replicate": 2}
    spec = make_spec({"strategy": "spacker_dynamic", "slots": 6, "to_slots": 2, "then_slots": "4,3"} | given)
    run = _Run(None, ENDPOINTS, spec, "run", Path("nowhere"), print, lambda: None)
    asked = []
    run._job = SimpleNamespace(assignment=spec.start(), copy=lambda *order: asked.append(order) or "name")
    run._plan(1, spec.target(spec.start(), 0))
    (copies, every_s, lag_keys, asked_whole) = asked[0]
    assert copies
    assert (every_s, lag_keys) == (spec.copy_every_s, spec.copy_lag_keys)
    assert asked_whole is whole
