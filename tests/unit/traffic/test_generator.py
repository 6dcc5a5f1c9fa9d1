import math
import threading
from itertools import count
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from small_kafka import Broker

from keyshift.model.errors import BadInput, Deposed, ServiceUnavailable
from keyshift.model.frames import MOST_BYTES, Facts, decode
from keyshift.traffic import generator as module
from keyshift.traffic.generator import OVERTIME_S, TAKE_EVENTS, Generator, GeneratorConfig, aligned, generate
from keyshift.traffic.load import Schedule
from keyshift.traffic.messages import Begin, EndLoad, LoadDone, Ready, SetRate, SkipEvents, Stop
from keyshift.traffic.topics import Topic
from keyshift.traffic.writer import ON_THE_WAY_BYTES
from keyshift.waiting import wait_until
from keyshift.workloads import workloads
from keyshift.workloads.event_files import event_writer
from keyshift.workloads.keycount import KeyCount, KeyCountPartition

RATES = st.integers(1, 50_000) | st.floats(0.5, 50_000)
START_US = 1_700_000_000_000_000


@given(RATES, st.integers(1, 5), st.integers(0, 3), st.lists(st.integers(-500_000, 2_500_000), max_size=20))
def test_rate_times_seconds_events_are_offered_each_in_the_frame_that_ends_at_or_after_its_time(
    rate, routers, seconds, frames
):
    schedule = Schedule(START_US, seconds, rate, routers)
    assert sum(schedule.total) == np.ceil(rate * seconds)
    for router, total in enumerate(schedule.total):
        times = schedule.times(router, 0, total)
        assert ((times >= START_US) & (times < START_US + seconds * 1_000_000 + 1)).all()
        for frame_us in (START_US + frame for frame in frames):
            due = schedule.due(router, frame_us)
            assert (times[:due] <= frame_us).all()
            assert (times[due:] >= frame_us).all()


@given(st.integers(0, 10**8), st.sampled_from([5_000.0, 20_000.0, 33_333.3]), st.integers(1, 5))
def test_with_one_event_in_a_frame_none_waits_for_it(before_us, frame_us, routers):
    """Turns are counted from whenever the process began, ``before_us`` before the load."""
    schedule = Schedule(START_US, None, routers * 1e6 / frame_us, routers)
    begin_us = aligned(START_US - before_us, frame_us, START_US)
    assert 0 <= begin_us - (START_US - before_us) < frame_us
    first = math.ceil((START_US - begin_us) / frame_us) * routers
    for number in range(5):
        for router in range(routers):
            at_us = round(begin_us + (first + number * routers + router) * frame_us / routers)
            [due_us] = schedule.times(router, number, number + 1)
            assert schedule.due(router, at_us) == number + 1 and 0 <= at_us - due_us <= 3


STEPS = [(0.5, 3000), (1.0, 0), (1.5, 20)]


@pytest.mark.parametrize("routers", [1, 3])
def test_the_rate_follows_its_steps(routers):
    schedule = Schedule(START_US, 2, 1000, routers, STEPS)
    assert sum(schedule.total) == 500 + 1500 + 0 + 10
    every = [schedule.times(router, 0, total) for router, total in enumerate(schedule.total)]
    times = np.sort(np.concatenate(every)) - START_US
    assert np.histogram(times, [0, 500_000, 1_000_000, 1_500_000, 2_000_000])[0].tolist() == [500, 1500, 0, 10]
    for begin, end, distance_us in ((0, 500, 1000), (500, 2000, 1e6 / 3000), (2000, 2010, 50_000)):
        assert np.abs(np.diff(times[begin:end]) - distance_us).max() <= 1
    for now_us in range(0, 2_000_000, 9_973):
        due = sum(schedule.due(router, START_US + now_us) for router in range(routers))
        assert abs(due - (times <= now_us).sum()) <= 1, "up to a microsecond"
    assert [schedule.due(router, START_US - 1) for router in range(routers)] == [0] * routers
    assert [schedule.due(router, START_US + 2_000_000) for router in range(routers)] == schedule.total


