"""What a command for a live job asks is checked before anything is planned."""

from types import SimpleNamespace

import pytest

from keyshift.experiment.live_spec import live_spec
from keyshift.lab.controls import JobControls
from keyshift.model.errors import BadInput


def controls(**values):
    run = SimpleNamespace(spec=live_spec(values))
    system = SimpleNamespace(
        status=lambda: {"stages": {"counter": {"provisioned": 4}}},
        plans=SimpleNamespace(propose=lambda stage, change, point: SimpleNamespace(steps_as_json=list)),
    )
    return JobControls(run, system, lambda proposal: {}, most=4)


@pytest.mark.parametrize("strategy", ["pause_resume", "lazy"])
def test_a_strategy_that_is_not_possible_with_the_job_s_order_is_refused(strategy):
    assert controls().move("counter", 3, strategy) == {"steps": []}
    ordered = controls(ordering="live_robin")
    with pytest.raises(BadInput, match=f"ordering = live_robin with strategy = {strategy}: .* all_at_once, fluid"):
        ordered.move("counter", 3, strategy)
    assert ordered.move("counter", 3, "chunked") == {"steps": []}
