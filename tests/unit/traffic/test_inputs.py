"""Several sources as one input, and the generators that share them; with processes: tests/integration."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from keyshift.model.errors import ServiceUnavailable
from keyshift.traffic import feed as module
from keyshift.traffic.feed import Before, Feed
from keyshift.traffic.generator import GeneratorConfig
from keyshift.traffic.inputs import Inputs
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.messages import Begin, EndLoad, LoadDone, Ready, SetRate, SkipEvents, SoFar
from keyshift.traffic.process import JsonProcess
from keyshift.traffic.topics import OfferedSoFar, Topic
from keyshift.traffic.traffic import SAY_S
from keyshift.workloads.keycount import KeyCount
from workload_runs import with_sources

TOPICS = [Topic("k:1", "events", 3), Topic("k:1", "others", 2)]


@pytest.fixture
def inputs():
    two = with_sources(KeyCount, lambda plain: [plain, replace(plain, name="others")])
    return Inputs(two(), TOPICS)


def test_each_partition_has_one_generator_and_each_generator_a_partition(inputs):
    loads = [SourceLoad(10.0, (), 2), SourceLoad(1.0, (), 4)]
    shared = [(each.source.name, load.rate, partitions) for each, load, partitions in inputs.shares(loads)]
    assert shared == [("events", 10.0, [0, 2]), ("events", 10.0, [1]), ("others", 1.0, [0]), ("others", 1.0, [1])]


def test_what_is_read_and_counted_has_the_routers_of_all_sources(inputs, monkeypatch):
    def read(topic, source, before, stage, first):
        events = pd.DataFrame({"router": np.arange(topic.partitions) + first})
        return events, events.assign(of=source.name)

    monkeypatch.setattr(Topic, "read", read)
    monkeypatch.setattr(
        Topic,
        "count",
        lambda topic, source, stages: OfferedSoFar([5] * topic.partitions, 9, (((1, 1),),) * topic.partitions),
    )
    monkeypatch.setattr(Topic, "extents", lambda topic: {1: (7, 9), 0: (len(topic.name), 8)})
    events, frames = inputs.read()
    assert events["router"].tolist() == list(range(5))
    assert frames["of"].tolist() == ["events"] * 3 + ["others"] * 2
    assert inputs.count() == OfferedSoFar([5] * 5, 18, (((1, 1),),) * 5)
    assert inputs.extents() == {
        **{0: (TOPICS[0], 0, 6, 8), 1: (TOPICS[0], 1, 7, 9)},
        **{3: (TOPICS[1], 0, 6, 8), 4: (TOPICS[1], 1, 7, 9)},
    }


def test_portions_of_all_sources_come_one_behind_the_other(inputs, monkeypatch):
    monkeypatch.setattr(Topic, "portions", lambda topic, source, *told: iter([(source.name, told)] * 2))
    found = [*inputs.portions({0: 3})]
    [stage] = KeyCount().stages
    assert [(name, before, of.name, first) for name, (before, of, first) in found] == [
        *[("events", {0: 3}, stage.name, 0)] * 2,
        *[("others", {0: 3}, stage.name, 3)] * 2,
    ]


@pytest.fixture
def feed(monkeypatch, inputs):
    """Its generators are no processes: ``told`` is what one was told, ``say`` what it says."""

    def made(injector, name, config, reports, heard):
        injector.told, injector.say = [], heard

    monkeypatch.setattr(JsonProcess, "__init__", made)
    monkeypatch.setattr(JsonProcess, "tell", lambda injector, command: injector.told.append(command))
    monkeypatch.setattr(JsonProcess, "check", lambda injector: None)
    config = {"workload": "keycount", "parameters": {}, "frame_ms": 20}
    shares = [*inputs.shares([SourceLoad(100.0, (), 2), SourceLoad(1.0)])]
    configs = [
        GeneratorConfig(topic=each.topic, source=each.source.name, rate=load.rate, partitions=own, **config)
        for each, load, own in shares
    ]
    routers = ([each.first + partition for partition in own] for each, _, own in shares)
    return Feed(zip(configs, routers, strict=True))


def test_a_second_is_told_of_when_all_have_told_of_it(feed):
    one, two, other = feed.injectors
    one.say(SoFar(10, 5))
    two.say(SoFar(20, 10))
    one.say(SoFar(30, 15))
    assert not feed.progress and feed.sent == 50
    other.say(SoFar(1, 1))
    assert [(each.events, each.due) for each in feed.progress] == [(51, 26)]
    two.say(SoFar(40, 20))
    other.say(SoFar(2, 2))
    assert [(each.events, each.due) for each in feed.progress] == [(51, 26), (72, 37)]


def test_a_load_is_over_when_all_have_offered_theirs(feed):
    feed.before = Before(1000, 500, 7.0)
    for number, each in enumerate(feed.injectors):
        assert (feed.offered, feed.due) == (None, None)
        each.say(LoadDone(10, 11, 5, number + 1.0))
    assert (feed.offered, feed.planned, feed.due, feed.took_s) == (1030, 1033, 515, 10.0)
    feed.await_done()


def test_a_rate_that_this_process_or_an_earlier_one_has_changed_is_remembered(feed):
    assert not feed.rate_changed
    feed.before = Before(rate_changed=True)
    assert feed.rate_changed
    feed.before = Before()
    feed.change_rate(10.0, "others")
    assert feed.rate_changed


def test_one_that_is_late_or_has_died_is_told_when_all_are_waited_for(feed, monkeypatch):
    monkeypatch.setattr(module, "READY_S", 0.05)
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    *some, last = feed.injectors
    for each in some:
        each.say(Ready())
    with pytest.raises(ServiceUnavailable, match=r"the generator was not ready within 0\.05 s"):
        feed.await_ready()
    last.say(Ready())
    feed.await_ready()
    with pytest.raises(ServiceUnavailable, match=r"the generator was not done within 0\.05 s"):
        feed.await_done()

    def died():
        raise ServiceUnavailable("the generator process died")

    monkeypatch.setattr(last, "check", died)
    with pytest.raises(ServiceUnavailable, match="the generator process died"):
        feed.await_ready()


def test_generators_may_take_as_long_to_get_ready_as_slots_and_any_time_to_leave_events_out(feed, monkeypatch):
    """A job that takes longer to start, or has lasted longer, could not be resumed otherwise."""
    assert module.READY_S == SAY_S
    monkeypatch.setattr(module, "READY_S", 0.0)
    for each in feed.injectors:
        each.say(Ready())
    feed.await_ready()
    feed.skip([1] * 5)
    with pytest.raises(ServiceUnavailable, match="the generator was not ready"):
        feed.await_ready()
    looks = []

    def look():
        looks.append(1)
        if len(looks) == 3:
            for each in feed.injectors:
                each.say(Ready())

    monkeypatch.setattr(feed.injectors[0], "check", look)
    feed.await_skipped()
    assert len(looks) == 3


def test_each_is_told_what_concerns_it(feed):
    feed.skip([10, 11, 12, 13, 14])
    feed.begin(5.0, None)
    feed.change_rate(7.0, "others")
    feed.end_load()
    begin, end = Begin(5_000_000, None), EndLoad()
    told = [[SkipEvents((10, 12)), begin], [SkipEvents((11,)), begin], [SkipEvents((13, 14)), begin, SetRate(7.0)]]
    assert [each.told for each in feed.injectors] == [[*each, end] for each in told]