PARAMETERS = {"key_groups": 8, "keys": 50, "skew": 0.5, "state_bytes": 64, "seed": 4}


def generator(broker, rate, told_us=START_US, skip=(), **more):
    made = idle_generator(broker, rate, **more)
    if skip:
        made.obey(SkipEvents(skip), told_us)
    made.obey(Begin(START_US, 1), told_us)
    return made


def idle_generator(broker, rate, **more):
    return Generator(config(rate, **more), broker)


def config(rate, **more):
    plain = {"topic": Topic("k:1", "t", 2), "source": "events", "partitions": [0, 1], "frame_ms": 20}
    return GeneratorConfig(**plain | {"workload": "keycount", "parameters": PARAMETERS, "rate": rate} | more)


@pytest.mark.parametrize(("routers", "injectors"), [(3, 1), (4, 2), (3, 2)])
def test_with_one_event_in_a_frame_none_waits_for_it_however_many_generators_there_are(routers, injectors, monkeypatch):
    """Each process begins when chance has it, and time passes only while it waits for commands."""
    monkeypatch.setattr(Topic, "require_partitions", lambda topic: None)
    monkeypatch.setattr(module, "say", lambda report: None)
    for number in range(injectors):
        broker, clock = Broker(), SimpleNamespace(us=START_US - 40_000 - 7_001 * number)
        broker.ends = [0] * routers
        commands = iter([Begin(START_US, None), *[None] * 200, Stop()])

        def pass_time(timeout_s, clock=clock, commands=commands):
            clock.us += math.ceil(max(0, timeout_s) * 1e6)
            return next(commands)

        monkeypatch.setattr(module, "now_us", lambda clock=clock: clock.us)
        monkeypatch.setattr(module, "producer_of", lambda topic, broker=broker: broker)
        mine = list(range(routers))[number::injectors]
        told = config(50 * routers, topic=Topic("k:1", "t", routers), partitions=mine)
        generate(told, SimpleNamespace(next=pass_time))
        for router in mine:
            offered = [(batch, facts.watermark) for batch, facts in broker.frames(router) if facts.watermark > START_US]
            assert {batch.num_rows for batch, _ in offered} == {1}
            waited_us = [at_us - batch["t"][0].as_py() for batch, at_us in offered]
            assert len(waited_us) > 50 and all(0 <= each <= 3 for each in waited_us)


def test_a_late_generator_sends_all_that_is_due_in_bounded_frames_and_no_event_becomes_late_by_it():
    late = generator(broker := Broker(), rate=300_000)
    frame_us = START_US + 900_000
    calls = 1
    while not late.send(1, frame_us):
        calls += 1
    assert calls == math.ceil(135_000 / TAKE_EVENTS)
    sent = broker.frames(1)
    assert sum(batch.num_rows for batch, _ in sent) == 135_000 == late.events
    assert max(len(value) for _, value in broker.values) <= MOST_BYTES
    times = np.concatenate([batch["t"].to_numpy() for batch, _ in sent])
    assert (times == late.schedule.times(1, 0, 135_000)).all()
    behind = [batch["t"][0].as_py() - 1 for batch, _ in sent[1:]]
    assert [facts.watermark for _, facts in sent] == [*behind, frame_us]
    assert broker.frames(0) == []


def test_a_generator_that_hears_of_its_load_when_it_should_be_over_sends_it_for_each_router():
    told_us = START_US + 60_000_000
    late = generator(Broker(), rate=1000, told_us=told_us)
    late.send(0, told_us + 5_000)
    late.give_up(told_us + 5_000)
    assert not late.finished, "it is not the turn of router 1 yet"
    late.send(1, told_us + 15_000)
    assert late.finished and late.events == 1000


