"""Each value does what it says, and nothing else does; wrong ones are refused by name."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from rendering import (
    CHARTS,
    MINIMUM,
    NAMESPACE,
    RELEASE,
    Manifest,
    call,
    containers,
    kinds,
    manifests,
    one,
    pods,
    profile_files,
    refusal,
    values_file,
)

from keyshift.control import batch_metrics as of_batches
from keyshift.control import metrics as of_jobs
from keyshift.lab import run_metrics as of_runs
from keyshift.place.profile import REPLICA_LABEL, Profile, ServicesProfile, SparkProfile, load_profile
from keyshift.redis_program import PASSWORD

KEEPING = ("kafka", "zookeeper", "minio")  # what they have on a disk
SERVICES = (*KEEPING, "redis")
APP_VERSION = yaml.safe_load((CHARTS / "keyshift" / "Chart.yaml").read_text())["appVersion"]
DRIVER_ENVIRONMENT = {"POD_IP": "10.0.0.7", "POD_NAME": "keyshift-lab-0", "POD_NAMESPACE": NAMESPACE}
DRIVER_ENVIRONMENT |= {"KEYSHIFT_ACCESS_KEY": "key", "KEYSHIFT_SECRET_KEY": "secret"}


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """What a driver in its pod makes of a profile."""

    def loaded(raw: dict[str, Any]) -> Profile:
        for name, value in DRIVER_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "profile.yaml").write_text(yaml.safe_dump(raw))
        return load_profile(str(tmp_path / "profile.yaml"))

    return loaded


def stateful(chart: str, case: str | None = None) -> Manifest:
    return one(manifests(chart, case), "StatefulSet", f"{RELEASE}-{chart}")


def environment(container: Manifest) -> dict[str, Any]:
    """Name -> value, or what it is taken from."""
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


def secret_key(name: str, key: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key}}


# --- all services


@pytest.mark.parametrize(
    ("chart", "arguments"),
    [
        ("kafka", ["kafka", "--advertise", f"{RELEASE}-kafka.{NAMESPACE}.svc", "--port", "9092", "--data", "/data"]),
        ("zookeeper", ["zookeeper", "--port", "2181", "--data", "/data"]),
        ("minio", ["minio", "--port", "9000", "--data", "/data"]),
        ("redis", ["redis", "--port", "6379", "--memory-mib", "1536"]),
    ],
)
def test_a_service_is_one_replica_of_our_image_told_what_to_be(chart, arguments):
    spec = stateful(chart)["spec"]
    assert spec["replicas"] == 1
    (container,) = spec["template"]["spec"]["containers"]
    assert (container["args"], container["image"]) == (arguments, f"keyshift:{APP_VERSION}")
    service = one(manifests(chart), "Service", spec["serviceName"])
    assert [port["port"] for port in service["spec"]["ports"]] == [int(arguments[arguments.index("--port") + 1])]


@pytest.mark.parametrize(("chart", "port", "among"), [("kafka", 9092, [9093]), ("zookeeper", 2181, [2182, 2183])])
def test_three_nodes_of_a_service_find_each_other_by_name_and_may_lose_one(chart, port, among):
    found = manifests("keyshift", "three")
    name = f"{RELEASE}-{chart}"
    spec = one(found, "StatefulSet", name)["spec"]
    assert (spec["replicas"], spec["serviceName"], spec["podManagementPolicy"]) == (3, f"{name}-nodes", "Parallel")
    headless = one(found, "Service", spec["serviceName"])["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert sorted(each["port"] for each in headless["ports"]) == sorted([port, *among])
    (container,) = spec["template"]["spec"]["containers"]
    hosts = [f"{name}-{n}.{name}-nodes.{NAMESPACE}.svc" for n in range(3)]
    assert container["args"] == [chart, "--port", str(port), "--data", "/data", "--nodes", ",".join(hosts)]
    assert profile_files(found)[0]["services"][chart] == ",".join(f"{host}:{port}" for host in hosts)
    assert one(found, "PodDisruptionBudget", name)["spec"]["minAvailable"] == 2
    policy = one(found, "NetworkPolicy", name)["spec"]
    (_, itself), labels = policy["ingress"], spec["selector"]["matchLabels"]
    assert itself["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert [each["port"] for each in itself["ports"]] == among
    affinity = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (apart,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    assert set(affinity) == {"preferredDuringSchedulingIgnoredDuringExecution"}


def test_one_node_of_each_is_the_default_and_what_cannot_have_more_does_not(loaded):
    usual, three = manifests("keyshift"), manifests("keyshift", "three")
    assert {m["spec"]["replicas"] for m in kinds(usual, "StatefulSet").values()} == {1}
    assert not [name for name in kinds(usual, "Service") if name.endswith("-nodes")]
    several = {name for name, each in kinds(three, "StatefulSet").items() if each["spec"]["replicas"] == 3}
    assert several == {f"{RELEASE}-kafka", f"{RELEASE}-zookeeper"}
    assert [loaded(profile_files(found)[0]).services.kafka_replication for found in (usual, three)] == [1, 3]
    external = manifests("keyshift", "external", "--set", "global.nodes=3", "--set", "lab.kafkaAccess.replication=2")
    services = profile_files(external)[0]["services"]
    assert (services["kafka"], services["kafka_replication"]) == ("strimzi-kafka-bootstrap:9092", 2)


@pytest.mark.parametrize("chart", KEEPING)
def test_data_is_in_the_pod_unless_it_shall_persist(chart):
    for case, persists in ((None, False), ("persistent", True)):
        spec = stateful(chart, case)["spec"]
        volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
        assert ("data" in volumes) is not persists
        claims = spec.get("volumeClaimTemplates", [])
        assert [claim["metadata"]["name"] for claim in claims] == (["data"] if persists else [])
        for claim in claims:
            assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
            assert claim["spec"]["storageClassName"] == "fast"
    assert volumes.keys() == {"home", "tmp"}


@pytest.mark.parametrize("chart", [*SERVICES, "lab"])
def test_policies_and_the_budget_are_there_unless_switched_off(chart):
    default = manifests("keyshift")
    for kind, name in (("NetworkPolicy", "driver" if chart == "lab" else chart), ("PodDisruptionBudget", chart)):
        assert f"{RELEASE}-{name}" in kinds(default, kind)
        assert not kinds(manifests(chart, "open"), kind)


@pytest.mark.parametrize("chart", SERVICES)
def test_a_service_lets_in_keyshift_and_whom_the_values_name_and_asks_only_for_names(chart):
    ours = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "keyshift"}}}
    for case, more in ((None, 0), ("placed", 2)):
        (policy,) = kinds(manifests(chart, case), "NetworkPolicy").values()
        (entry,) = policy["spec"]["ingress"]
        assert (entry["from"][0], len(entry["from"]), len(entry["ports"])) == (ours, 1 + more, 1)
        names, itself = policy["spec"]["egress"]
        assert {port["port"] for port in names["ports"]} == {53}
        assert itself["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == chart


@pytest.mark.parametrize("chart", SERVICES)
def test_a_pod_goes_where_the_values_say_with_the_image_they_say(chart):
    for name, pod in pods(manifests(chart, "placed")):
        spec = pod["spec"]
        assert spec["nodeSelector"] == {"keyshift/role": "services"}, name
        assert spec["tolerations"][0]["key"] == "keyshift/role", name
        assert spec["imagePullSecrets"] == [{"name": "registry"}], name
        (container,) = spec["containers"]
        assert container["image"].startswith("registry.example/lab/keyshift:0.1.0-abc@sha256:0123"), name
        assert container["imagePullPolicy"] == "Always", name
    for name, pod in pods(manifests(chart)):
        assert not {"nodeSelector", "tolerations", "imagePullSecrets"} & pod["spec"].keys(), name


# --- minio


def test_minio_gets_generated_credentials_or_those_of_an_existing_secret():
    for case, secret, user, password in (
        (None, f"{RELEASE}-minio", "access-key", "secret-key"),
        ("secret", "my-store", "user", "password"),
    ):
        found = manifests("minio", case)
        assert list(kinds(found, "Secret")) == ([f"{RELEASE}-minio"] if case is None else [])
        for _, pod in pods(found):  # the server and the test
            values = environment(pod["spec"]["containers"][0]).values()
            assert secret_key(secret, user) in values
            assert secret_key(secret, password) in values
    data = one(manifests("minio"), "Secret", f"{RELEASE}-minio")["data"]
    assert {key: len(value) > 15 for key, value in data.items()} == {"access-key": True, "secret-key": True}


def test_the_bucket_is_made_at_every_start():
    (container,) = stateful("minio", "secret")["spec"]["template"]["spec"]["containers"]
    assert container["lifecycle"]["postStart"]["exec"]["command"] == ["/opt/keyshift/entrypoint", "bucket"]
    env = environment(container)
    assert (env["KEYSHIFT_BUCKET"], env["KEYSHIFT_MINIO"]) == ("results-2026", "127.0.0.1:9000")
    assert env["KEYSHIFT_SECRET_KEY"] == "$(MINIO_ROOT_PASSWORD)"
    assert list(env).index("MINIO_ROOT_PASSWORD") < list(env).index("KEYSHIFT_SECRET_KEY"), "else it is not expanded"


def test_prometheus_is_told_where_to_scrape_minio_only_if_wanted():
    for case, annotated, monitored in ((None, 0, 0), ("metrics", 1, 0), ("servicemonitor", 1, 1)):
        found = manifests("minio", case)
        pod = one(found, "StatefulSet", f"{RELEASE}-minio")["spec"]["template"]
        assert ("prometheus.io/scrape" in pod["metadata"].get("annotations", {})) == annotated
        assert ("MINIO_PROMETHEUS_AUTH_TYPE" in environment(pod["spec"]["containers"][0])) == annotated
        assert len(kinds(found, "ServiceMonitor")) == monitored
    (monitor,) = kinds(found, "ServiceMonitor").values()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["interval"] == "15s"


# --- redis


def test_redis_gets_a_generated_password_or_that_of_an_existing_secret_and_has_no_disk():
    for case, secret, password, memory in (
        (None, f"{RELEASE}-redis", "password", "1536"),
        ("secret", "my-redis", "word", "512"),
    ):
        found = manifests("redis", case)
        assert list(kinds(found, "Secret")) == ([f"{RELEASE}-redis"] if case is None else [])
        for _, pod in pods(found):  # the server and the test
            assert environment(pod["spec"]["containers"][0])[PASSWORD] == secret_key(secret, password)
        spec = one(found, "StatefulSet", f"{RELEASE}-redis")["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert container["args"][-1] == memory
        assert {volume["name"] for volume in spec["template"]["spec"]["volumes"]} == {"home", "tmp"}
        assert "volumeClaimTemplates" not in spec
    data = one(manifests("redis"), "Secret", f"{RELEASE}-redis")["data"]
    assert {key: len(value) > 15 for key, value in data.items()} == {"password": True}
    (container,) = stateful("redis")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    assert int(container["args"][-1]) <= 0.75 * 2048, "it is full before the pod would be killed"


@pytest.mark.parametrize(
    ("chart", "case", "address", "password"),
    [
        ("keyshift", None, f"{RELEASE}-redis:6379", (f"{RELEASE}-redis", "password")),
        ("lab", "secured", "redis.example:6379", ("my-redis", "word")),
        ("lab", "placed", "redis.example:6379", None),
        ("lab", "batch", "", None),
    ],
)
def test_drivers_know_the_redis_server_and_its_password_if_there_is_one(chart, case, address, password):
    found = manifests(chart, case)
    assert profile_files(found)[0]["services"]["redis"] == address
    labels = {"app.kubernetes.io/component": "driver"}
    drivers = [pod for _, pod in pods(found) if labels.items() <= pod["metadata"]["labels"].items()]
    assert drivers
    for pod in drivers:
        assert environment(pod["spec"]["containers"][0]).get(PASSWORD) == (password and secret_key(*password))


# --- lab


def test_a_job_can_be_reached_from_other_pods_only_if_wanted_and_with_a_token(loaded):
    default, found = manifests("keyshift"), manifests("lab", "control")
    name = f"{RELEASE}-control"
    for kind in ("Service", "Secret", "ServiceMonitor"):
        assert name not in kinds(default, kind)
        assert name in kinds(found, kind)
    service, secret = one(found, "Service", name), one(found, "Secret", name)
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == {"control": 9100, "metrics": 8090}
    assert {key: len(value) > 15 for key, value in secret["data"].items()} == {"token": True}
    pod = one(found, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {"jupyter": 8888, "control": 9100, "metrics": 8090}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert container["args"] == ["keyshift", "lab", "--no-browser", "--ip=0.0.0.0", "--metrics=8090"]
    (alone,) = stateful("lab", "alone")["spec"]["template"]["spec"]["containers"]
    assert (alone["args"][0], [port["name"] for port in alone["ports"]]) == ("jupyter", ["jupyter"])
    assert environment(container)["KEYSHIFT_CONTROL_TOKEN"] == secret_key(name, "token")
    monitor = one(found, "ServiceMonitor", name)["spec"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    jupyter = one(found, "Service", f"{RELEASE}-lab")["metadata"]["labels"]
    assert not monitor["selector"]["matchLabels"].items() <= jupyter.items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == ["control", "metrics"]
    for endpoint in monitor["endpoints"]:
        assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
        assert endpoint["authorization"]["credentials"] == {"name": name, "key": "token"}
    driver = one(found, "NetworkPolicy", f"{RELEASE}-driver")["spec"]["ingress"]
    assert [port["port"] for port in driver[1]["ports"]] == [8888, 9100, 8090]
    raw, _ = profile_files(found)
    control = loaded(raw).control
    assert (control.listen, control.port) == ("10.0.0.7", 9100)


def test_a_batch_is_scraped_only_if_jobs_are_with_the_same_token_and_port():
    (alone,) = kinds(manifests("lab", "batch"), "Job").values()
    (container,) = alone["spec"]["template"]["spec"]["containers"]
    assert "KEYSHIFT_CONTROL_TOKEN" not in environment(container)
    assert "ports" not in container
    assert kinds(manifests("lab", "control"), "PodMonitor") == {}, "there is no batch"
    found = manifests("lab", "metrics")
    (job,) = kinds(found, "Job").values()
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][3:] == ["--metrics=9100"]
    assert environment(container)["KEYSHIFT_CONTROL_TOKEN"] == secret_key(f"{RELEASE}-control", "token")
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"control": 9100}
    monitor = one(found, "PodMonitor", f"{RELEASE}-batch")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    jupyter = one(found, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"]["metadata"]["labels"]
    assert not monitor["spec"]["selector"]["matchLabels"].items() <= jupyter.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("control", "/metrics", "15s")
    assert endpoint["authorization"]["credentials"] == {"name": f"{RELEASE}-control", "key": "token"}


def exported():
    """Names of all that a job, a batch and a run tell Prometheus, as its text has them."""
    source = "".join(Path(module.__file__).read_text() for module in (of_jobs, of_batches, of_runs))
    names = {*re.findall(r'"(keyshift_\w+)"', source), *(f"keyshift_{name}" for name, *_ in of_jobs.OF_A_SLOT)}
    names |= {f"keyshift_batch_{name}" for name in re.findall(r'_gauge\("(\w+)"', source)}
    return names | {f"{name}_{suffix}" for name in names for suffix in ("total", "bucket", "sum", "count")}


def test_grafana_gets_a_dashboard_only_if_wanted_of_metrics_that_there_are():
    name = f"{RELEASE}-dashboard"
    assert name not in kinds(manifests("keyshift"), "ConfigMap")
    found = one(manifests("lab", "metrics"), "ConfigMap", name)
    labels = found["metadata"]["labels"]
    assert (labels["grafana_dashboard"], labels["team"]) == ("1", "streams")
    panels = [panel for panel in json.loads(found["data"]["keyshift.json"])["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    shown = {panel["title"]: " ".join(target["expr"] for target in panel["targets"]) for panel in panels}
    used = {title: set(re.findall(r"\bkeyshift_\w+", text)) for title, text in shown.items()}
    assert all(used.values())
    assert set().union(*used.values()) <= exported()
    of_batches_shown = {name for names in used.values() for name in names if name.startswith("keyshift_batch_")}
    assert len(of_batches_shown) == 5, "all that a batch tells"
    of_runs_shown = {name for names in used.values() for name in names if name.startswith("keyshift_run_")}
    assert of_runs_shown == {f"keyshift_run_{what}" for what in ("offered_rate", "results_rate", "p99_seconds")}
    of_replicas = {name for name in set().union(*used.values()) if name.startswith("keyshift_replica_")}
    assert of_replicas == {f"keyshift_replica_{what}" for what in ("state", "lag_seconds", "deaths_total")}
    assert not {"keyshift_batch_nothing", "keyshift_lateny_seconds_bucket"} & exported()


def test_what_is_shown_of_jobs_names_the_pod_of_each_so_that_several_labs_are_told_apart():
    panels = json.loads((CHARTS / "lab" / "files" / "dashboard.json").read_text())["panels"]
    titles = [panel["title"] for panel in panels]
    of_jobs = [target for panel in panels[titles.index("Jobs") + 1 :] for target in panel.get("targets", [])]
    assert len(of_jobs) > 10
    assert [target["legendFormat"] for target in of_jobs if "{{pod}}" not in target["legendFormat"]] == []
    by = [found for target in of_jobs for found in re.findall(r"\bby \(([^)]*)\)", target["expr"])]
    assert by and all("pod" in labels.split(", ") for labels in by)


def test_the_profile_has_exactly_the_keys_that_are_agreed_and_loads(loaded):
    raw, executor = profile_files(manifests("keyshift"))
    assert (set(raw), set(raw["services"])) == ({"services", "spark"}, set(ServicesProfile.model_fields))
    of_the_image = {"python", "conf", "sockets"}  # or nobody's
    assert set(raw["spark"]) == set(SparkProfile.model_fields) - of_the_image
    writable = [mount["mountPath"] for mount in executor["spec"]["containers"][0]["volumeMounts"]]
    assert SparkProfile().sockets in writable, "executors must be able to make the sockets of their Python workers"
    profile = loaded(raw)
    endpoints, spark = profile.endpoints(), profile.spark
    assert (endpoints.kafka, endpoints.zookeeper) == (f"{RELEASE}-kafka:9092", f"{RELEASE}-zookeeper:2181")
    assert (endpoints.minio, endpoints.bucket, endpoints.secure) == (f"{RELEASE}-minio:9000", "keyshift", False)
    assert endpoints.redis == f"{RELEASE}-redis:6379"
    assert (spark.namespace, spark.driver_host, spark.driver_pod) == (NAMESPACE, "10.0.0.7", "keyshift-lab-0")
    assert spark.image == f"keyshift:{APP_VERSION}"
    assert spark.service_account in kinds(manifests("keyshift"), "ServiceAccount")
    assert (spark.executors, spark.cores, spark.request_cpu) == (2, 4, "0.5")
    assert spark.options()["spark.kubernetes.executor.disableConfigMap"] == "true"


def test_the_profile_says_what_the_values_say():
    raw, _ = profile_files(manifests("lab", "placed"))
    kafka = {"kafka_replication": 1, "kafka_sasl": "", "kafka_tls": False, "kafka_authority": ""}
    kafka |= {"kafka": "kafka.example:9092", "zookeeper": "zk.example:2181", "redis": "redis.example:6379"}
    assert raw["services"] == kafka | {"minio": "s3.example:443", "bucket": "results", "secure": True}
    spark = raw["spark"]
    assert (spark["executors"], spark["cores"], spark["request_cpu"]) == (8, 2, "1500m")
    assert (spark["memory"], spark["memory_overhead"]) == ("4g", "3g")
    assert spark["image"] == "registry.example/lab/keyshift:0.1.0-abc"
    assert spark["conf"]["spark.executor.extraJavaOptions"] == "-Xlog:gc"


def test_the_driver_finds_profile_credentials_and_itself_where_it_looks():
    jupyter = stateful("lab", "alone")["spec"]["template"]
    (batch,) = kinds(manifests("lab", "batch"), "Job").values()
    for pod in (jupyter, batch["spec"]["template"]):
        (container,) = pod["spec"]["containers"]
        env = environment(container)
        assert env["KEYSHIFT_PROFILE"] == "/etc/keyshift/profile.yaml"
        assert "/etc/keyshift" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert env["KEYSHIFT_ACCESS_KEY"] == secret_key("my-store", "user")
        assert env["KEYSHIFT_SECRET_KEY"] == secret_key("my-store", "password")
        assert env["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert env["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert env["POD_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
        assert pod["spec"]["serviceAccountName"] == f"{RELEASE}-driver"


def test_a_secured_kafka_and_a_certificate_come_from_secrets_and_the_profile_names_where_they_are_mounted():
    found = manifests("lab", "secured")
    raw, executor = profile_files(found)
    assert (raw["services"]["kafka_sasl"], raw["services"]["kafka_tls"]) == ("SCRAM-SHA-512", True)
    jupyter = one(found, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"]
    (batch,) = kinds(found, "Job").values()
    for pod in (jupyter, batch["spec"]["template"]):
        (container,) = pod["spec"]["containers"]
        env = environment(container)
        assert env["KEYSHIFT_KAFKA_USER"] == secret_key("my-kafka", "name")
        assert env["KEYSHIFT_KAFKA_PASSWORD"] == secret_key("my-kafka", "word")
        folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume.get("secret") for volume in pod["spec"]["volumes"]}
        items = [{"key": "ca.crt", "path": "authority.pem"}]
        assert volumes[folders["/etc/keyshift-kafka"]] == {"secretName": "my-kafka-ca", "items": items}
        assert volumes[folders["/etc/keyshift-flight"]] == {"secretName": "my-tls"}
    assert raw["services"]["kafka_authority"] == "/etc/keyshift-kafka/authority.pem"
    assert raw["spark"]["flight_certificate"] == "/etc/keyshift-flight/tls.crt"
    assert raw["spark"]["flight_key"] == "/etc/keyshift-flight/tls.key"
    assert "my-" not in yaml.safe_dump(executor), "executors are told by the driver"
    open_to_all = environment(stateful("lab", "alone")["spec"]["template"]["spec"]["containers"][0])
    assert not [name for name in open_to_all if name.startswith("KEYSHIFT_KAFKA")]


def test_the_user_of_kafka_may_be_a_value_where_the_secret_has_the_password_alone():
    found = manifests("lab", "secured", "--set", "kafkaAccess.user=ann")  # as Strimzi makes it
    (batch,) = kinds(found, "Job").values()
    for pod in (one(found, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"], batch["spec"]["template"]):
        env = environment(pod["spec"]["containers"][0])
        assert (env["KEYSHIFT_KAFKA_USER"], env["KEYSHIFT_KAFKA_PASSWORD"]) == ("ann", secret_key("my-kafka", "word"))


def test_accounts_roles_and_the_token_are_made_unless_given():
    made = manifests("lab", "alone")
    assert set(kinds(made, "ServiceAccount")) == {f"{RELEASE}-driver", f"{RELEASE}-executor"}
    assert set(kinds(made, "Role")) == set(kinds(made, "RoleBinding")) == {f"{RELEASE}-driver"}
    (binding,) = kinds(made, "RoleBinding").values()
    assert [subject["name"] for subject in binding["subjects"]] == [f"{RELEASE}-driver"]
    assert set(kinds(made, "Secret")) == {f"{RELEASE}-lab"}
    given = manifests("lab", "given")
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Secret"):
        assert not kinds(given, kind)
    pod = one(given, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "my-driver"
    assert environment(pod["containers"][0])["JUPYTER_TOKEN"] == secret_key("my-token", "jupyter")
    assert profile_files(given)[0]["spark"]["service_account"] == "my-executor"


def test_executors_keep_apart_as_strictly_as_the_values_say():
    def affinity(case: str) -> dict[str, Any]:
        found = manifests("lab", case, "--set", "executors.replicasApart=none")
        return profile_files(found)[1]["spec"].get("affinity", {}).get("podAntiAffinity", {})

    assert affinity("open") == {}
    for case, strength, term in (("alone", "preferred", "podAffinityTerm"), ("placed", "required", None)):
        (terms,) = (terms for key, terms in affinity(case).items() if key.startswith(strength))
        roles = {(t[term] if term else t)["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] for t in terms}
        assert roles == {"driver", "executor"}
        assert len(affinity(case)) == 1


@pytest.mark.parametrize("case", ["alone", "placed"])
def test_executors_of_one_replica_keep_together_and_those_of_two_apart_unless_the_values_say_no(case):
    """Which replica it is, the scheduler reads from the pod: there is one template for all of them."""

    def terms(of: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        found = of.get(kind, {})
        wishes = [each["podAffinityTerm"] for each in found.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
        return wishes + found.get("requiredDuringSchedulingIgnoredDuringExecution", [])

    def affinity(*more: str) -> dict[str, Any]:
        return profile_files(manifests("lab", case, *more))[1]["spec"]["affinity"]

    own, label = affinity(), [REPLICA_LABEL]
    (together,) = terms(own, "podAffinity")
    (apart,) = (term for term in terms(own, "podAntiAffinity") if "mismatchLabelKeys" in term)
    assert (together["matchLabelKeys"], apart["mismatchLabelKeys"]) == (label, label)
    assert together["labelSelector"] == apart["labelSelector"]
    assert apart["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "executor"
    (spread,) = (term for term in terms(own, "podAntiAffinity") if "matchExpressions" in term["labelSelector"])
    assert spread["labelSelector"]["matchExpressions"] == [{"key": REPLICA_LABEL, "operator": "DoesNotExist"}]
    without = affinity("--set", "executors.replicasApart=none")
    assert set(without) == {"podAntiAffinity"}
    assert REPLICA_LABEL not in str(without)


def test_the_terms_that_keep_executors_apart_name_labels_that_drivers_and_executors_have():
    found = manifests("lab", "batch")
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(found)}
    _, executor = profile_files(found)
    terms = executor["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = [term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() for term in terms]
    chosen = {name for name, has in labels.items() if any(each <= has.items() for each in wanted)}
    assert {name.split("/")[0] for name in chosen} == {"StatefulSet", "Job", "executor"}


def test_driver_and_executors_have_places_of_their_own():
    found = manifests("lab", "placed")
    _, executor = profile_files(found)
    assert executor["spec"]["nodeSelector"] == {"keyshift/role": "executors"}
    assert executor["spec"]["tolerations"][0]["value"] == "executors"
    assert executor["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    driver = one(found, "StatefulSet", f"{RELEASE}-lab")["spec"]["template"]["spec"]
    assert driver["nodeSelector"] == {"keyshift/role": "driver"}
    images = {container["image"] for container in containers({"spec": driver})}
    assert images == {"registry.example/lab/keyshift:0.1.0-abc"}


def test_notebooks_and_all_else_that_is_written_persist_only_if_wanted():
    for case, persists in (("alone", False), ("placed", True)):
        spec = stateful("lab", case)["spec"]
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        assert ("data" in volumes) is not persists
        assert len(spec.get("volumeClaimTemplates", [])) == persists
        for container in containers(spec["template"]):
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["data"] == "/var/lib/keyshift"


def test_a_new_pod_has_the_notebooks_and_sets_of_the_image_and_keeps_what_was_edited(tmp_path):
    (begin,) = stateful("lab", "alone")["spec"]["template"]["spec"]["initContainers"]
    image, home = tmp_path / "image", tmp_path / "home"
    for folder in (image / "notebooks", image / "data", home / "notebooks"):
        folder.mkdir(parents=True)
        (folder / "made").write_text(folder.parent.name)
    *shell, script = begin["args"]
    subprocess.run([*shell, script.replace("/opt/keyshift", str(image))], cwd=home, check=True)
    left = {path.relative_to(home).as_posix(): path.read_text() for path in home.rglob("*") if path.is_file()}
    assert left == {"notebooks/made": "home", "data/made": "image"}


def test_only_executors_reach_the_driver_and_only_driver_and_executors_reach_executors():
    found = manifests("lab", "placed")
    driver, executor = (one(found, "NetworkPolicy", f"{RELEASE}-{role}") for role in ("driver", "executor"))

    def roles(policy: Manifest, entry: int) -> set[str]:
        labels = [peer["podSelector"]["matchLabels"] for peer in policy["spec"]["ingress"][entry]["from"]]
        return {each.get("app.kubernetes.io/component", "?") for each in labels}

    assert roles(driver, 0) == {"executor"}
    assert (roles(executor, 0), len(executor["spec"]["ingress"])) == ({"driver", "executor"}, 1)
    assert driver["spec"]["ingress"][1]["ports"] == [{"port": 8888, "protocol": "TCP"}]  # those of extraFrom
    assert len(one(manifests("lab", "alone"), "NetworkPolicy", f"{RELEASE}-driver")["spec"]["ingress"]) == 1


def test_a_batch_is_a_job_or_with_a_schedule_a_cron_job_and_without_being_asked_for_neither():
    for case, jobs, crons in (("alone", 0, 0), ("batch", 1, 0), ("cron", 0, 1)):
        found = manifests("lab", case)
        assert (len(kinds(found, "Job")), len(kinds(found, "CronJob"))) == (jobs, crons)
        assert (f"{RELEASE}-lab-batch" in kinds(found, "ConfigMap")) is bool(jobs + crons)
    (cron,) = kinds(found, "CronJob").values()
    assert (cron["spec"]["schedule"], cron["spec"]["jobTemplate"]["spec"]["backoffLimit"]) == ("0 22 * * *", 0)
    # Under a name of its own: otherwise what the first night has executed counts for all others. A pod that is tried
    # again has the same Job.
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "--as=$(KEYSHIFT_BATCH)"
    label = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    assert environment(container)["KEYSHIFT_BATCH"] == label


def test_a_batch_runs_its_file_and_is_tried_again_unless_its_verdicts_are_bad():
    found = manifests("lab", "batch")
    (job,) = kinds(found, "Job").values()
    assert job["spec"]["backoffLimit"] == 2
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["keyshift", "batch", "/etc/keyshift-batch/batch.yaml"]
    assert yaml.safe_load(one(found, "ConfigMap", f"{RELEASE}-lab-batch")["data"]["batch.yaml"])["grid"]
    assert pod["restartPolicy"] == "Never"
    stop = job["spec"]["podFailurePolicy"]["rules"][0]
    assert (stop["action"], stop["onExitCodes"]["values"]) == ("FailJob", [1])
    assert stop["onExitCodes"]["containerName"] == container["name"]


def test_another_batch_is_another_job_and_the_same_one_the_same():
    (first,) = kinds(manifests("lab", "batch"), "Job")
    (other,) = kinds(manifests("lab", "batch", "--set", "batch.file=name: other"), "Job")
    (again,) = kinds(manifests("lab", "batch", "--set", "batch.schedule="), "Job")
    assert first == again != other


# --- the umbrella


def test_all_of_it_comes_with_one_command_and_idles_on_a_laptop():
    found = manifests("keyshift")
    sets = kinds(found, "StatefulSet")
    assert set(sets) == {f"{RELEASE}-{chart}" for chart in (*SERVICES, "lab")}
    requests = [m["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] for m in sets.values()]
    assert sum(int(r["cpu"].removesuffix("m")) for r in requests) <= 1000
    units = {"Mi": 1, "Gi": 1024}
    assert sum(int(r["memory"][:-2]) * units[r["memory"][-2:]] for r in requests) <= 3 * 1024


@pytest.mark.parametrize(
    ("case", "left"),
    [
        ("external", {"lab"}),
        ("results-apart", {"kafka", "zookeeper", "redis", "lab"}),
        ("services-only", {"kafka", "zookeeper", "minio", "redis"}),
    ],
)
def test_what_exists_elsewhere_is_not_installed(case, left):
    found = manifests("keyshift", case)
    assert set(kinds(found, "StatefulSet")) == {f"{RELEASE}-{chart}" for chart in left}
    if "lab" in left:
        raw, _ = profile_files(found)
        inside = {name for name in SERVICES if raw["services"][name].startswith(f"{RELEASE}-")}
        assert inside == left - {"lab"}


@pytest.mark.parametrize("digest", ["", f"@sha256:{'a' * 64}"])
def test_the_image_is_set_once_for_all_and_one_chart_may_have_a_tag_of_its_own_without_the_digest(digest):
    more = ["--set", f"global.image.digest={digest[1:]}"] if digest else []
    found = manifests("keyshift", "image", *more)
    images = {name: {c["image"] for c in containers(pod)} for name, pod in pods(found) if name != "executor"}
    ours = {f"registry.example/lab/keyshift:0.1.0-abc{digest}"}
    for name, used in images.items():
        assert used == ({"registry.example/lab/keyshift:0.1.0-def"} if "zookeeper" in name else ours), name
    assert {profile_files(found)[0]["spark"]["image"]} == ours


def test_each_service_and_the_rights_have_a_test_pod():
    pods_ = kinds(manifests("keyshift"), "Pod")
    tests = {name for name, pod in pods_.items() if pod["metadata"]["annotations"]["helm.sh/hook"]}
    assert tests == {f"{RELEASE}-{chart}-test-roundtrip" for chart in SERVICES} | {f"{RELEASE}-lab-test-rights"}


NAMES = (
    *("lab.store.bucket", "minio.bucket", "lab.store.existingSecret.name", "minio.existingSecret.name"),
    *("lab.redisAccess.existingSecret.name", "redis.existingSecret.name", "lab.jupyter.existingSecret.name"),
    *("lab.serviceAccounts.driver", "lab.serviceAccounts.executor", "lab.flight.tlsSecret"),
    *("lab.kafkaAccess.authoritySecret.name", "lab.control.existingSecret.name", "minio.persistence.storageClass"),
    "global.image.pullSecrets[0]",
)


@pytest.mark.parametrize("name", ["2024", "yes", "2024-01-01"])
def test_a_name_that_yaml_reads_as_something_else_stays_a_text(name):
    def rendered(name: str) -> list[Manifest]:
        given = [word for key in NAMES for word in ("--set-string", f"{key}={name}")]
        more = ["--set", "lab.control.enabled=true,minio.persistence.enabled=true"]
        code, output, messages = call("template", name, "keyshift", "--namespace", name, *given, *more)
        assert code == 0, messages
        found = [document for document in yaml.safe_load_all(output) if document]
        data = one(found, "ConfigMap", f"{name}-profile")["data"]
        data.update({file: yaml.safe_load(text) for file, text in data.items()})
        return found

    assert rendered(name) == json.loads(json.dumps(rendered("a-word")).replace("a-word", name))


@pytest.mark.parametrize(
    ("chart", "case", "commands"),
    [
        ("kafka", None, ["helm test keyshift", "goes with its pod"]),
        ("zookeeper", "persistent", ["helm test keyshift", "data-keyshift-zookeeper-0"]),
        ("minio", None, ["port-forward service/keyshift-minio 9000", "existingSecret.name=keyshift-minio"]),
        ("minio", "secret", ["Secret.name=my-store", "Secret.accessKey=user", "Secret.secretKey=password"]),
        ("redis", "secret", ["helm test keyshift", "my-redis", "goes with its pod"]),
        ("lab", "batch", ["port-forward service/keyshift-lab 8888", "app.kubernetes.io/name=lab-batch", "helm test"]),
        ("lab", "batch", ["delete job -l app.kubernetes.io/name=lab,app.kubernetes.io/instance=keyshift"]),
        ("lab", "alone", ["`helm upgrade`", "after about a minute"]),
        ("keyshift", None, ["port-forward service/keyshift-lab 8888", "get secret keyshift-lab", "helm uninstall"]),
        ("keyshift", None, ["`helm upgrade` changes (lab.spark, lab.services)", "after about a minute"]),
    ],
)
def test_the_notes_name_the_next_commands(chart, case, commands, tmp_path):
    found = notes_of(chart, case, RELEASE, tmp_path)
    assert [command for command in commands if command not in found] == []


def test_the_notes_of_a_release_with_a_long_name_name_what_is_there(tmp_path):
    long = "the-experiments-of-the-second-week-in-november"
    found = notes_of("keyshift", None, long, tmp_path)
    assert f"service/{long[:40]}-lab 8888" in found
    assert f"{long}-lab" not in found


def notes_of(chart: str, case: str | None, release: str, tmp_path: Path) -> str:
    # Without a cluster Helm renders notes only to see whether it can: here they are a manifest of a copy of the chart.
    copy = shutil.copytree(CHARTS / chart, tmp_path / chart)
    notes = (copy / "templates" / "NOTES.txt").read_text()
    manifest = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ include "notes" . | toJson }}\n'
    (copy / "templates" / "notes.yaml").write_text(f'{{{{- define "notes" }}}}{notes}{{{{ end }}}}\n{manifest}')
    code, output, messages = call("template", release, str(copy), "--kube-version", MINIMUM, *values_file(chart, case))
    assert code == 0, messages
    (found,) = [m for m in yaml.safe_load_all(output) if m and m["kind"] == "Notes"]
    return found["text"]


# --- wrong values

WRONG = [
    ("kafka", None, "image.tag=latest", "image/tag"),
    ("kafka", None, "image.tag=", "image/tag"),
    ("keyshift", None, "global.image.tag=latest", "global/image/tag"),
    ("kafka", None, "image.repository=keyshift:latest@sha256", "image/repository"),
    ("kafka", None, "replicas=3", "replicas"),
    ("kafka", None, "global.nodes=2", "global/nodes"),
    ("keyshift", None, "global.nodes=4", "global/nodes"),
    ("lab", "alone", "services.zookeeper='z:1,y'", "services/zookeeper"),
    ("lab", "alone", "services.minio='m:1,n:1'", "services/minio"),
    ("lab", "alone", "kafkaAccess.replication=0", "kafkaAccess/replication"),
    ("zookeeper", None, "persistence.sice=1Gi", "sice"),
    ("zookeeper", None, "networkPolicy.enabled=maybe", "networkPolicy/enabled"),
    ("minio", None, "bucket=My_Bucket", "bucket"),
    ("minio", None, "bucket=a..b", "bucket"),
    ("minio", None, "persistence.size=1.5GB", "persistence/size"),
    ("minio", None, "metrics.serviceMonitor.every=5s", "every"),
    ("minio", None, "resources.requests.memory=lots", "resources/requests/memory"),
    ("lab", "alone", "spark.cores=0", "spark/cores"),
    ("lab", "alone", "spark.cores=257", "spark/cores"),
    ("lab", "alone", "spark.executors=1001", "spark/executors"),
    ("lab", "alone", "spark.memory=1Gi", "spark/memory"),
    ("lab", "alone", "spark.conf.master=local", "'master'"),
    ("lab", "alone", "services.kafka=no-port", "services/kafka"),
    ("redis", None, "memoryMiB=0", "memoryMiB"),
    ("redis", None, "persistence.enabled=true", "persistence"),
    ("lab", "alone", "services.redis=some", "services/redis"),
    ("lab", "alone", "services.radis=r:6379", "radis"),
    ("lab", "alone", "executors.spread=sometimes", "executors/spread"),
    ("lab", "alone", "executors.replicasApart=required", "executors/replicasApart"),
    ("lab", "alone", "batch.shedule=daily", "shedule"),
    ("lab", "alone", "control.port=80", "control/port"),
    ("lab", "alone", "control.metricsPort=80", "control/metricsPort"),
    ("keyshift", None, "kafak.enabled=false", "kafak"),
    ("keyshift", None, "lab.sprak.cores=2", "sprak"),
]


@pytest.mark.parametrize(("chart", "case", "setting", "named"), WRONG, ids=[w[2] for w in WRONG])
def test_a_wrong_value_is_refused_with_its_name(chart, case, setting, named, tmp_path):
    assert named in refusal(chart, case, *given(setting, tmp_path))


def given(setting: str, folder: Path) -> list[str]:
    """The arguments that give Helm one value, in a file: ``--set`` would read it in its own way."""
    path, _, value = setting.partition("=")
    values: Any = yaml.safe_load(value) if value else ""
    for key in reversed(path.split(".")):
        values = {key: values}
    file = folder / "given.yaml"
    file.write_text(yaml.safe_dump(values))
    return ["--values", str(file)]


MONITORING = "{matchExpressions: [{key: team, operator: In, values: [monitoring]}]}"


@pytest.mark.parametrize(
    ("chart", "case", "setting"),
    [
        ("lab", "alone", "store.bucket=results.example"),
        ("minio", None, "bucket=results.example"),
        *((chart, None, "resources.limits.memory=1.5Gi") for chart in SERVICES),
        ("lab", "alone", "resources.limits.memory=4G"),
        *((chart, "persistent", "persistence.size=0.5Gi") for chart in KEEPING),
        ("lab", "placed", "persistence.size=512M"),
        *((chart, None, f"networkPolicy.extraFrom=[{{namespaceSelector: {MONITORING}}}]") for chart in SERVICES),
        ("lab", "alone", f"networkPolicy.extraFrom=[{{podSelector: {MONITORING}}}]"),
    ],
)
def test_a_value_that_kubernetes_takes_is_taken(chart, case, setting, tmp_path):
    for manifest in manifests(chart, case, *given(setting, tmp_path)):
        kubernetes_validate.validate(manifest, MINIMUM, strict=True)


@pytest.mark.parametrize(
    ("chart", "case", "settings", "words"),
    [
        ("lab", None, [], "services.kafka is empty"),
        ("lab", "alone", ["rbac.create=false"], "serviceAccounts.driver and serviceAccounts.executor"),
        ("lab", "alone", ["batch.enabled=true"], "batch.file is empty"),
        ("lab", "alone", ["control.enabled=true", "control.metricsPort=8089"], "control.metricsPort is control.port"),
        ("lab", "alone", ["control.enabled=true", "control.port=8888"], "control.port is 8888: JupyterLab"),
        (
            "lab",
            "alone",
            ["control.enabled=true", "control.metricsPort=8888"],
            "control.metricsPort is 8888: JupyterLab",
        ),
        ("lab", "alone", ["kafkaAccess.sasl=PLAIN"], "kafkaAccess.existingSecret.name"),
        ("lab", "alone", ["kafkaAccess.authoritySecret.name=ca"], "is of TLS, but kafkaAccess.tls is false"),
        ("redis", None, ["memoryMiB=2049"], "memoryMiB is 2049 and resources.limits.memory 2Gi: "),
        ("redis", None, ["resources.limits.memory=1.5G"], "memoryMiB is 1536 and resources.limits.memory 1.5G: "),
        ("keyshift", None, ["kafka.enabled=false"], "lab.services.kafka"),
        ("keyshift", None, ["zookeeper.enabled=false"], "lab.services.zookeeper"),
        ("keyshift", None, ["lab.services.kafka=k:9092"], "kafka.enabled"),
        ("keyshift", None, ["redis.enabled=false"], "(host:port, or none)"),
        ("keyshift", None, ["lab.services.redis=none"], "lab.services.redis is none, but redis.enabled would install"),
        ("keyshift", None, ["redis.existingSecret.name=mine"], "lab.redisAccess.existingSecret differ"),
        ("keyshift", None, ["minio.enabled=false", "lab.services.minio=s3:443"], "lab.store.existingSecret.name"),
        ("keyshift", None, ["lab.kafkaAccess.tls=true"], "lab.kafkaAccess is for a Kafka of others"),
        ("keyshift", None, ["lab.store.secure=true"], "lab.store.secure is for a store of others"),
        ("keyshift", None, ["minio.bucket=other"], "lab.store.bucket is keyshift"),
        ("keyshift", None, ["minio.existingSecret.name=mine"], "lab.store.existingSecret"),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused_with_what_to_do(chart, case, settings, words):
    assert words in refusal(chart, case, *(part for setting in settings for part in ("--set", setting)))


# Of other kinds 63, as of labels. Kubernetes makes longer labels of the names of these two; that of a pod is none.
LONGEST = {"StatefulSet": 52, "CronJob": 52, "Pod": 253}


@pytest.mark.parametrize(("chart", "case"), [("keyshift", "three"), ("lab", "batch"), ("lab", "cron")])
def test_a_release_name_that_is_long_still_gives_names_that_kubernetes_takes(chart, case):
    where = ["a" * 53, chart, "--namespace", NAMESPACE, "--kube-version", MINIMUM]  # Helm takes no longer one
    code, output, messages = call("template", *where, *values_file(chart, case))
    assert code == 0, messages
    found = [manifest for manifest in yaml.safe_load_all(output) if manifest]
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in found]
    assert not [(kind, name) for kind, name in names if len(name) > LONGEST.get(kind, 63)]
    labels = [each["metadata"].get("labels", {}) for each in (*found, *(pod for _, pod in pods(found)))]
    assert 53 <= max(len(value) for some in labels for value in some.values()) <= 63
