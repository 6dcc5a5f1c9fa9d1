"""What is offered of each source, and how many routers read it, as users say it."""

import pytest

from keyshift.experiment.loads import loads_of, routers_of
from keyshift.model.errors import BadInput
from keyshift.traffic.load import SourceLoad
from keyshift.workloads import Source
from keyshift.workloads.keycount import EVENTS

SOURCES = [
    Source("consumer", EVENTS, lambda number: None),
    Source("control", EVENTS, lambda number: None, rate=5.0),
    Source("clock", EVENTS, lambda number: None),
]
PUBLISHED = "30:500,60:250,90:0,120:0,150:0,180:250,210:500,240:1000"


def loads(rate=1000.0, rates="", rate_steps="", injectors=1, warmup_s=10.0, seconds=300.0):
    return loads_of(SOURCES, rate, rates, rate_steps, injectors, warmup_s, seconds)


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