def test_a_load_that_is_told_late_begins_behind_the_ticks_that_were_sent():
    """On a busy machine. Its first events would be late otherwise: their windows would have closed."""
    made = idle_generator(broker := Broker(), rate=1000)
    for router in (0, 1):
        made.send(router, START_US + 40_000 + router)
    made.obey(Begin(START_US, 1), START_US + 50_000)
    for router in (0, 1):
        made.send(router, START_US + 2_000_000)
    times = np.concatenate([batch["t"] for router in (0, 1) for batch, _ in broker.frames(router)])
    assert made.finished and len(times) == 1000
    assert times.min() == START_US + 40_002


def test_a_generator_follows_the_steps_it_was_told():
    made = generator(Broker(), rate=100, rate_steps=[[0.5, 1000]])
    for router in range(2):
        assert made.send(router, START_US + 500_000 - 1)
    assert made.events == 50
    for router in range(2):
        assert made.send(router, START_US + 1_000_000)
    assert made.events == 550
    assert made.finished


def test_events_that_are_not_sent_in_time_are_never_offered():
    slow = generator(Broker(), rate=200_000)
    end_us = START_US + 1_000_000
    slow.send(0, end_us)
    slow.give_up(end_us + round(OVERTIME_S * 1e6))
    assert not slow.finished
    slow.give_up(end_us + round(OVERTIME_S * 1e6) + 1)
    assert slow.finished
    assert slow.done(START_US + 6_500_000) == LoadDone(TAKE_EVENTS, 200_000, TAKE_EVENTS, 6.5)
    assert slow.send(0, end_us)
    assert slow.events == TAKE_EVENTS


def test_a_load_that_is_too_much_for_its_generator_is_over_behind_its_overtime(monkeypatch):
    """In each look at the clock a second passes, and little is sent of what is due in it."""
    said, seconds = [], count(START_US, 1_000_000)
    commands = iter([Begin(START_US, 1), *[None] * 8, Stop()])
    monkeypatch.setattr(Topic, "require_partitions", lambda topic: None)
    monkeypatch.setattr(module, "say", said.append)
    monkeypatch.setattr(module, "producer_of", lambda topic: Broker())
    monkeypatch.setattr(module, "now_us", lambda: next(seconds))
    generate(config(1_000_000_000), SimpleNamespace(next=lambda timeout_s: next(commands)))
    [done] = [report for report in said if isinstance(report, LoadDone)]
    assert 0 < done.events < done.planned == 1_000_000_000 and done.took_s > 1 + OVERTIME_S
    assert said[-1] != done, "it has not waited until it was stopped"


CHANGES = st.lists(st.tuples(st.integers(1, 2_000_000), st.floats(0.5, 20_000)), max_size=5)


@given(st.floats(0.5, 20_000), st.integers(1, 4), CHANGES, st.integers(1, 2_000_000))
def test_a_rate_that_changes_takes_no_event_back_and_leaves_no_gap(rate, routers, changes, last_us):
    schedule = Schedule(START_US, None, rate, routers)
    now_us, expected, current, due = START_US, 0.0, rate, [0] * routers
    for passed_us, after in [*changes, (last_us, None)]:
        begin, end = list(due), now_us + passed_us
        expected += passed_us * current / 1e6
        due = [schedule.due(router, end) for router in range(routers)]
        times = [schedule.times(router, begin[router], due[router]) for router in range(routers)]
        for each in times:
            assert (each > now_us - 2).all() and (each <= end).all()
        now_us = end
        if after is not None:
            schedule.change(now_us, after)
            current = after
            assert [schedule.due(router, end) for router in range(routers)] == due
    schedule.end(now_us)
    assert sum(due) == pytest.approx(expected, abs=1.01)
    assert all(total <= number <= total + 1 for total, number in zip(schedule.total, due, strict=True))


