"""A job in the background, as a new user tries it: start, scale, a worker is killed, and the driver, status, stop."""

import json

import httpx
import psutil
import pytest
from kafka import KafkaAdminClient

import executed_copy
from keyshift.control.files import FORMAT, Jobs
from keyshift.objects import Bucket
from keyshift.waiting import wait_until
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ALL
from spark_workers import workers_of

# A load that one core carries, whoever uses it beside: a migration waits for what is queued.
SMALL = [
    *("rate=300", "frame_ms=100", "keys=4000", "state_bytes=256", "key_groups=32"),
    *("snapshot_s=2", "warmup_s=1", "deadline_s=120"),
]
WAIT_S = 300.0  # the machine may be busy


@pytest.fixture
def keyshift(session_stack):
    """Runs a command in the state folder of the shared stack; gives what it printed, for a script and for a person."""

    def run(*arguments, status=0):
        done = executed_copy.keyshift(session_stack.home, *arguments, status=status)
        return done.stdout if status == 0 else done.stderr

    jobs = Jobs(session_stack.home)
    yield run
    for job in jobs.running():  # of a test that has failed
        psutil.Process(job.pid).terminate()
        psutil.Process(job.pid).wait(120)


def begun(keyshift, settings):
    """A job; what is said of it."""
    given = [part for setting in settings for part in ("--set", setting)]
    return json.loads(keyshift("job", "start", "--workload", "keycount", *given, "--json"))


def status(keyshift):
    return json.loads(keyshift("job", "status", "--json"))


def states(keyshift):
    return [each["state"] for each in status(keyshift)["replicas"].values()]


def client_of(job):
    return httpx.Client(base_url=job.url, headers={"Authorization": f"Bearer {job.token}"}, timeout=120)


def interrupted(keyshift, job):
    """A job, by SIGTERM; what the list of jobs says of it then."""
    process = psutil.Process(job.pid)
    process.terminate()
    process.wait(120)
    return listed(keyshift, job)


def listed(keyshift, job):
    """What the list of jobs says of this one."""
    (row,) = [row for row in map(json.loads, keyshift("job", "list", "--json").splitlines()) if row["job"] == job.name]
    return row


def settled(keyshift):
    """The status of the job when no migration is under way: one that the process before left may still go on."""

    def settled():
        told = status(keyshift)
        return told if not any(each["outcome"] == "under way" for each in told["migrations"]) else None

    told = wait_until(settled, WAIT_S)
    assert told, status(keyshift)
    return told


def left_of(run, endpoints):
    """The topics, the nodes and the snapshots of a run, and of its replicas."""
    admin, nodes = KafkaAdminClient(bootstrap_servers=endpoints.kafka), Coordination(endpoints.zookeeper, "/keyshift")
    try:
        topics = [topic for topic in admin.list_topics() if run in topic]
        found = any(node.startswith(run) for node in nodes.children(ALL))
        return topics, found, list(Bucket(endpoints, f"savepoints/{run}").names())
    finally:
        admin.close()
        nodes.close()


