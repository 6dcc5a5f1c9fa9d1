from types import SimpleNamespace

import pytest

from keyshift.endpoints import Endpoints
from keyshift.errors import Deposed, ServiceUnavailable
from keyshift.lab import run
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


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """``lab.done`` has what happened to what a run consists of, ``lab.recorded`` what was stored of it."""
    made = Lab(Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s"), [], tmp_path, 6, print, Spark())
    made._work, made._spark, made._copy_bytes_per_s = tmp_path, None, 1.0
    made.done, made.recorded, made.driver_of = [], [], lambda: None

    def job(*_):
        def asked(what):
            made.done.append(what)
            made.driver_of()

        said = {what: lambda what=what: made.done.append(what) for what in ("stop", "clean", "read_log")}
        asks = {what: lambda what=what: asked(what) for what in ("require_driver", "end")}
        return SimpleNamespace(log=[], troubles=[], **said, **asks)

    def close(keep_topics=False):
        made.done.append("topics stay" if keep_topics else "topics go")

    monkeypatch.setattr(run, "Job", job)
    monkeypatch.setattr(run, "Traffic", lambda *_: SimpleNamespace(close=close))
    monkeypatch.setattr(run, "KeyshiftJob", lambda *_: None)
    stored = SimpleNamespace(
        ended=lambda *_: made.recorded.append("ended"), died=lambda error, _: made.recorded.append(repr(error))
    )
    monkeypatch.setattr(made, "_recording", lambda *_: stored)
    return made


def recorded(lab, error=None):
    def course(*_):
        def execute():
            if error is not None:
                raise error

        return SimpleNamespace(execute=execute)

    return lab.record(live_spec({}), "run-1", course, 4, {})


def deposed():
    raise Deposed("it runs in another process now")


def away():
    raise ServiceUnavailable("ZooKeeper is away")


def test_what_a_run_has_left_goes_when_nobody_can_claim_it_any_more(lab):
    recorded(lab)
    assert lab.done == ["stop", "end", "topics go", "clean"] and lab.recorded == ["ended"]


@pytest.mark.parametrize("error", [None, Deposed("it runs elsewhere"), ServiceUnavailable("the generator died")])
def test_a_run_that_another_process_goes_on_with_says_so_whatever_ended_it_and_deletes_and_stores_nothing(lab, error):
    lab.driver_of = deposed
    with pytest.raises(Deposed, match="it runs in another process now"):
        recorded(lab, error)
    assert lab.done[-3:] == ["stop", "end", "topics stay"] and "clean" not in lab.done
    assert lab.recorded == []


def test_a_run_of_which_nobody_can_say_whose_it_is_keeps_what_it_has_left_and_its_own_error(lab):
    lab.driver_of = away
    with pytest.raises(ServiceUnavailable, match="the generator died"):
        recorded(lab, ServiceUnavailable("the generator died"))
    assert lab.done == ["require_driver", "read_log", "stop", "end", "topics stay"]
    assert lab.recorded == ["ServiceUnavailable('the generator died')"]
