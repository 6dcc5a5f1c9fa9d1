"""What holds for every chart with every set of values: it lints, fits the Kubernetes schemas, and gives little away."""

import ast
import json
import re
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import latest_version
from rendering import CHARTS, INSTALLABLE, MINIMUM, RELEASE, containers, every_case, kinds, lint, manifests, pods

from keyshift.place.image import image_tag

CUSTOM = {"PodMonitor", "ServiceMonitor"}  # of the Prometheus operator: no schema of Kubernetes has it


@every_case
def test_it_lints_without_a_warning(case):
    code, output, _ = lint(*case)
    assert code == 0, output
    assert "WARNING" not in output


@cache
def validated(manifest: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


@every_case
@pytest.mark.parametrize("version", [MINIMUM, latest_version()])
def test_what_it_installs_fits_the_schemas_of_kubernetes(case, version):
    found = manifests(*case)
    templates = [pod for name, pod in pods(found) if name == "executor"]
    for manifest in [*found, *templates]:
        if manifest["kind"] not in CUSTOM:
            validated(json.dumps(manifest, sort_keys=True), version)
    assert found


@every_case
def test_every_pod_runs_without_privileges_on_a_read_only_root(case):
    found = list(pods(manifests(*case)))
    assert found
    for name, pod in found:
        security = pod["spec"]["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 1000, 1000), name
        assert security["fsGroup"] == 1000, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert not pod["spec"].get(key), name
        assert all(set(volume) & {"emptyDir", "configMap", "secret"} for volume in pod["spec"]["volumes"]), name
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert not security.get("privileged"), name
            places = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert "/var/lib/keyshift" in places, name


@every_case
def test_only_drivers_and_the_test_of_their_rights_get_a_token_of_the_cluster(case):
    found = manifests(*case)
    for name, pod in pods(found):
        driver = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "driver" or name.endswith("-rights")
        assert pod["spec"]["automountServiceAccountToken"] is driver, name
    for account in kinds(found, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False


@every_case
def test_its_rights_are_pods_of_its_own_namespace_and_nothing_else(case):
    found = manifests(*case)
    assert not [m["kind"] for m in found if m["kind"].startswith("Cluster")]
    for role in kinds(found, "Role").values():
        (rule,) = role["rules"]
        assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
        assert set(rule["verbs"]) == {"create", "get", "list", "watch", "patch", "delete", "deletecollection"}
    for binding in kinds(found, "RoleBinding").values():
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["roleRef"]["name"] in kinds(found, "Role")
        assert [subject["kind"] for subject in binding["subjects"]] == ["ServiceAccount"]
    assert all("namespace" not in m["metadata"] for m in found), "installs into another namespace"


@every_case
def test_every_container_that_we_start_has_a_pinned_image_and_what_it_needs_and_every_service_says_how_it_is(case):
    for name, pod in pods(manifests(*case)):
        for container in containers(pod):
            if name != "executor":  # Spark sets all of it, the image from the profile
                assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+-\w+(@sha256:[0-9a-f]{64})?", container["image"]), name
                assert container["imagePullPolicy"] in ("IfNotPresent", "Always"), name
                assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
                assert "memory" in container["resources"]["limits"], name
        if name.startswith("StatefulSet/"):
            (container,) = pod["spec"]["containers"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container[probe]:  # of a ZooKeeper server that has to find others
                    assert (container["name"], probe) == ("zookeeper", "readinessProbe")
                    continue
                way = container[probe].get("httpGet") or container[probe]["tcpSocket"]
                assert way["port"] in {port["name"] for port in container["ports"]}, (name, probe)
            assert ("httpGet" in container["readinessProbe"]) is (container["name"] in ("minio", "jupyter"))


@every_case
def test_everything_has_the_labels_that_tools_know(case):
    for manifest in manifests(*case):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE, manifest["metadata"]["name"]
        assert labels["app.kubernetes.io/part-of"] == "keyshift", manifest["metadata"]["name"]
        assert labels["app.kubernetes.io/name"], manifest["metadata"]["name"]
    for name, pod in pods(manifests(*case)):  # else a network policy would shut it out
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "keyshift", name


@every_case
def test_selectors_find_the_pods_they_mean_and_no_helpers(case):
    found = manifests(*case)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(found)}
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet"):
        for name, manifest in kinds(found, kind).items():
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            chosen = [pod for pod, has in labels.items() if wanted.items() <= has.items()]
            assert len(chosen) == 1, (kind, name, chosen)
            assert chosen[0].startswith("StatefulSet/"), (kind, name, chosen)


@pytest.mark.parametrize("chart", ["common", *INSTALLABLE])
def test_it_has_the_tag_of_the_image_and_the_kubernetes_of_the_schemas_and_leaves_out_the_values_for_tests(chart):
    declared = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    tag = image_tag(CHARTS.parent)
    assert declared["appVersion"] == tag, f'write appVersion: "{tag}" into charts/{chart}/Chart.yaml (make lock does)'
    assert declared["kubeVersion"] == f">={MINIMUM}-0"
    assert chart == "common" or "ci/" in (CHARTS / chart / ".helmignore").read_text().splitlines()


def open_objects(schema: Any, path: str = "") -> list[str]:
    """Where a schema admits keys that nobody declared."""
    found = []
    if isinstance(schema, dict):
        closed = schema.get("additionalProperties") is False
        if schema.get("type") == "object" and not closed and not isinstance(schema.get("additionalProperties"), dict):
            found.append(path)
        for key, value in schema.items():
            found += open_objects(value, f"{path}/{key}")
    return found


@pytest.mark.parametrize("chart", ["common", *INSTALLABLE])
def test_its_schema_refuses_keys_that_nobody_declared_and_declares_what_its_values_list(chart):
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    # The sections of the umbrella are closed by the schemas of the charts they are for.
    sections = [f"/properties/{name}" for name in INSTALLABLE[:-1]] if chart == "keyshift" else []
    assert open_objects(schema) == sections
    if not sections and chart != "common":
        values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
        assert set(schema["properties"]) - {"global", "common"} == set(values)


@pytest.mark.parametrize("script", sorted(CHARTS.glob("*/files/*.py")), ids=lambda path: path.parents[1].name)
def test_scripts_of_test_pods_are_python_and_arrive_whole(script):
    text = script.read_text()
    ast.parse(text)
    chart = script.parents[1].name
    (arguments,) = [
        pod["spec"]["containers"][0]["args"]
        for name, pod in pods(manifests("keyshift"))
        if name.startswith(f"Pod/{RELEASE}-{chart}-test-")
    ]
    assert arguments == ["python", "-c", text]
    assert "$(" not in text, "Kubernetes would take it for a variable"
