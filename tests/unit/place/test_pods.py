"""What is said of executors that do not come; what a real cluster says is seen in tests/cluster."""

from types import SimpleNamespace as Thing

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from keyshift import waiting
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.place import pods
from keyshift.place.profile import SparkProfile
from waits import Clock

SPARK = SparkProfile(master="k8s://https://127.0.0.1:1", namespace="lab", image="keyshift:1", executors=2)


def pod(name: str, **status: object) -> Thing:
    status = Thing(**{"container_statuses": None, "conditions": None, "pod_ip": None} | status)
    return Thing(metadata=Thing(name=name, labels=None), status=status)


def not_started(reason: str) -> list[Thing]:
    return [Thing(state=Thing(waiting=Thing(reason=reason, message=f"{reason} it is"), terminated=None))]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only in sleep."""
    clock = Clock()
    for module in (pods, waiting):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def asking(monkeypatch):
    """Makes what asks an API."""
    monkeypatch.setattr(config, "load_incluster_config", lambda: None)

    def make(api, kind=pods.Pods, *more):
        monkeypatch.setattr(client, "CoreV1Api", lambda _: api)
        return kind(SPARK, *more)

    return make


@pytest.fixture
def cluster(asking):
    """A cluster that has the pods of a list."""
    found: list[Thing] = []
    return asking(Thing(list_namespaced_pod=lambda *_, **__: Thing(items=found))), found


UNSCHEDULED = pod("exec-1", conditions=[Thing(type="PodScheduled", status="False", reason="Full", message="no CPU")])


def test_executors_that_come_are_waited_for_and_progress_is_told(cluster, clock):
    made, found = cluster
    found.append(UNSCHEDULED)
    said = []
    made.await_executors("app", lambda: min(2, int(clock.now // 20)), said.append)
    assert said[0] == "executors: 0 of 2 after 10 s; Full: no CPU"
    assert "1 of 2" in said[-1]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"])
def test_a_pod_that_cannot_start_is_quoted_after_some_seconds(cluster, clock, reason):
    made, found = cluster
    found.append(pod("exec-1", container_statuses=not_started(reason)))
    with pytest.raises(ServiceUnavailable, match=f"executor pod exec-1 does not start: {reason}: {reason} it is"):
        made.await_executors("app", lambda: 0, lambda line: None)
    assert clock.now < 60


HOW = Thing(exit_code=1, reason="Error", message=None)
ENDED = {"container_statuses": [Thing(state=Thing(waiting=None, terminated=HOW))]}


def ended(name: str) -> Thing:
    return pod(name, **ENDED)


def test_an_executor_that_ended_is_quoted_with_its_exit_code(cluster, clock):
    made, found = cluster
    found.append(ended("exec-1"))
    with pytest.raises(ServiceUnavailable, match=r"ended with exit code 1 \(Error\)"):
        made.await_executors("app", lambda: 0, lambda line: None)


def test_a_pod_that_is_kept_after_its_end_is_no_trouble_while_another_one_starts(asking, clock):
    """As with spark.kubernetes.executor.deleteOnTermination=false; the label is Spark's, when it has seen the end."""
    kept = ended("exec-1")
    kept.metadata.labels = {"spark-exec-inactive": "true"}
    made = asking(Api(kept, pod("exec-2", container_statuses=not_started("ContainerCreating"))))
    made.await_executors("app", lambda: 2 * (clock.now > 100), lambda line: None)


def test_executors_that_end_one_after_the_other_are_given_up_long_before_time_is_up(cluster, monkeypatch, clock):
    """Spark puts another one in the place of each, for ever."""
    made, _ = cluster
    monkeypatch.setattr(made, "executors", lambda _: {(name := f"exec-{clock.now // 5:g}"): ended(name)})
    with pytest.raises(ServiceUnavailable, match=r"5 executor pods did not start; exec-4: it ended with exit code 1"):
        made.await_executors("app", lambda: 0, lambda line: None)
    assert clock.now < 60


def test_executors_that_never_come_are_given_up_with_the_last_word_of_a_pod(cluster, clock):
    made, found = cluster
    found.append(UNSCHEDULED)
    with pytest.raises(ServiceUnavailable, match="0 of 2 executors came within 300 s: Full: no CPU"):
        made.await_executors("app", lambda: 0, lambda line: None)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (1, "1 of 2 pods were made; a quota or admission rule of namespace lab may refuse more"),
        (2, "2 of 2 pods were made"),
    ],
)
def test_of_executors_that_say_nothing_it_is_told_how_many_were_made(asking, clock, there, told):
    """All that are there run; what the first one said while it started is no reason."""

    def found(*_, **__):
        starting = {"container_statuses": not_started("ContainerCreating")} if clock.now < 5 else {}
        return Thing(items=[pod(f"exec-{number}", **starting) for number in range(there)])

    made = asking(Thing(list_namespaced_pod=found))
    with pytest.raises(ServiceUnavailable, match=f"1 of 2 executors came within 300 s: {told}$"):
        made.await_executors("app", lambda: 1, lambda line: None)


