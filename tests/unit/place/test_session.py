"""A session in its place: which master it has, and which executors it waits for; without Spark."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import config
from py4j.protocol import Py4JError

from keyshift.lab.ending import Unwanted
from keyshift.model.errors import ServiceUnavailable
from keyshift.place import pods, session
from keyshift.place.profile import SparkProfile

OF_PODS = {"master": "k8s://https://api", "image": "keyshift:1", "namespace": "lab"}
PODS = SparkProfile(**OF_PODS, executors=2, driver_host="10.0.0.7")


@pytest.fixture
def placed(monkeypatch):
    """A session in a place. ``members``: how many executors and drivers there are at each look. ``given``:
    what Spark was started with; ``said``: progress.
    """
    monkeypatch.setattr(config, "load_incluster_config", lambda: None)

    def make(place, members=(), more=None):
        left, given, said = list(members), [], []

        def size():
            if not left:
                raise Py4JError("gone")
            return left.pop(0) if len(left) > 1 else left[0]

        spark = SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=size))
        context = SimpleNamespace(applicationId="spark-7", _jsc=SimpleNamespace(sc=lambda: spark))
        made = SimpleNamespace(sparkContext=context)
        monkeypatch.setattr(session, "session", lambda *told: given.append(told) or made)
        made = session.PlacedSpark(place, 5, [Path("a.jar")], Path("work"), Path("log"), said.append, more)
        return SimpleNamespace(spark=made, given=given[0], said=said)

    return make


@pytest.mark.parametrize(
    ("place", "master"),
    [
        (SparkProfile(), "local[5]"),
        (SparkProfile(master="local-cluster", executors=2), "local-cluster[2,3,1024]"),
        (SparkProfile(master="local-cluster", executors=7), "local-cluster[5,1,1024]"),  # each task is alone in one
    ],
)
def test_on_this_machine_there_are_cores_for_all_tasks(placed, place, master):
    made = placed(place, [1, 6], {"a": "b"})
    assert made.given[:4] == (master, [Path("a.jar")], Path("work"), Path("log"))
    assert (made.given[4], made.said) == (place.options() | {"a": "b"}, [f"starting Spark, {master}"])
    made.spark.await_executors()


def test_executors_that_are_processes_and_do_not_come_are_counted(placed, monkeypatch):
    monkeypatch.setattr(session, "START_S", 0.2)
    made = placed(SparkProfile(master="local-cluster", executors=2), [2])
    with pytest.raises(ServiceUnavailable, match=r"1 of 2 executors came within 0\.2 s; Spark's log is log"):
        made.spark.await_executors()


@pytest.mark.parametrize("place", [PODS, SparkProfile(master="local-cluster", executors=2)])
def test_executors_that_nobody_wants_any_more_are_not_waited_for(placed, monkeypatch, place):
    def unwanted():
        raise Unwanted("the job was given up")

    monkeypatch.setattr(pods.Pods, "require_rights", lambda self: None)
    with pytest.raises(Unwanted):
        placed(place, [2]).spark.await_executors(unwanted)


def test_a_spark_that_ends_while_its_executors_start_is_told_of(placed):
    made = placed(SparkProfile(master="local-cluster", executors=2))
    with pytest.raises(ServiceUnavailable, match="Spark has ended while its executors started; its log is log"):
        made.spark.await_executors()


def test_pods_are_waited_for_by_their_application_if_we_may_have_some(placed, monkeypatch):
    asked = []
    monkeypatch.setattr(pods.Pods, "require_rights", lambda self: asked.append("rights"))
    await_ = lambda self, of, registered, say: asked.append((of, registered()))  # noqa: E731
    monkeypatch.setattr(pods.Pods, "await_executors", await_)
    made = placed(PODS, [3])
    assert made.given[0] == "k8s://https://api" and made.given[-1] == PODS.python
    assert asked == ["rights"]
    made.spark.await_executors()
    assert asked[1:] == [("spark-7", 2)]
