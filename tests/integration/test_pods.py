"""Replicas whose executors are pods, by Spark's Kubernetes scheduler; a pod is a process of this machine."""

import sys

import pytest
import yaml

from keyshift.lab.run import Lab
from keyshift.place.profile import REPLICA_LABEL, SparkProfile
from keyshift.services.jars import jars
from pods_as_processes import pods_as_processes
from small_run import good, spec

REPLICATED = {"replicas": 2, "ordering": "live_robin", "frame_ms": 100.0, "heartbeat_ms": 100.0, "rate": 200.0}
# There is nobody to be listened to: Spark looks for itself.
CONF = {"spark.kubernetes.executor.enableApiWatcher": False, "spark.kubernetes.executor.apiPollingInterval": "500ms"}
TERM = {"topologyKey": "kubernetes.io/hostname", "mismatchLabelKeys": [REPLICA_LABEL]}
TERM |= {"labelSelector": {"matchLabels": {"app.kubernetes.io/component": "executor"}}}
WISHES = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": TERM}]}
SPEC = {"affinity": {"podAntiAffinity": WISHES}, "containers": [{"name": "executor"}]}
TEMPLATE = {"apiVersion": "v1", "kind": "Pod", "spec": SPEC}


@pytest.fixture
def made(stack, tmp_path, monkeypatch):
    """A lab whose Spark has executors in pods, and these."""
    work = tmp_path / "pods"
    work.mkdir()
    template = tmp_path / "executor.yaml"
    template.write_text(yaml.safe_dump(TEMPLATE))
    with pods_as_processes(work) as (address, pods):
        kubeconfig = tmp_path / "kubeconfig"
        context = {"name": "here", "context": {"cluster": "here", "user": "we", "namespace": "lab"}}
        known = {"clusters": [{"name": "here", "cluster": {"server": address}}], "contexts": [context]}
        users = {"users": [{"name": "we", "user": {}}], "current-context": "here"}
        kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **known, **users}))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        size = {"executors": 1, "cores": 4, "memory": "512m", "python": sys.executable, "conf": CONF}
        there = {"master": f"k8s://{address}", "namespace": "lab", "image": "keyshift:1", "driver_host": "127.0.0.1"}
        place = SparkProfile(**there, **size, pod_template=str(template))
        home = tmp_path / "home"
        home.mkdir()
        with Lab(stack, jars("spark"), home, cores=0, say=print, spark_profile=place) as lab:
            yield lab, pods


@pytest.mark.nightly("two minutes each; unit tests have what is deleted")
@pytest.mark.parametrize("fault", ["kill:replica@4", "kill:executor@4"])
def test_replicas_have_executors_of_their_own_and_one_that_loses_them_comes_back_with_others(made, fault):
    lab, pods = made
    manifest = good(lab.run(spec(fault=fault, seconds=8.0, **REPLICATED)))
    assert manifest.verdict.others["diverged"] == 0
    labels = [pod["metadata"]["labels"] for pod in pods.made.values()]
    assert {each[REPLICA_LABEL] for each in labels} == {"0", "1"}
    of_each = {number: [each for each in labels if each[REPLICA_LABEL] == number] for number in "01"}
    assert len(of_each["1"]) == 1
    assert len({each["spark-app-selector"] for each in of_each["0"]}) == 2, "the one that came back is another Spark"
    assert any("replica 0 died" in note and "1 of 2 went on" in note for note in manifest.notes)
    assert any("replica 0 was full again" in note for note in manifest.notes)
    term = next(iter(pods.made.values()))["spec"]["affinity"]["podAntiAffinity"]
    (wish,) = term["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["podAffinityTerm"]["mismatchLabelKeys"] == [REPLICA_LABEL], "as the template has it"
    assert {*pods.made} == {*pods.deleted}