def test_a_generator_goes_on_behind_the_events_of_another_one():
    whole, rest = Broker(), Broker()
    first = generator(whole, rate=1000)
    second = generator(rest, rate=1000, skip=[150, 20], epoch=3)
    for made in (first, second):
        for router in range(2):
            made.send(router, START_US + 1_000_000)
    for router, skipped in ((0, 150), (1, 20)):
        keys = [np.concatenate([batch["key"] for batch, _ in broker.frames(router)]) for broker in (whole, rest)]
        assert len(keys[1]) == 500
        assert (keys[0][skipped:] == keys[1][: 500 - skipped]).all()


def test_a_generator_is_ready_again_behind_the_events_of_another_one(monkeypatch):
    did, commands = [], iter([SkipEvents((150, 20)), Stop()])
    monkeypatch.setattr(Topic, "require_partitions", lambda topic: None)
    monkeypatch.setattr(module, "say", did.append)
    monkeypatch.setattr(module, "producer_of", lambda topic: Broker())
    monkeypatch.setattr(KeyCountPartition, "take", lambda partition, times: did.append(len(times)))
    generate(config(1000), SimpleNamespace(next=lambda timeout_s: next(commands)))
    assert did == [Ready(), 150, 20, Ready(), LoadDone(0, 0, 0, 0.0)]


def test_a_load_without_an_end_goes_on_until_it_is_told_to_end():
    made = idle_generator(Broker(), rate=1000)
    with pytest.raises(BadInput, match="while the load has no end"):
        made.obey(EndLoad(), START_US)
    made.obey(Begin(START_US, None), START_US - 1000)

    def pass_until(us):
        for router in range(2):
            while not made.send(router, START_US + us):
                pass
        made.give_up(START_US + us)
        return made.events

    assert pass_until(999_999) == 1000
    assert not made.finished
    made.obey(SetRate(4000), START_US + 1_000_000)
    assert abs(pass_until(10_999_999) - 41_000) <= 1
    made.obey(EndLoad(), START_US + 11_000_000)
    assert abs(pass_until(60_000_000) - 41_000) <= 1
    assert made.finished
    said = made.done(START_US + 11_000_000)
    assert said.planned == said.events == made.events
    for command in (SetRate(5), EndLoad(), Begin(1, None), SkipEvents((1, 1))):
        with pytest.raises(BadInput):
            made.obey(command, START_US + 12_000_000)


@pytest.mark.parametrize("rate", [0, -1, math.nan])
def test_a_rate_that_is_none_is_refused_and_changes_nothing(rate):
    made = idle_generator(Broker(), rate=1000)
    made.obey(Begin(START_US, None), START_US)  # with an end any rate would be refused

    def due():
        return [made.schedule.due(router, START_US + 5_000_000) for router in made.routers]

    before = due()
    with pytest.raises(BadInput, match="a rate above 0"):
        made.obey(SetRate(rate), START_US + 1_000_000)
    assert due() == before


def test_a_pause_at_the_end_of_the_steps_of_a_load_without_an_end_sends_nothing():
    schedule = Schedule(START_US, None, 100, 1, [(1.0, 0.0)])
    assert schedule.due(0, START_US + 1_000_000) == schedule.due(0, START_US + 9_000_000) == 100
    schedule.change(START_US + 9_000_000, 50)
    assert schedule.times(0, 100, 102).tolist() == [START_US + 9_000_000, START_US + 9_020_000]


def test_a_generator_waits_until_there_is_room_on_the_way_to_kafka():
    fast = generator(broker := Broker(at_once=False), rate=2_000_000)

    def send_all():
        while not fast.send(0, START_US + 1_000_000):
            pass

    def on_the_way():
        return sum(len(value) for _, value in list(broker.values))

    sending = threading.Thread(target=send_all)
    sending.start()
    assert wait_until(lambda: on_the_way() >= ON_THE_WAY_BYTES, 60)
    sending.join(0.2)
    assert sending.is_alive()
    assert on_the_way() <= ON_THE_WAY_BYTES + MOST_BYTES
    broker.at_once = True
    sending.join(60)
    assert not sending.is_alive()
    assert fast.events == 1_000_000


