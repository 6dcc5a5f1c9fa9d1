"""The suite in a real cluster: services, driver and executors in pods of their own."""

import json
import re
import subprocess
import tempfile
import time

import pytest
import yaml

from keyshift.place.profile import REPLICA_LABEL
from keyshift.waiting import wait_until

from .conftest import DRIVER, RELEASE

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
REPLICATED = ("replicas=2", "ordering=live_robin", "rate=1000", "seconds=30", "keys=4000")
# A load that a part of two cores carries: a migration waits for what is queued.
LIVE = ("rate=300", "frame_ms=100", "keys=4000", "state_bytes=256", "key_groups=32", "snapshot_s=2", "deadline_s=120")
SMALL = ["--set", "rate=2000", "--set", "seconds=14", "--set", "trigger_s=4", "--set", "keys=10000"]


def summary(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def notes(cluster, run_id: str) -> str:
    return "\n".join(json.loads(cluster.keyshift("results", "show", run_id).stdout)["notes"])


def refused(cluster, *arguments: str, **more) -> str:
    """The one line of a run that was refused; nothing of it is left."""
    done = cluster.keyshift("run", *SMALL, *arguments, **more)
    assert done.returncode in (2, 3), done.stdout[-500:]
    said = [line for line in done.stderr.splitlines() if line.startswith("keyshift: ")]
    assert len(said) == 1, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert cluster.without_executors()
    return said[0]


@pytest.fixture
def profile(cluster):
    """Writes a changed copy of the driver's profile into its pod."""

    def change(section: str, **values) -> str:
        raw = cluster.kubectl("exec", DRIVER, "-c", "jupyter", "--", "cat", "/etc/keyshift/profile.yaml", check=True)
        changed = yaml.safe_load(raw.stdout)
        changed[section] |= values
        path = "/tmp/changed.yaml"
        cluster.kubectl(
            "exec", "-i", DRIVER, "-c", "jupyter", "--", "tee", path, input=yaml.safe_dump(changed), check=True
        )
        return path

    return change


def test_what_the_charts_test_passes(cluster):
    said = cluster.helm("test", RELEASE, "--logs")
    assert said.count("Phase:          Succeeded") == 5


def test_state_moves_between_pods_and_the_oracle_agrees(cluster):
    row = summary(cluster.keyshift("run", *SMALL, "--set", "to_slots=4"))
    assert row["verdict"] == "ok"
    assert row["units_moved"] > 0
    places = re.findall(r"slots ([\d, ]+) on (\S+?)(?:;|$)", notes(cluster, row["run_id"]), re.MULTILINE)
    assert len({host for _, host in places}) == 2
    assert cluster.without_executors()


@pytest.mark.parametrize("backend", ["rocksdb", "remote", "hybrid"])
def test_state_on_disks_of_executors_or_in_the_redis_server_of_the_release_moves(cluster, backend):
    row = summary(cluster.keyshift("run", *SMALL, "--set", "to_slots=4", "--set", f"backend={backend}"))
    assert row["verdict"] == "ok"
    assert row["units_moved"] > 0
    if backend != "rocksdb":
        asked = "import os, redis; print(redis.Redis(password=os.environ['KEYSHIFT_REDIS_PASSWORD']).dbsize())"
        left = cluster.kubectl("exec", f"{RELEASE}-redis-0", "--", "python", "-c", asked, check=True)
        assert left.stdout.strip() == "0", "of the run nothing is left"


def test_the_quickstart_runs_in_the_pod_of_jupyter(cluster):
    settings = ['strategies=["fluid", "stop_restart"]', "rate=1000", "keys=4000", "seconds=14", "trigger_s=4"]
    given = [part for setting in settings for part in ("--set", setting)]
    done = cluster.keyshift("notebook", "notebooks/start/00_quickstart.ipynb", *given, timeout_s=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("verdict ok") == 2
    listed = [json.loads(line) for line in cluster.keyshift("results", "list", "--json").stdout.splitlines()]
    newest = json.loads(cluster.keyshift("results", "show", listed[0]["run_id"]).stdout)
    assert {"00_quickstart.ipynb", "00_quickstart.html", "migration.parquet"} <= set(newest["files"])


def test_a_job_whose_executor_is_deleted_in_the_middle_of_a_migration_goes_on_from_its_snapshot(cluster):
    command = ["kubectl", "-n", cluster.namespace, "exec", DRIVER, "-c", "jupyter", "--", "keyshift", "run"]
    settings = ["rate=1000", "seconds=24", "trigger_s=4", "keys=10000", "snapshot_s=2"]
    for setting in settings:
        command += ["--set", setting]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    before = []
    try:
        assert run.stderr is not None
        for line in run.stderr:
            if "moving" in line:
                before = cluster.executors()
                cluster.kubectl("delete", "pod", before[0], "--grace-period=0", "--force", check=True)
                break
        out, err = run.communicate(timeout=400)
    finally:
        run.kill()
    assert run.returncode == 0, err[-3000:]
    row = json.loads(out.strip().splitlines()[-1])
    assert len(before) == 2
    assert row["verdict"] == "ok"
    assert row["lost"] == row["duplicated"] == 0
    told = notes(cluster, row["run_id"])
    assert "the query died" in told and "everything since its snapshot was done again" in told


def test_a_run_that_deletes_the_pod_of_its_own_executor_goes_on_from_its_snapshot(cluster):
    settings = ("rate=1000", "seconds=24", "trigger_s=4", "keys=10000", "snapshot_s=2", "fault=kill:executor@transfer")
    row = summary(cluster.keyshift("run", *(part for setting in settings for part in ("--set", setting))))
    assert row["verdict"] == "ok"
    assert row["lost"] == row["duplicated"] == 0
    told = notes(cluster, row["run_id"])
    assert "the query died" in told and "everything since its snapshot was done again" in told
    assert "did not happen" not in told
    assert cluster.without_executors()


def test_a_live_job_is_scaled_and_another_process_goes_on_with_it_from_its_snapshot(cluster):
    """The first process is killed when state is about to move once more."""

    def told(*arguments: str) -> dict:
        return summary(cluster.keyshift(*arguments))

    def end(signal: str, **how) -> None:
        """The process of the job, in its pod."""
        found = ("pkill", f"-{signal}", "-f", "keyshift.control.process")
        cluster.kubectl("exec", DRIVER, "-c", "jupyter", "--", *found, **how)

    try:
        job = told("job", "start", *(part for setting in LIVE for part in ("--set", setting)), "--json")
        assert told("job", "scale", "--slots", "4")["outcome"] == "complete"
        before = told("job", "status", "--json")["snapshots"]
        assert wait_until(lambda: told("job", "status", "--json")["snapshots"] > before + 1, 200)
        told("job", "scale", "--slots", "3", "--no-wait")
        end("KILL", check=True)
        assert told("resume", job["job"], "--json")["run"] == job["run"]
        row = told("job", "stop")
    finally:
        end("TERM")  # if the test has failed: others need the room
        alone = cluster.without_executors()
    assert (row["verdict"], row["run_id"]) == ("ok", job["run"])
    assert row["units_moved"] >= 16
    assert "another one went on with it; everything since its snapshot" in notes(cluster, job["run"])
    assert alone, "the executors of the killed process go, too"


def replicated(cluster, path: str, *settings: str):
    """The row of a run with two replicas of one executor each, its notes, and for each replica, by its label, the pods
    that were seen while it ran.
    """
    command = ["kubectl", "-n", cluster.namespace, "exec", DRIVER, "-c", "jupyter", "--"]
    command += ["env", f"KEYSHIFT_PROFILE={path}", "keyshift", "run"]
    for setting in (*REPLICATED, *settings):
        command += ["--set", setting]
    seen: dict[str, set[str]] = {}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        run = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        try:
            until = time.monotonic() + 400
            while run.poll() is None and time.monotonic() < until:
                for pod in cluster.get("pods", "-l", f"spark-role=executor,{REPLICA_LABEL}"):
                    seen.setdefault(pod["metadata"]["labels"][REPLICA_LABEL], set()).add(pod["metadata"]["name"])
                time.sleep(0.5)
        finally:
            run.kill()
        out.seek(0), err.seek(0)
        done = subprocess.CompletedProcess(command, run.wait(), out.read(), err.read())
    row = summary(done)
    assert cluster.without_executors()
    return row, notes(cluster, row["run_id"]), seen


@pytest.mark.parametrize(
    ("fault", "died", "pods"),
    [("", 0, (1, 1)), ("kill:replica@5", 1, (2, 1)), ("kill:executor@5", 1, (2, 1))],
    ids=["nothing fails", "a replica", "an executor"],
)
def test_replicas_in_pods_of_their_own_answer_while_one_of_them_is_deleted(cluster, profile, fault, died, pods):
    """The one that was deleted comes back, with other pods."""
    row, told, seen = replicated(cluster, profile("spark", executors=1, request_cpu="0.2"), f"fault={fault}")
    assert row["verdict"] == "ok"
    assert row["lost"] == row["duplicated"] == 0
    assert told.count("went on") == died
    assert (len(seen["0"]) >= pods[0], len(seen["1"])) == (True, pods[1]) and seen.keys() == {"0", "1"}
    assert told.count("was full again") == died


def test_a_pod_of_a_service_that_has_three_is_deleted_and_comes_back_while_the_job_goes_on(three_nodes):
    faults = "fault=restart:kafka@4,restart:zookeeper@12"
    settings = ("rate=2000", "seconds=24", "trigger_s=4", "keys=10000", "to_slots=4", faults)
    given = [part for setting in settings for part in ("--set", setting)]
    row = summary(three_nodes.keyshift("run", *given))
    assert row["verdict"] == "ok"
    assert row["units_moved"] > 0
    told = notes(three_nodes, row["run_id"])
    for service in ("kafka", "zookeeper"):
        assert f"restart of {service} deletes pod {RELEASE}-{service}-0" in told
    assert "not ready again" not in told and "did not happen" not in told
    assert three_nodes.without_executors()


def test_the_only_pod_of_a_service_is_not_deleted_with_its_data(cluster):
    assert "kafka.persistence.enabled=true" in refused(cluster, "--set", "fault=restart:kafka@4")


def test_an_upgrade_keeps_credentials_and_results(cluster):
    before = cluster.secret(f"{RELEASE}-minio"), cluster.secret(f"{RELEASE}-lab")
    runs = cluster.keyshift("results", "list", "--json").stdout
    assert runs.strip()
    cluster.install("--set", "lab.spark.executors=2", "--set", "lab.resources.limits.memory=5Gi")
    assert (cluster.secret(f"{RELEASE}-minio"), cluster.secret(f"{RELEASE}-lab")) == before
    assert cluster.keyshift("results", "list", "--json").stdout == runs


def test_a_batch_is_a_job_whose_log_tells_how_far_it_is_and_that_resumes(cluster, tmp_path):
    file = tmp_path / "batch.yaml"
    file.write_text("name: two\nnotebook: start/01_strategy_space.ipynb\ngrid: {groups: [16, 32]}\n")

    def executed():
        cluster.install("--set", "lab.batch.enabled=true", "--set-file", f"lab.batch.file={file}")
        (job,) = (item["metadata"]["name"] for item in cluster.get("jobs"))
        done = cluster.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=300s", timeout_s=320)
        log = cluster.kubectl("logs", f"job/{job}").stdout
        assert done.returncode == 0, log
        cluster.kubectl("delete", "job", job, check=True)
        return log

    log = executed()
    assert "groups=16" in log and "groups=32" in log
    assert "2 done before" in executed()


def test_an_image_that_cannot_be_pulled_is_told_in_the_words_of_the_pod(cluster, profile):
    said = refused(cluster, profile=profile("spark", image="no-such-registry.invalid/keyshift:0"))
    assert "no-such-registry.invalid/keyshift:0" in said
    assert "Image" in said


def test_too_few_cores_are_refused_with_the_number_that_is_needed(cluster, profile):
    said = refused(cluster, "--set", "to_slots=8", profile=profile("spark", executors=1))
    assert "10 routers and slots" in said
    assert "set spark.executors to 3" in said


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("spark", {"executers": 3}, "did you mean 'executors'"),
        ("spark", {"master": "k8s://https://127.0.0.1:1"}, "https://127.0.0.1:1 cannot be reached"),
        ("services", {"bucket": "nowhere"}, "nowhere"),
        ("services", {"kafka": "no-kafka:9092"}, "kafka at no-kafka:9092 cannot be reached"),
    ],
)
def test_what_is_misspelt_or_not_there_is_named(cluster, profile, section, values, words):
    assert words in refused(cluster, profile=profile(section, **values))


def test_missing_rights_are_named_by_verb_and_resource(cluster):
    role = f"{RELEASE}-driver"
    fewer = '[{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "watch"]}]'
    cluster.kubectl("patch", "role", role, "--type=json", "-p", fewer, check=True)
    try:
        said = refused(cluster)
    finally:
        cluster.install()
    assert "may not create, delete pods" in said
    assert cluster.namespace in said


def test_uninstalling_leaves_nothing_but_the_pods_of_helm_test(cluster):
    def left():
        kinds = ("all", "configmap", "secret", "role", "rolebinding", "serviceaccount", "networkpolicy", "pdb", "pvc")
        found = [(item["kind"], item["metadata"]["name"]) for kind in kinds for item in cluster.get(kind)]
        return [
            (kind, name) for kind, name in found if name not in ("kube-root-ca.crt", "default") and "-test-" not in name
        ]

    cluster.helm("uninstall", RELEASE, "--wait", "--timeout=3m")
    until = time.monotonic() + 60
    while left() and time.monotonic() < until:  # pods end in their own time
        time.sleep(1)
    assert not left()