@pytest.mark.parametrize("error", [HTTPError("timed out"), ApiException(status=503, reason="Busy")])
def test_an_api_server_that_does_not_answer_is_asked_again_until_time_is_up(asking, clock, error):
    said = []

    def silent(*_, **__):
        raise error

    made = asking(Thing(list_namespaced_pod=silent))
    made.await_executors("app", lambda: 2 * (clock.now > 15), said.append)
    [line] = said
    assert line.startswith("executors: 0 of 2 after 10 s; the Kubernetes API server https://127.0.0.1:1 ")
    with pytest.raises(ServiceUnavailable, match="0 of 2 executors came within 300 s: the Kubernetes API server"):
        made.await_executors("app", lambda: 0, said.append)


def test_an_api_server_that_refuses_is_quoted(asking):
    def refuse(*_, **__):
        raise ApiException(status=401, reason="Unauthorized")

    made = asking(Thing(list_namespaced_pod=refuse))
    with pytest.raises(ServiceUnavailable, match=r"said 401 Unauthorized \(namespace lab\)"):
        made.await_executors("app", lambda: 0, lambda line: None)


def test_an_api_server_that_is_not_there_is_named(cluster):
    made, _ = cluster
    with pytest.raises(ServiceUnavailable, match=r"https://127.0.0.1:1 cannot be reached.*is spark.master"):
        made.require_rights()


def test_without_a_cluster_the_missing_credentials_are_named(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)  # which each pod has
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(BadInput, match="no kubeconfig gives credentials"):
        pods.Pods(SPARK)


class Api:
    """The pods of a namespace, until they are deleted; ``slow``: so many looks later."""

    def __init__(self, *found, slow=0):
        self.found, self.slow, self.asked = {pod.metadata.name: pod for pod in found}, slow, []

    def list_namespaced_pod(self, namespace, label_selector, _request_timeout):
        ours = "spark-app-selector=app,spark-role=executor,spark-exec-inactive!=true"
        assert (namespace, label_selector) == ("lab", ours)
        gone = [name for name, _ in self.asked]
        if self.slow:
            self.slow -= bool(gone)
            gone = []
        left = [pod for name, pod in self.found.items() if name not in gone]
        return Thing(items=[pod for pod in left if (pod.metadata.labels or {}).get("spark-exec-inactive") != "true"])

    def delete_namespaced_pod(self, name, namespace, grace_period_seconds, _request_timeout):
        if name not in self.found:
            raise ApiException(status=404, reason="Not Found")
        self.asked.append((name, grace_period_seconds))

    def read_namespaced_pod(self, name, namespace, _request_timeout):
        if name not in self.found:
            raise ApiException(status=404, reason="Not Found")
        return self.found[name]


def executor(number: int, **status: object) -> Thing:
    made = pod(f"exec-{number}", **status)
    made.metadata.labels = {"spark-exec-id": str(number)}
    return made


@pytest.fixture
def executors(asking):
    return lambda api: asking(api, pods.ExecutorPods, "app")


def test_all_executors_of_an_application_are_deleted_and_those_that_do_not_go_are_told_of(executors, clock):
    api = Api(executor(1), executor(2), slow=3)
    executors(api).delete()
    assert api.asked == [("exec-1", 1), ("exec-2", 1)] and api.slow == 0
    with pytest.raises(ServiceUnavailable, match="executors of app were deleted, and are there after 30 s"):
        executors(Api(executor(1), slow=10**9)).delete()


@pytest.mark.parametrize(("host", "deleted"), [("10.0.0.10", 10), ("10.0.0.2", 9), ("", 9)])
def test_one_executor_that_is_deleted_is_that_of_the_host_or_else_the_first_one_that_runs(executors, host, deleted):
    running = [executor(number, pod_ip=f"10.0.0.{number}") for number in (10, 9)]
    api = Api(*running, executor(2, pod_ip="10.0.0.2", **ENDED))
    executors(api).delete_one(host)
    assert api.asked == [(f"exec-{deleted}", 1)]
    with pytest.raises(ServiceUnavailable, match="app has no executor that runs"):
        executors(Api()).delete_one(host)


@pytest.mark.parametrize(
    ("going", "ready", "claim", "told"),
    [
        (None, "True", None, (True, False)),
        (None, "False", "data", (False, True)),
        ("now", "True", None, (False, False)),
    ],
)
def test_of_a_service_it_is_told_whether_it_is_ready_and_keeps_its_data(asking, going, ready, claim, told):
    kafka = pod("kafka-0", conditions=[Thing(type="Ready", status=ready)])
    kafka.metadata = Thing(name="kafka-0", uid="u", deletion_timestamp=going)
    kafka.spec = Thing(volumes=[Thing(persistent_volume_claim=claim)])
    made = asking(Api(kafka))
    assert made.of_service("kafka-0") == ("kafka-0", "u", *told)
    assert made.of_service("kafka-1") is None
    made.delete("kafka-1")  # it has gone meanwhile