def test_a_generator_that_waits_for_room_hears_that_kafka_does_not_take_it():
    fast = generator(broker := Broker(at_once=False), rate=2_000_000)
    broker.failure = KafkaError(KafkaError._MSG_TIMED_OUT)
    answers = threading.Timer(0.5, lambda: setattr(broker, "at_once", True))
    answers.start()
    with pytest.raises(ServiceUnavailable, match=r"Kafka at k:1 did not take a record of topic 't': .*timed out"):
        while not fast.send(0, START_US + 1_000_000):
            pass
    answers.join()


def test_what_kafka_has_not_acknowledged_when_all_is_to_be_there_is_told():
    made = generator(Broker(at_once=False), rate=1000)
    made.send(0, START_US + 100_000)
    with pytest.raises(ServiceUnavailable, match="1 records were not acknowledged within 60 s"):
        made.flush()


def test_every_frame_says_in_which_epoch_it_was_offered():
    for epoch in (1, 7):
        made = generator(broker := Broker(), rate=300_000, epoch=epoch)
        while not made.send(0, START_US + 1_000_000):
            pass
        assert len(broker.frames(0)) > 2 and {facts.epoch for _, facts in broker.frames(0)} == {epoch}


@pytest.fixture
def written(monkeypatch):
    """Metadata of what others have written, by partition and offset; ``asked`` has what was looked for."""
    facts, asked = {}, []

    def facts_of(topic, partition, offset, schema):
        asked.append((partition, offset))
        return facts[partition, offset]

    monkeypatch.setattr(Topic, "facts", facts_of)
    return SimpleNamespace(facts=facts, asked=asked)


def test_a_generator_ends_when_that_of_a_later_driver_writes_into_one_of_its_partitions(written):
    made = generator(broker := Broker(), rate=1000, epoch=2)
    for router in (0, 1, 0, 1):
        made.send(router, START_US + 100_000)
    made.require_newest()
    assert written.asked == [], "nobody else writes"
    written.facts[1, 2] = Facts(epoch=3)
    broker.ends[1] += 1
    made.send(0, START_US + 200_000)
    made.require_newest()
    made.send(1, START_US + 200_000)
    with pytest.raises(Deposed, match=r"another process offers events to topic 't' now \(epoch 3, ours was 2\)"):
        made.require_newest()
    assert written.asked == [(1, 2)]


def test_a_generator_goes_on_when_that_of_an_earlier_driver_wakes_and_writes(written):
    made = generator(broker := Broker(), rate=1000, epoch=2)
    made.send(0, START_US + 100_000)
    for facts in (Facts(5), Facts(epoch=2)):  # of the first epoch; and what we lost count of is ours
        written.facts[0, broker.ends[0]] = facts
        broker.ends[0] += 1
        made.send(0, START_US + 200_000)
        made.require_newest()
    assert written.asked == [(0, 1), (0, 3)]
    made.send(0, START_US + 300_000)
    made.require_newest()
    assert len(written.asked) == 2 and made.events > 100


def test_generators_that_share_a_source_offer_together_what_one_of_them_would():
    whole, brokers = Broker(), [Broker(), Broker()]
    shares = [generator(broker, rate=500, partitions=[number]) for number, broker in enumerate(brokers)]
    one = generator(whole, rate=500)
    for at_us in range(START_US, START_US + 1_000_001, 100_000):
        for router in range(2):
            one.send(router, at_us)
            shares[router].send(router, at_us)
    assert one.finished and all(each.finished for each in shares)
    told = [each.done(START_US + 1_000_000) for each in shares]
    assert [each.events for each in told] == [each.planned for each in told] == [250, 250]
    for router, broker in enumerate(brokers):
        assert [each for each, _ in broker.frames(router)] == [each for each, _ in whole.frames(router)]
        assert broker.frames(1 - router) == []


