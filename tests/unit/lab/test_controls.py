"""What a command for a live job asks is checked before anything is planned."""

from types import SimpleNamespace

import pytest

from keyshift.experiment.live_spec import live_spec
from keyshift.lab.controls import JobControls
from keyshift.model.errors import BadInput


def controls(**values):
    spec = live_spec(values)
    system = SimpleNamespace(
        status=lambda: {"stages": {name: {"provisioned": slots} for name, slots in spec.tasks.items()}},
        plans=SimpleNamespace(propose=lambda stage, change, point: SimpleNamespace(steps_as_json=list)),
    )
    most = {name: slots + 1 for name, slots in spec.tasks.items()}
    return JobControls(SimpleNamespace(spec=spec, system=system), lambda proposal: {}, most)


def test_a_stage_goes_to_as_many_slots_as_it_has_or_to_more_with_a_restart():
    made = controls(workload="chain", chain="map,counter", stage_slots="counter:6")
    assert made.move("map", 4) == made.move("counter", 6) == made.move("map", 5, "stop_restart") == {"steps": []}
    for stage, slots, strategy, words in [
        ("map", 5, None, "slots = 5: 4 are provisioned in this job; .*slots_max=5 to have more, or plan with strategy"),
        ("map", 6, "stop_restart", "slots = 6: 5 are provisioned"),
        ("counter", 7, None, "slots = 7: 6 are provisioned"),
        ("counter", 8, "stop_restart", "slots = 8: 7 are provisioned"),
    ]:
        with pytest.raises(BadInput, match=words):
            made.move(stage, slots, strategy)


@pytest.mark.parametrize(
    ("values", "slots", "advice"),
    [
        ({}, 5, "--set slots_max=5 to have more, or plan with strategy stop_restart"),
        ({"ordering": "live_robin", "snapshot_s": 0}, 5, "--set slots_max=5 to have more"),
        ({"strategy": "meces"}, 5, "--set slots_max=5 to have more"),
        ({"key_groups": 64}, 64, "--set slots_max=64 to have more"),
        ({"key_groups": 64}, 500, "--set slots_max=500 --set key_groups=500 to have more"),
    ],
)
def test_whoever_asks_for_too_many_slots_is_told_what_helps(values, slots, advice):
    with pytest.raises(BadInput, match=f"; start a job with {advice}$"):
        controls(**{"slots_max": 4, **values}).move(None, slots)
