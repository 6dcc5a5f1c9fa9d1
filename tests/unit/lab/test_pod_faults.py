"""Faults of what is in pods: which pod is deleted, that its return is waited for, and where nothing may be."""

import dataclasses
from unittest.mock import Mock, call

import pytest

from keyshift.endpoints import Endpoints
from keyshift.lab import pod_faults
from keyshift.lab.pod_faults import PodFaults
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.place.pods import ServicePod
from keyshift.place.profile import SparkProfile
from keyshift.wire.faults import parse

SPARK = SparkProfile(master="k8s://https://api", namespace="lab")
ONE = Endpoints("ks-kafka:9092", "ks-zookeeper:2181", "s3.example:443", access_key="a", secret_key="s")
THREE = dataclasses.replace(
    ONE, kafka=",".join(f"ks-kafka-{number}.ks-kafka-nodes.lab.svc:9092" for number in range(3))
)


class Pods:
    """``found``: whether each is ready, and keeps its data. One that is deleted is back after some looks."""

    def __init__(self, found):
        self.found, self.deleted, self.looks, self.back = found, [], 0, True

    def of_service(self, name):
        if name not in self.found:
            return None
        ready, keeps = self.found[name]
        self.looks += name in self.deleted
        again = self.back and self.looks > 3
        return ServicePod(name, "new" if again else "old", ready and (again or name not in self.deleted), keeps)

    def delete(self, name):
        self.deleted.append(name)


@pytest.fixture
def made(monkeypatch):
    """Faults in a cluster with these pods; ``notes`` of them."""
    monkeypatch.setattr(pod_faults, "LOOK_S", 0.001)
    monkeypatch.setattr(pod_faults, "BACK_S", 60.0)

    def make(endpoints, found):
        pods, notes, executors = Pods(found), [], Mock()
        monkeypatch.setattr(pod_faults, "Pods", lambda spark: pods)
        return PodFaults(endpoints, SPARK, executors, notes.append), pods, notes, executors

    return make


def hit(faults, text, *host):
    [fault] = parse(text)
    faults.require(fault)
    faults.hit(fault, *host)
    faults.close()
    assert not faults.away


DELETES = "restart of kafka deletes pod ks-kafka-0"


@pytest.mark.parametrize(
    ("ready", "back", "told"),
    [
        (True, True, [DELETES]),
        (True, False, [DELETES, "restart of kafka: pod ks-kafka-0 is not ready again within 0.1 s"]),
        (False, True, ["restart of kafka: none of its pods is ready, so none was deleted"]),
    ],
    ids=["another one is ready", "none comes back", "it is not ready"],
)
def test_the_pod_of_a_service_is_deleted_if_it_is_ready_and_another_one_is_waited_for(
    made, ready, back, told, monkeypatch
):
    faults, pods, notes, _ = made(ONE, {"ks-kafka-0": (ready, True)})
    pods.back = back
    if not back:
        monkeypatch.setattr(pod_faults, "BACK_S", 0.1)
    hit(faults, "restart:kafka@4")
    assert notes == told
    assert pods.deleted == ["ks-kafka-0"] * ready and (pods.looks > 3 * back) is ready


def test_of_several_nodes_the_first_that_is_ready_is_deleted_though_nothing_keeps_its_data(made):
    faults, pods, _, _ = made(THREE, {f"ks-kafka-{number}": (number > 0, False) for number in range(3)})
    hit(faults, "restart:kafka@4")
    assert pods.deleted == ["ks-kafka-1"]


@pytest.mark.parametrize(("service", "several"), [("zookeeper", ", or with global.nodes=3"), ("minio", "")])
def test_data_that_would_go_with_the_only_pod_of_a_service_is_not_lost(made, service, several):
    faults, _, _, _ = made(dataclasses.replace(ONE, minio="ks-minio:9000"), {f"ks-{service}-0": (True, False)})
    with pytest.raises(BadInput, match=rf"{service} is in its pod .*{service}\.persistence\.enabled=true{several}$"):
        faults.require(*parse(f"restart:{service}@4"))


@pytest.mark.parametrize(
    ("endpoints", "fault"),
    [
        (ONE, "restart:minio@4"),
        (ONE, "restart:kafka@4"),
        (dataclasses.replace(ONE, kafka="ks-kafka.other.svc:9092"), "restart:kafka@4"),
    ],
)
def test_services_elsewhere_are_left_alone(made, endpoints, fault):
    elsewhere = "ks-kafka-0" if "other" in endpoints.kafka else "ks-zookeeper-0"
    faults, _, _, _ = made(endpoints, {elsewhere: (True, True), "s3": (True, True)})
    with pytest.raises(BadInput, match=r"has no pod in namespace lab, and others are left alone$"):
        faults.require(*parse(fault))


def test_a_cluster_that_cannot_be_asked_leaves_a_note_in_place_of_the_fault(made, monkeypatch):
    away = Mock(side_effect=ServiceUnavailable("the API server cannot be reached"))
    faults, pods, notes, _ = made(ONE, {"ks-kafka-0": (True, True)})
    monkeypatch.setattr(pods, "of_service", away)
    assert not faults.allows(*parse("restart:kafka@switch"))
    assert notes == ["`restart:kafka@switch` was refused: the API server cannot be reached"] and not pods.deleted


def test_an_executor_is_deleted_by_its_application(made):
    faults, pods, notes, executors = made(ONE, {})
    hit(faults, "kill:executor@4", "10.0.0.7")
    assert executors.mock_calls == [call.delete_one("10.0.0.7")] and not pods.deleted and not notes
