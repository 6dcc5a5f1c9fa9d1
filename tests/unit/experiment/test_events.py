import pytest

from keyshift.experiment.events import write_events
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.spec import make_spec
from keyshift.lab.scripts.series import one_job
from keyshift.model.errors import BadInput
from keyshift.traffic.load import Schedule
from keyshift.workloads.event_files import EventFile

LOAD = {"workload": "saas", "seed": 7, "rate": 300, "rates": "control:50", "seconds": 2, "warmup_s": 1, "trigger_s": 1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.parquet"


def replaying(path, **changes):
    return make_spec(LOAD | {"events": str(path)} | changes)


def test_a_file_has_just_the_events_that_a_run_is_offered(path):
    spec = make_spec(LOAD | {"source_routers": "control:3"})
    assert write_events(spec, path) == 3 * 300 + 3 * 50
    file = EventFile(str(path))
    for source, load in zip(spec.workload.sources, spec.loads, strict=True):
        routers = spec.routers_of[source.name]
        schedule = Schedule(10**15, 3.0, load.rate, routers)
        for number in range(routers):
            times = schedule.times(number, 0, int(schedule.total[number]))
            assert file.events[source.name, number] == len(times) > 0
            assert file.partition(source, number).take(times) == source.partition(number).take(times)


def test_a_run_with_a_file_says_so_to_its_generators_and_not_where_it_is(path, tmp_path, monkeypatch):
    write_events(make_spec(LOAD), path)
    spec = replaying(path)
    assert [load.file for load in spec.loads] == [str(path)] * 2
    assert [load.file for load in make_spec(LOAD).loads] == [""] * 2
    assert spec.parameters()["events"] == path.name
    assert spec.repeated(3) == spec, "the same events"
    monkeypatch.chdir(tmp_path)
    assert make_spec(spec.parameters()) == spec


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"seconds": 2.01}, "450 events in partition 0 of source consumer, and the load needs 452 there, 903 in all"),
        ({"rates": "control:51"}, "75 events in partition 0 of source control, and the load needs 77"),
        ({"rate_steps": "1:400"}, "450 events in partition 0 of source consumer, and the load needs 500"),
        ({"source_routers": "control:1"}, "source control has 2 partitions there, and 1 routers in the run"),
        ({"seed": 8}, "events of seed = 7, and the run has 8"),
        ({"customers": 99}, "events of customers = 250, and the run has 99; set customers=250"),
    ],
)
def test_what_a_file_has_not_is_refused_before_anything_is_started(path, changes, words):
    write_events(make_spec(LOAD), path)
    assert replaying(path, seconds=1.9, spread=16, slots=3)
    with pytest.raises(BadInput, match=words):
        replaying(path, **changes)


def test_with_a_rate_that_is_chosen_later_the_events_are_counted_later(path):
    write_events(make_spec(LOAD), path)
    spec = replaying(path, rate="auto")
    assert spec.settled(rate=300.0).run.rate == 300.0
    with pytest.raises(BadInput, match="the load needs 453 there"):
        spec.settled(rate=302.0)
    with pytest.raises(BadInput, match="seed = 7"):
        replaying(path, rate="auto", seed=8)


def test_a_job_that_lasts_or_whose_script_may_change_the_rate_and_one_of_several_migrations_have_no_file(path):
    write_events(make_spec(LOAD), path)
    with pytest.raises(BadInput, match="events is of a run with a scenario and an end"):
        live_spec({"workload": "saas", "events": str(path)})
    with pytest.raises(BadInput, match=r"events = .*events\.parquet: trigger = script may change the rate"):
        replaying(path, trigger="script", script="1: rate 200")
    assert one_job([make_spec(LOAD)] * 2) is not None
    assert one_job([replaying(path)] * 2) is None


@pytest.mark.parametrize("changes, words", [({"rate": "auto"}, "rate = auto"), ({"again": True}, "drawn events")])
def test_a_file_is_written_of_events_that_are_drawn_and_counted(path, tmp_path, changes, words):
    if changes.pop("again", False):
        write_events(make_spec(LOAD), path)
        changes["events"] = str(path)
    other = tmp_path / "other.parquet"
    with pytest.raises(BadInput, match=words):
        write_events(make_spec(LOAD | changes), other)
    assert not other.exists()