def test_a_job_is_started_scaled_survives_killed_processes_and_stops_with_its_verdict(keyshift, session_stack):
    row = begun(keyshift, SMALL)
    job = Jobs(session_stack.home).read(row["job"])

    scaled = json.loads(keyshift("job", "scale", "--slots", "4"))
    assert (scaled["outcome"], scaled["planned_moves"]) == ("complete", 16)

    assert "4 are provisioned in this job" in keyshift("job", "scale", "--slots", "5", status=2)
    assert "cannot be listened on" in keyshift("job", "start", "--port", row["url"].rpartition(":")[2], status=2)
    assert "because a job needs them" in keyshift("down", status=2)
    assert httpx.get(f"{row['url']}/status").status_code == 401
    with_token = client_of(job)
    assert 'keyshift_units{slot="3",stage="counter"} 8.0' in with_token.get("/metrics").text

    assert wait_until(lambda: with_token.get("/status").json()["snapshots"] > 0, WAIT_S)
    workers_of(job.pid)[0].kill()
    assert wait_until(lambda: with_token.get("/status").json()["deaths"] == 1, WAIT_S)
    assert wait_until(lambda: with_token.get("/status").json()["attempt"] == 1, WAIT_S)
    planned = with_token.post("/plan", json={"strategy": "all_at_once", "target": 3}).json()
    assert len(planned["steps"]) == 1
    assert wait_until(lambda: with_token.get("/status").json()["stages"]["counter"]["slots"] == 3, WAIT_S)
    told = status(keyshift)
    assert (told["state"], told["deaths"], len(told["migrations"])) == ("running", 1, 2)
    assert any("everything since its snapshot was done again" in note for note in told["notes"])

    def moves():
        told = with_token.get("/status").json()
        third = told["migrations"][2:]
        return "moving" in told["activity"] or (third and third[0]["outcome"] == "complete")  # between two looks

    with_token.post("/scale?slots=4").raise_for_status()
    assert wait_until(moves, WAIT_S)
    for worker in workers_of(job.pid):
        worker.suspend()  # the migration is under way, and the next snapshot waits for it
    orphans = psutil.Process(job.pid).children(recursive=True)
    psutil.Process(job.pid).kill()
    assert wait_until(lambda: not Jobs(session_stack.home).alive(job), WAIT_S)
    dead = listed(keyshift, job)
    assert dead["state"] == "ended" and dead["go_on"].startswith(f"`keyshift resume {job.name}` goes on with it")
    journal = session_stack.home / "jobs" / f"{job.name}.{job.entry}.journal"
    ours = journal.read_text()
    journal.write_text(ours.replace(f'"format": {FORMAT}', '"format": 1', 1))
    assert f"its journal has format = 1, and this keyshift reads {FORMAT}" in keyshift("resume", row["run"], status=2)
    journal.write_text(ours)
    resumed = json.loads(keyshift("resume", row["run"], "--json"))
    assert (resumed["job"], resumed["run"]) == (row["job"], row["run"])
    job = Jobs(session_stack.home).read(row["job"])
    told = settled(keyshift)
    outcomes = [each["outcome"] for each in told["migrations"]]
    reached = told["stages"]["counter"]["slots"] == 4  # if it had moved everything before the workers stood
    assert outcomes == ["complete", "complete", "complete" if reached else "incomplete"] and not told["migrating"]
    assert orphans and not psutil.wait_procs(orphans, timeout=WAIT_S)[1], "nothing of the killed process is left"
    assert any("another one went on with it; everything since its snapshot" in note for note in told["notes"])
    assert json.loads(keyshift("job", "scale", "--slots", "4"))["outcome"] == "complete"

    summary = json.loads(keyshift("job", "stop").splitlines()[-1])
    assert (summary["verdict"], summary["run_id"]) == ("ok", row["run"])
    # What the killed process had switched is rebuilt where it belongs: if that was everything, nothing else may move.
    assert summary["units_moved"] >= 16 + 8 + (not reached) and summary["events"] > 0

    assert not psutil.pid_exists(job.pid) or psutil.Process(job.pid).status() == psutil.STATUS_ZOMBIE
    assert Jobs(session_stack.home).all() == []
    assert session_stack.endpoints(), "others may still use the services"
    stored = json.loads(keyshift("results", "show", row["run"]))
    assert stored["status"] == "ok"
    assert not any(left_of(row["run"], session_stack.endpoints()))


@pytest.mark.nightly("three minutes; tests/unit/control has every ending without Spark")
def test_a_job_that_was_interrupted_goes_on_and_of_one_that_is_forgotten_nothing_is_left(keyshift, session_stack):
    row = begun(keyshift, SMALL)
    endpoints, jobs = session_stack.endpoints(), Jobs(session_stack.home)
    job = jobs.read(row["job"])
    assert wait_until(lambda: status(keyshift)["snapshots"] > 0, WAIT_S)
    dead = interrupted(keyshift, job)
    assert (dead["why"], dead["remains"]) == ("it was interrupted", "all that it goes on from")
    assert all(left_of(row["run"], endpoints))
    assert f"`keyshift resume {job.name}` goes on with it" in keyshift("job", "stop", job.name, status=3)
    assert json.loads(keyshift("resume", job.name, "--json"))["run"] == row["run"]

    assert f"`keyshift job stop {row['job']}` ends it" in keyshift("job", "forget", row["job"], status=2)
    interrupted(keyshift, jobs.read(row["job"]))
    topics, nodes, _ = left_of(row["run"], endpoints)
    assert len(topics) == 2 and nodes
    told = keyshift("job", "forget", row["job"])
    assert all(f"deleted: topic {topic}" in told for topic in topics)
    assert not any(left_of(row["run"], endpoints))
    assert Jobs(session_stack.home).all() == []


REPLICATED = [
    *("rate=200", "frame_ms=100", "heartbeat_ms=100", "keys=2000", "state_bytes=64", "key_groups=16"),
    *("warmup_s=1", "deadline_s=120", "replicas=2"),
]


