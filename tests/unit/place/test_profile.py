import json

import pytest

from certificate import CERTIFICATE, KEY
from keyshift.driver.spark import sockets
from keyshift.endpoints import OPEN, SignIn
from keyshift.model.errors import BadInput
from keyshift.place.profile import KAFKA_KEYS, KEYS, VARIABLE, load_profile, located, use_profile

SERVICES = "services: {kafka: 'k:9092', zookeeper: 'z:2181', minio: 'm:9000'}\n"
SPARK = "spark: {master: 'k8s://https://api', image: keyshift:1, driver_host: 10.0.0.1, executors: 2, cores: 4}\n"


@pytest.fixture
def write(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "profile.yaml"
        path.write_text(text)
        return str(path)

    return written


@pytest.fixture(autouse=True)
def no_profile(monkeypatch):
    for name in (VARIABLE, *KEYS, *KAFKA_KEYS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def keys(monkeypatch):
    """The credentials of the store are in the environment."""
    for name in KEYS:
        monkeypatch.setenv(name, "secret")


@pytest.mark.parametrize("name", [None, "local-cluster"])
def test_unless_it_is_on_a_cluster_everything_is_on_this_machine(name):
    profile = load_profile(name)
    assert (profile.spark.master, profile.spark.executors, profile.services) == (name or "local", 2, "embedded")
    assert not profile.spark.on_kubernetes
    assert profile.spark.options() == sockets("/tmp")


@pytest.mark.parametrize(
    ("name", "tasks", "executors"), [("local", 6, 0), ("local-cluster", 6, 2), ("local-apart", 6, 6)]
)
def test_on_this_machine_executors_are_as_many_as_the_profile_says_and_no_more_than_tasks(name, tasks, executors):
    assert load_profile(name).spark.executors_for(tasks) == executors


def test_the_environment_names_a_profile_an_argument_wins_and_one_that_is_used_is_known_to_others(write, monkeypatch):
    monkeypatch.setenv(VARIABLE, write(SERVICES + SPARK))
    assert load_profile().spark.on_kubernetes
    assert not load_profile("local").spark.on_kubernetes
    monkeypatch.setenv(VARIABLE, "local")
    use_profile(write(SERVICES + SPARK))
    assert load_profile().spark.image == "keyshift:1"


@pytest.mark.usefixtures("ascii_locale")
def test_a_profile_is_the_same_in_every_locale(tmp_path):
    (tmp_path / "profile.yaml").write_bytes("spark: {master: local, conf: {spark.app.name: Größe}}".encode())
    assert load_profile(str(tmp_path / "profile.yaml")).spark.conf == {"spark.app.name": "Größe"}


def test_a_profile_is_found_in_whatever_folder_one_is_and_so_are_its_files(write, keys, monkeypatch, tmp_path):
    (tmp_path / "tls.crt").write_text(CERTIFICATE)
    (tmp_path / "tls.key").write_text(KEY)
    files = "spark: {flight_certificate: tls.crt, flight_key: ./tls.key, pod_template: pods/a.yaml}"
    write(SERVICES.replace("zookeeper", "kafka_tls: true, kafka_authority: tls.crt, zookeeper") + files)
    monkeypatch.chdir(tmp_path)
    names = [located("profile.yaml"), located("local-cluster"), located()]
    monkeypatch.setenv(VARIABLE, "profile.yaml")
    assert [*names, located()] == [str(tmp_path / "profile.yaml"), "local-cluster", "local", names[0]]
    (tmp_path / "another").mkdir()
    monkeypatch.chdir(tmp_path / "another")
    found = load_profile(names[0])
    assert found.spark.certificate().chain == found.endpoints().sign_in.authority == CERTIFICATE
    assert found.spark.pod_template == str(tmp_path / "pods" / "a.yaml")
    assert load_profile("local").spark.pod_template == ""
    with pytest.raises(BadInput, match=r"unknown profile 'profile\.yaml'"):
        located("profile.yaml")


def test_the_profile_for_a_cluster_takes_what_differs_from_the_environment(monkeypatch):
    given = {"POD_NAMESPACE": "lab", "KEYSHIFT_IMAGE": "keyshift:2", "POD_IP": "10.1.1.1", "POD_NAME": "driver-0"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    options = load_profile("kubernetes").spark.options()
    assert options["spark.kubernetes.namespace"] == "lab"
    assert options["spark.kubernetes.container.image"] == "keyshift:2"
    assert options["spark.driver.bindAddress"] == options["spark.driver.host"] == "10.1.1.1"
    assert options["spark.kubernetes.driver.pod.name"] == "driver-0"
    monkeypatch.delenv("POD_IP")
    with pytest.raises(BadInput, match="needs POD_IP in the environment"):
        load_profile("kubernetes")


@pytest.mark.parametrize(
    ("name", "ours", "given"),
    [
        ("spark.kubernetes.executor.label.app.kubernetes.io/part-of", "keyshift", "others"),
        ("spark.executor.maxNumFailures", 2**31 - 1, 9),
        ("spark.network.crypto.enabled", "true", False),
    ],
    ids=["services of the charts let them in", "Spark ends no job for those that it has lost", "all is encrypted"],
)
def test_executors_in_pods_have_what_a_job_that_lasts_needs_unless_the_profile_says_otherwise(write, name, ours, given):
    assert load_profile(write(SERVICES + SPARK)).spark.options()[name] == ours
    text = SERVICES + SPARK.replace("cores: 4", f"cores: 4, conf: {{{name}: {json.dumps(given)}}}")
    assert load_profile(write(text)).spark.options()[name] == given


def test_credentials_come_from_the_environment_only(write, request):
    profile = load_profile(write(SERVICES + SPARK))
    with pytest.raises(BadInput, match="KEYSHIFT_ACCESS_KEY and KEYSHIFT_SECRET_KEY must be set"):
        profile.endpoints()
    request.getfixturevalue("keys")
    assert profile.endpoints().secret_key == "secret"
    assert "secret" not in repr(profile.endpoints())


def test_a_redis_server_is_of_the_place_if_the_profile_names_one(write, keys):
    without, given = load_profile(write(SERVICES)), load_profile(write(SERVICES.replace("}", ", redis: 'r:6379'}")))
    assert (load_profile("local").redis, without.redis, without.endpoints().redis) == ("", "", "")
    assert (given.redis, given.endpoints().redis) == ("r:6379", "r:6379")
    with pytest.raises(BadInput, match=r"services.*redis.*'r'"):
        load_profile(write(SERVICES.replace("}", ", redis: r}")))


def test_a_kafka_that_asks_is_signed_in_to_with_what_the_environment_says(write, keys, monkeypatch, tmp_path):
    assert load_profile(write(SERVICES)).endpoints().sign_in == OPEN
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    more = f"kafka_sasl: SCRAM-SHA-512, kafka_tls: true, kafka_authority: {tmp_path / 'ca.pem'}, zookeeper"
    profile = load_profile(write(SERVICES.replace("zookeeper", more)))
    with pytest.raises(BadInput, match=r"KEYSHIFT_KAFKA_USER and KEYSHIFT_KAFKA_PASSWORD must be set.*of Kafka"):
        profile.endpoints()
    for name in KAFKA_KEYS:
        monkeypatch.setenv(name, name[-4:])
    assert profile.endpoints().sign_in == SignIn("SCRAM-SHA-512", "USER", "WORD", True, CERTIFICATE)
    for wrong in ("no certificate", None):
        (tmp_path / "ca.pem").write_text(wrong) if wrong else (tmp_path / "ca.pem").unlink()
        with pytest.raises(BadInput, match=r"services.kafka_authority = .*ca.pem' is no file with certificates"):
            profile.endpoints()


def test_state_travels_over_tls_with_the_certificate_that_a_profile_names(write, tmp_path):
    assert load_profile("local").spark.certificate() is None
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    profile = f"spark: {{flight_certificate: {certificate}, flight_key: {key}}}"
    certificate.write_text(CERTIFICATE)
    for wrong in (None, CERTIFICATE, ""):
        if wrong is not None:
            key.write_text(wrong)
        with pytest.raises(BadInput, match=r"flight_key = .*tls.key' are no certificate with its key"):
            load_profile(write(profile))
    with pytest.raises(BadInput, match="are no certificate with its key"):
        load_profile(write(f"spark: {{flight_certificate: {certificate}}}"))
    key.write_text(KEY)
    found = load_profile(write(profile)).spark.certificate()
    assert (found.chain, found.key) == (CERTIFICATE, KEY)
    assert KEY not in repr(found)


def test_a_run_that_does_not_fit_is_refused_with_the_number_of_executors_it_needs(write):
    profile = load_profile(write(SERVICES + SPARK))
    profile.require_cores(8)
    with pytest.raises(BadInput, match=r"9 routers and slots.*2 executors.*set spark.executors to 3"):
        profile.require_cores(9)
    load_profile("local").require_cores(1000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spark: {corse: 3}", "unknown key of spark.*'corse': did you mean 'cores'"),
        ("services: {kafak: 'k:1'}", "unknown key of services.*did you mean 'kafka'"),
        ("sparc: {}", "unknown key 'sparc': did you mean 'spark'"),
        ("services: elsewhere", "services = 'elsewhere': .*the word embedded, or their addresses"),
        ("services: {kafka: k, zookeeper: 'z:1', minio: 'm:1'}", "services.kafka = 'k': "),
        ("services: {kafka: 'k:1', zookeeper: 'z:1'}", r"services.minio: field required .*S3"),
        (SERVICES.replace("zookeeper", "kafka_sasl: GSSAPI, zookeeper"), "kafka_sasl = 'GSSAPI'.*SCRAM-SHA-256"),
        (
            SERVICES.replace("zookeeper", "kafka_authority: ca.pem, zookeeper"),
            "authority is of TLS, and .*tls is false",
        ),
        ("spark: {cores: 0}", "spark.cores = 0: .*greater than or equal to 1"),
        ("spark: {master: 'yarn'}", "spark.master = 'yarn'"),
        ("spark: {memory: 1 gig}", "spark.memory = '1 gig'"),
        (SPARK, "executors in pods cannot reach embedded services"),
        (SERVICES + SPARK.replace("image: keyshift:1, ", ""), "spark.image is needed on Kubernetes"),
        (SERVICES + SPARK.replace("driver_host: 10.0.0.1, ", ""), "spark.driver_host is needed on Kubernetes"),
        (f"spark: {{sockets: /tmp/{'x' * 90}}}", "longer than"),
        ("spark: {sockets: /no/such/folder}", "can be written to"),
        ("spark: {sockets: tmp}", "absolute"),
        (SERVICES.replace("}", ", bucket: team/keyshift}"), "services.bucket = 'team/keyshift': .*letters and digits"),
        ("session_ms: 60001", "session_ms = 60001: .*less than or equal to 60000"),
        ("nodes: 2", "nodes = 2: .*1 or 3"),
        (SERVICES + "nodes: 3", "nodes = 3 is for embedded services; of others name all addresses"),
        (SERVICES.replace("'k:9092'", "'k:1,l'"), "services.kafka = 'k:1,l'"),
        (SERVICES.replace("'m:9000'", "'m:1,n:1'"), "services.minio = 'm:1,n:1'"),
        (SERVICES.replace("zookeeper", "kafka_replication: 0, zookeeper"), "services.kafka_replication = 0: .*1"),
        ("- a list", "is no mapping; it has the keys services, session_ms, nodes, spark"),
        ("{", "cannot be read"),
        ("nodes: 1\nnodes: 3", "cannot be read: key 'nodes' is there twice; leave one out .*line 2"),
        ("spark: {cores: 1, cores: 2}", "key 'cores' is there twice"),
        ("[" * 2000, "cannot be read: it is nested too deep"),
    ],
)
def test_what_is_not_right_is_named(write, text, said):
    with pytest.raises(BadInput, match=said) as refused:
        load_profile(write(text))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name, said", [("kuberntes", "'kuberntes': did you mean 'kubernetes'"), ("x" * 300, "'xxx")])
def test_an_unknown_name_is_refused_with_the_nearest(name, said):
    with pytest.raises(BadInput, match=f"unknown profile {said}"):
        load_profile(name)


def test_what_is_merged_into_a_mapping_may_have_the_same_keys(write):
    text = "spark: &all {cores: 1, conf: {<<: {spark.a: b}, spark.a: c}}"
    assert load_profile(write(text)).spark.conf == {"spark.a": "c"}


def test_without_a_folder_for_sockets_workers_are_reached_by_tcp(write):
    options = load_profile(write('spark: {sockets: ""}')).spark.options()
    assert options == {"spark.python.unix.domain.socket.enabled": "false"}


def test_services_of_several_nodes_are_told_by_their_addresses_and_copies(write, keys):
    one = load_profile(write(SERVICES)).endpoints()
    assert (one.kafka, one.replication) == ("k:9092", 1)
    several = SERVICES.replace("'k:9092'", "'k:9092,l:9092,m:9092', kafka_replication: 3")
    found = load_profile(write(several.replace("'z:2181'", "'y:1,z:2'"))).endpoints()
    assert (found.kafka, found.zookeeper, found.replication) == ("k:9092,l:9092,m:9092", "y:1,z:2", 3)
    assert load_profile(write("nodes: 3")).nodes == 3
