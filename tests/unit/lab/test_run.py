import pytest

from keyshift.endpoints import Endpoints
from keyshift.lab.live_spec import live_spec
from keyshift.lab.run import Lab
from keyshift.place.profile import Spark


@pytest.mark.parametrize(
    ("place", "cores", "slots"),
    [
        (Spark(), 6, 4),
        (Spark(), 9, 7),
        (Spark(), 99, 16),
        (Spark(master="k8s://https://api", executors=2, cores=4), 99, 6),
    ],
)
def test_a_restart_may_lead_to_as_many_slots_as_there_are_cores_for(tmp_path, place, cores, slots):
    endpoints = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
    lab = Lab(endpoints, [], tmp_path, cores, print, place)
    assert lab.room(live_spec({})) == slots