@pytest.mark.nightly("three minutes; the harness resumes two replicas without Spark, and tests/unit/control all else")
@pytest.mark.parametrize(("ordering", "damaged"), [("live_robin", False), ("kazoo", False), ("live_robin", True)])
def test_another_process_goes_on_with_replicas_whose_state_has_moved_since(keyshift, session_stack, ordering, damaged):
    row = begun(keyshift, [*REPLICATED, f"ordering={ordering}", "snapshot_s=8"])
    endpoints, job = session_stack.endpoints(), Jobs(session_stack.home).read(row["job"])

    def kept():
        return Jobs(session_stack.home).journal(job.name).content()

    assert wait_until(lambda: status(keyshift)["snapshots"] > 0, WAIT_S)
    assert json.loads(keyshift("job", "scale", "--slots", "4"))["outcome"] == "complete"
    if damaged:
        assert wait_until(lambda: kept().of_replicas.before, WAIT_S)
    below = psutil.Process(job.pid).children(recursive=True)
    psutil.Process(job.pid).kill()
    assert below and not psutil.wait_procs(below, timeout=WAIT_S)[1], "nothing of it runs any more"
    dead = listed(keyshift, job)
    assert (dead["state"], dead["remains"]) == ("ended", "all that it goes on from")
    assert "--take-over is not possible with replicas = 2" in keyshift("resume", job.name, "--take-over", status=2)
    if damaged:
        left = kept()
        last = Bucket(endpoints, f"savepoints/{left.of_replicas.of}/")
        last.remove([f"{left.past.begun_from.name}/manifest.json"])

    assert json.loads(keyshift("resume", job.name, "--json"))["run"] == row["run"]
    assert states(keyshift) == ["lives", "lives"]
    notes = status(keyshift)["notes"]
    assert any("everything since its snapshot was done again" in note for note in notes)
    assert any("the job went on from what was written before" in note for note in notes) is damaged
    assert json.loads(keyshift("job", "scale", "--slots", "3"))["outcome"] == "complete"
    keyshift("job", "fault", "--fault", "kill:replica")
    assert wait_until(lambda: states(keyshift) == ["coming back", "lives"], WAIT_S)
    assert wait_until(lambda: states(keyshift) == ["lives", "lives"], WAIT_S)
    assert json.loads(keyshift("job", "stop").splitlines()[-1])["verdict"] == "ok"
    notes = json.loads(keyshift("results", "show", row["run"]))["notes"]
    assert any("2 replicas were judged, each as if it had been alone: 0 bad" in note for note in notes)
    assert not any(left_of(row["run"], endpoints)) and Jobs(session_stack.home).all() == []


def ended(process):
    """Whether it has, though nobody may have heard of it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.nightly("five minutes; the harness pauses drivers without Spark")
def test_a_driver_that_stood_while_another_one_took_its_job_ends_and_deletes_nothing(keyshift, session_stack):
    """Its query and its generator go on while it stands."""
    row = begun(keyshift, SMALL)
    jobs, name, run = Jobs(session_stack.home), row["job"], row["run"]

    def told():
        with client_of(jobs.read(name)) as client:
            return client.get("/status").json()

    old = psutil.Process(jobs.read(name).pid)
    assert wait_until(lambda: told()["snapshots"] > 0, 120)
    (generator,) = [each for each in old.children() if "keyshift.traffic.generator" in each.cmdline()]
    old.suspend()

    assert "--take-over takes it from a process that lives and does nothing" in keyshift("resume", name, status=2)
    assert not ended(generator)
    assert json.loads(keyshift("resume", name, "--take-over", "--json"))["run"] == run
    new = jobs.read(name)
    assert new.pid != old.pid
    assert wait_until(lambda: ended(generator), WAIT_S), "it goes on offering events"

    before = told()
    old.resume()
    assert wait_until(lambda: ended(old), 240)
    words = (session_stack.home / "logs" / f"job-{name}.log").read_text().splitlines()
    assert words[-1] == (
        f"keyshift: job {run} runs in another process now (epoch 2, ours was 1); "
        "this one ends and leaves everything to it"
    )
    assert not any("Traceback" in line or "cleaning up" in line for line in words)
    assert jobs.read(name) == new and jobs.journal(name).read().run_id == run
    assert run in keyshift("results", "show", run, status=2), "it has not said that the job died"

    assert wait_until(lambda: told()["snapshots"] > before["snapshots"] + 1, 120)
    assert wait_until(lambda: told()["results"] > before["results"], WAIT_S)
    assert json.loads(keyshift("job", "scale", "--slots", "4"))["outcome"] == "complete"
    assert (told()["state"], told()["deaths"]) == ("running", 0)
    summary = json.loads(keyshift("job", "stop").splitlines()[-1])
    assert (summary["verdict"], summary["run_id"], summary["lost"], summary["duplicated"]) == ("ok", run, 0, 0)
    assert summary["events"] > 0 and jobs.all() == []
    assert not list(Bucket(session_stack.endpoints(), f"savepoints/{run}/").names())
