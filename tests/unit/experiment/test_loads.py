"""What is offered of each source, and how many routers read it, as users say it; and the events of a run in a file."""

import pytest

from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.loads import loads_of, routers_of, write_events
from keyshift.experiment.parts import RunPart
from keyshift.experiment.spec import make_spec
from keyshift.lab.scripts.series import one_job
from keyshift.model.errors import BadInput
from keyshift.traffic.load import Schedule, SourceLoad
from keyshift.workloads import Source
from keyshift.workloads.event_files import EventFile
from keyshift.workloads.keycount import EVENTS

SOURCES = [
    Source("consumer", EVENTS, lambda number: None),
    Source("control", EVENTS, lambda number: None, rate=5.0),
    Source("clock", EVENTS, lambda number: None),
]
PUBLISHED = "30:500,60:250,90:0,120:0,150:0,180:250,210:500,240:1000"


def loads(**given):
    return loads_of(SOURCES, RunPart(rate=1000.0, warmup_s=10.0, seconds=300.0, **given))


def test_a_source_has_the_rate_that_it_was_given_or_its_own_or_that_of_the_first():
    assert loads() == [SourceLoad(1000.0, []), SourceLoad(5.0, []), SourceLoad(1000.0, [])]
    others = [SourceLoad(rate, [], 2) for rate in (1000.0, 0.0, 1.0)]
    assert loads(rates="clock:1, control:0", injectors=2) == others


def test_steps_are_of_the_first_source_or_of_the_named_one_and_silence_is_a_rate():
    first, control, clock = loads(rate_steps=f"control={PUBLISHED}")
    assert (first.steps, clock.steps) == ([], [])
    steps = [500.0, 250.0, 0.0, 0.0, 0.0, 250.0, 500.0, 1000.0]
    assert control.steps == [(40.0 + 30.0 * number, rate) for number, rate in enumerate(steps)]
    assert control.events(310) == 40 * 5 + 30 * (500 + 250 + 0 + 0 + 0 + 250 + 500) + 60 * 1000
    first, control, clock = loads(rate_steps="0:2000; clock = 5:1,7:2")
    assert (first.steps, control.steps, clock.steps) == ([(10.0, 2000.0)], [], [(15.0, 1.0), (17.0, 2.0)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rates": "controll:5"}, "did you mean 'control'"),
        ({"rates": "consumer:5"}, "unknown source 'consumer': known: control, clock"),
        ({"rates": "control"}, "'control' must be a source and a rate from 0 to 1e+09, e.g. control:5"),
        ({"rates": "control:-1"}, "'control:-1' must be"),
        ({"rates": "control:nan"}, "'control:nan' must be"),
        ({"rates": "control:inf"}, "'control:inf' must be"),
        ({"rates": "control:1.1e9"}, "'control:1.1e9' must be"),
        ({"rates": "control:1,"}, "'' must be a source"),
        ({"rates": "control:1,control:2"}, "source control is there twice"),
        ({"rate_steps": "sales=0:5"}, "unknown source 'sales': known: consumer, control, clock"),
        ({"rate_steps": "control=30:500,20:1"}, "ascending and below seconds = 300"),
        ({"rate_steps": "control=30:500:2"}, "each with a rate from 0 to 1e+09, e.g. 0:2000,10:6000"),
        ({"rate_steps": "control=30:-1"}, "each with a rate"),
        ({"rate_steps": "1:1.1e9"}, "each with a rate from 0 to 1e+09"),
        ({"rate_steps": "1:fast"}, "each with a rate from 0 to 1e+09, e.g. 0:2000,10:6000"),
        ({"rate_steps": "control=300:1"}, "below seconds = 300"),
        ({"rate_steps": "0:1;consumer=0:2"}, "source consumer is there twice"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_allowed(given, words):
    [(name, text)] = given.items()
    with pytest.raises(BadInput) as raised:
        loads(**given)
    assert f"{name} = {text!r}" in str(raised.value)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_each_source_has_as_many_routers_unless_it_is_named():
    assert routers_of(SOURCES, 2, "") == {"consumer": 2, "control": 2, "clock": 2}
    assert routers_of(SOURCES, 2, "control:1,consumer:4") == {"consumer": 4, "control": 1, "clock": 2}
    for text in ("control:0", "control:65", "control:x", "control"):
        with pytest.raises(BadInput, match="must be a source and a number of routers from 1 to 64"):
            routers_of(SOURCES, 2, text)
    with pytest.raises(BadInput, match="known: consumer, control, clock"):
        routers_of(SOURCES, 2, "other:1")


# -- in a file ----------------------------------------------------------------------------------------------------

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
