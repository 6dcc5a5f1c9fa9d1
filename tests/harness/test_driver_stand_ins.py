"""What stands in for the processes, Kafka and the disk of a driver does what the runs need of it."""

import inspect
import re
import threading

import driver_services
import memory_kafka
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from nodes import Session
from places import CALLS, DriverDied, Fates, Fault, Place, at, here, threads_inherit

from keyshift.traffic.process import JsonProcess
from keyshift.wire.coordination import Coordination


def place_of(*faults):
    befell = []
    place = Place("one", Fates(list(faults)), befell.append)
    place.befell = befell
    return place


def call(place, name="minio put", done=None):
    with place.calling(name, lambda: OSError("injected")):
        if done is not None:
            done.append(name)


@pytest.mark.parametrize("after", [False, True])
def test_a_call_fails_before_or_after_it_was_carried_out(after):
    place, done = place_of(Fault("fail", "minio put", 1, after)), []
    call(place, "minio put", done)
    call(place, "minio get", done)
    with pytest.raises(OSError, match="injected"):
        call(place, "minio put", done)
    call(place, "minio put", done)
    assert done.count("minio put") == (3 if after else 2)


def test_a_service_that_is_away_fails_whatever_is_asked_of_it_and_no_other_does():
    place = place_of(Fault("fail", "minio put", 0, seconds=60.0))
    for name in ("minio put", "minio get"):
        with pytest.raises(OSError):
            call(place, name)
    call(place, "kafka look")


def test_what_befalls_all_of_a_driver_is_told():
    place = place_of(Fault("die", "minio put", 0))
    call(place)
    assert [fault.does for fault in place.befell] == ["die"]


def test_a_place_that_is_paused_goes_on_when_it_wakes_and_one_that_is_dead_never_does():
    place, done = place_of(), []
    place.pause()
    thread = threading.Thread(target=call, args=(place, "minio put", done), daemon=True)
    thread.start()
    thread.join(0.1)
    assert not done
    place.wake()
    thread.join(60)
    assert done == ["minio put"]
    place.kill()
    with pytest.raises(DriverDied):
        call(place)


def test_only_the_main_thread_is_interrupted():
    place = place_of()
    place.main, place.interrupted = threading.Thread(), True
    call(place)
    place.main = threading.current_thread()
    with pytest.raises(KeyboardInterrupt):
        call(place)
    call(place)


def test_a_thread_is_of_the_place_of_who_starts_it_and_ends_quietly_with_it():
    place, seen = place_of(), []

    def act():
        seen.append(here())
        inner = threading.Thread(target=lambda: seen.append(here()))
        inner.start()
        inner.join(60)
        place.kill()
        call(place)

    with threads_inherit(), at(place):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(60)
    assert seen == [place, place] and here() is None
    assert len(place.threads) == 2 and not any(thread.is_alive() for thread in place.threads)


@pytest.mark.parametrize(
    ("stand_in", "real"),
    [
        (memory_kafka.Admin, KafkaAdminClient),
        (memory_kafka.Consumer, KafkaConsumer),
        (memory_kafka.Producer, Producer),
        (driver_services.DrivenSession, Coordination),
        (driver_services.DrivenSession, Session),
    ],
)
def test_a_stand_in_has_only_methods_of_the_real_one(stand_in, real):
    named = {name for name, _ in inspect.getmembers(stand_in, inspect.isfunction) if not name.startswith("_")}
    its_own = {"expire", "lose", "poke"} if real is Coordination else set()
    assert {name for name in named - its_own if not hasattr(real, name)} == set()


def test_a_helper_has_the_methods_of_the_process_that_it_stands_in_for():
    from driver_world import Helper

    named = {name for name, _ in inspect.getmembers(JsonProcess, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in named - {"report"} if not hasattr(Helper, name)} == set()


def test_topics_keep_what_was_sent_with_its_offset_until_they_are_deleted():
    broker, where = memory_kafka.Broker(), TopicPartition("events", 1)
    with at(place_of(Fault("fail", "kafka send", 2))):
        admin, producer = memory_kafka.Admin(broker), memory_kafka.Producer(broker)
        admin.create_topics({"events": {"num_partitions": 2}}, timeout_ms=1, wait_for_metadata=True)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({"events": {"num_partitions": 2}}, timeout_ms=1, wait_for_metadata=True)
        came = []
        for value in (b"a", b"b", b"c"):
            producer.produce("events", value, 1, lambda error, message: came.append(error or message.offset()))
        assert came[:2] == [0, 1] and "KafkaTimeoutError" in came[2].str()
        consumer = memory_kafka.Consumer(broker)
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        assert consumer.end_offsets([where]) == {where: 2} and consumer.beginning_offsets([where]) == {where: 0}
        assert [record.value for record in consumer.poll(timeout_ms=100)[where]] == [b"a", b"b"]
        assert consumer.position(where) == 2 and consumer.poll(timeout_ms=10) == {}
        admin.delete_topics(["events"], timeout_ms=1)
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topics(["events"])
    assert broker.archive().topic("events").record(1, 0).value == b"a"
    broker.deleted["events"].cut([0, 1])
    assert [*map(len, broker.deleted["events"].partitions)] == [0, 1]
    assert broker.deleted["events"].append(1, b"d") == 1


def test_each_kind_of_call_that_a_fault_may_hit_is_made_somewhere():
    import driver_stand_ins

    services = {
        "zookeeper": [driver_services.DrivenSession],
        "minio": [driver_services.Minio],
        "kafka": [memory_kafka, driver_services.DriverEngine],
        "disk": [driver_stand_ins],
    }

    def is_made(call):
        service, what = call.split()
        made = rf'(_called|calling|_at_disk)\(.*"({service} )?{what}"(?!, ")'  # before another text it is a method
        return any(re.search(made, inspect.getsource(where)) for where in services[service])

    never = ["zookeeper send", "zookeeper end_epoch", "minio end", "kafka end", "disk read"]
    assert [call for call in [*CALLS, *never] if not is_made(call)] == never