def test_a_source_that_is_silent_from_the_beginning_ticks_and_is_done_at_once():
    silent = generator(broker := Broker(), rate=0)
    assert silent.finished and silent.due == 0
    assert silent.send(0, START_US + 20_000)
    [(batch, meta)] = broker.frames(0)
    assert (batch.num_rows, meta.watermark) == (0, START_US + 20_000)


@pytest.mark.parametrize("name", ["micro", "nexmark", "windowcount"])
def test_the_same_seed_gives_the_same_events_whenever_the_load_begins(name):
    workload = workloads.get(name)(seed=4)
    [source] = workload.sources

    def offered(start_us):
        """By router, with times since the load began."""
        made = idle_generator(broker := Broker(), 1000, workload=name, parameters={"seed": 4})
        made.obey(Begin(start_us, 3), start_us)
        for router in made.routers:
            assert made.send(router, start_us + 3_000_000)
        parts = [[], []]
        for router, value in broker.values:
            batch, _ = decode(value, source.schema)
            parts[router].append(source.moved(batch, -start_us))
        return [pa.Table.from_batches(each) for each in parts]

    made = offered(START_US)
    assert [table.num_rows for table in made] == [1500, 1500]
    assert made == offered(START_US + 1_234_567)
    schedule = Schedule(0, 3, 1000, 2)
    drawn = [source.partition(router).take(schedule.times(router, 0, 1500)) for router in range(2)]
    assert made == [pa.Table.from_batches([batch]) for batch in drawn], "what a file of these events has"


def test_a_generator_offers_the_events_of_a_file_as_it_does_those_that_it_draws(tmp_path):
    """Also one of several that share a source, and behind what another one has offered."""
    workload, path = KeyCount(**PARAMETERS), tmp_path / "events.parquet"
    [source] = workload.sources
    with event_writer(path, workload, {"events": 2}) as out:
        for number in range(2):
            out.write("events", number, source.partition(number).take(np.arange(600)))
    for more in ({}, {"partitions": [1]}, {"skip": (70, 80)}, {"partitions": [1], "skip": (50,)}):
        sent = []
        for events in ("", str(path)):
            broker = Broker()
            made = generator(broker, rate=1000, events=events, **more)
            for frame_us in (START_US + 300_000, START_US + 1_000_000):
                for router in made.routers:
                    assert made.send(router, frame_us)
            assert made.finished and made.events == 500 * len(made.routers)
            sent.append(broker.values)
        drawn, replayed = sent
        assert replayed == drawn and drawn


@pytest.mark.parametrize("routers", [1, 2, 3])
@pytest.mark.parametrize(
    ("seconds", "rate", "steps"),
    [
        pytest.param(60, 0.0, [(30.0, 500.0)], id="and later has a rate"),
        pytest.param(60, 2000.0, [(0.0, 0.0), (30.0, 500.0)], id="by a step at its beginning"),
        pytest.param(None, 0.0, [], id="without an end"),
    ],
)
def test_a_load_that_begins_with_a_pause_offers_nothing_in_it(seconds, rate, steps, routers):
    schedule = Schedule(START_US, seconds, rate, routers, steps)
    pause_us = [START_US, START_US + 1, START_US + 1_000_000, START_US + 29_999_999]
    assert [schedule.due(router, at_us) for at_us in pause_us for router in range(routers)] == [0] * 4 * routers
    if steps:
        assert schedule.due(0, START_US + 30_000_000) == 1, "the first event comes behind the pause"
        assert schedule.times(0, 0, 1).tolist() == [START_US + 30_000_000]
    else:
        schedule.change(START_US + 2_000_000, 500)
        assert schedule.times(0, 0, 1).tolist() == [START_US + 2_000_000]
        assert schedule.due(0, START_US + 2_000_001) == 1
        schedule.end(START_US + 2_000_000)
        assert schedule.total == [0] * routers
