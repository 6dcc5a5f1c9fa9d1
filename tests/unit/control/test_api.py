"""HTTP of a live job whose system is a stand-in: what it answers, and that wrong requests change nothing."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from small_live import live_job

from keyshift.control.api import MOST_COMMANDS, make_app
from keyshift.control.server import Server, listen, url_of
from keyshift.experiment.commands import Scale
from keyshift.experiment.live_spec import live_spec
from keyshift.model.notes import Activity, Doing
from keyshift.traffic.messages import Latencies
from keyshift.waiting import wait_until

TOKEN = "the-token"
SMALL = {"key_groups": 16, "slots": 2, "strategy": "fluid"}


@pytest.fixture
def job(monkeypatch):
    with live_job(monkeypatch, live_spec(SMALL)) as job:
        yield job


@pytest.fixture
def chain(monkeypatch):
    with live_job(monkeypatch, live_spec(SMALL | {"workload": "chain"})) as job:
        yield job


def client_of(job):
    return TestClient(make_app(job, TOKEN), headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def client(job):
    return client_of(job)


MOST_THREADS = 40  # that Starlette has for handlers
PATIENCE_S = 20.0
GETS = ["/status", "/metrics"]
POSTS = ["/scale?slots=3", "/plan", "/cancel", "/stop", "/rate?rate=5", "/fault?fault=kill:slot"]


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_nothing_is_answered_or_done_without_the_token(job, given):
    stranger = TestClient(make_app(job, TOKEN), headers=given)
    body = {"strategy": "fluid", "target": 3}
    answers = [stranger.get(path) for path in GETS] + [stranger.post(path, json=body) for path in POSTS]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.json()["detail"] for answer in answers} == {"the job's token is needed: Authorization: Bearer TOKEN"}
    assert job.state == "running" and not job.status()["migrations"]
    assert [what for what, *_ in job.traffic.told] == ["feed", "begin"]
    assert {stranger.get(path).status_code for path in ("/docs", "/openapi.json", "/redoc", "/nowhere")} == {401}
    assert {answer.headers["WWW-Authenticate"] for answer in answers} == {"Bearer"}
    assert stranger.post("/plan", content=b"{not json").status_code == 401


@pytest.mark.parametrize("depth", [500, 900, 1000, 100_000])
def test_a_body_that_is_nested_too_deep_is_wrong(client, depth):
    answer = client.post("/scale", content=b'{"slots": ' + b"[" * depth + b"]" * depth + b"}")
    assert answer.status_code == 400
    assert len(answer.json()["detail"]) < 5000


def test_pages_that_describe_the_requests_are_off(client):
    assert {client.get(path).status_code for path in ("/docs", "/openapi.json", "/redoc")} == {404}


def test_a_plan_answers_with_its_steps_and_then_begins(job, client):
    answer = client.post("/plan", json={"strategy": "chunked", "target": 4, "settings": {"size": 2}})
    assert answer.status_code == 202
    assert [len(step["moves"]) for step in answer.json()["steps"]] == [4, 4]
    assert wait_until(lambda: client.get("/status").json()["stages"]["counter"]["slots"] == 4, 60)
    explicit = client.post("/plan", json={"strategy": "fluid", "target": {"0": 1}})
    (step,) = explicit.json()["steps"]
    assert step["moves"] == [{"unit": 0, "source": 0, "destination": 1}]


def test_settings_of_a_query_may_be_repeated(client):
    answer = client.post("/plan?strategy=chunked&target=4&settings=size=2&settings=order=reverse")
    assert answer.status_code == 202, answer.json()
    assert [len(step["moves"]) for step in answer.json()["steps"]] == [4, 4]
    units = [[move["unit"] for move in step["moves"] if move["source"] == 0] for step in answer.json()["steps"]]
    assert units[0] > units[1]


def test_each_stage_of_a_chain_is_scaled_planned_and_told_of(chain):
    client = client_of(chain)
    for answer in (client.post("/scale?slots=3"), client.post("/plan", json={"strategy": "fluid", "target": 3})):
        reason = "stage is missing: this job has counter-1, counter-2"
        assert (answer.status_code, answer.json()["detail"]) == (400, reason)
    assert client.get("/status").json()["migrations"] == []
    assert client.post("/scale", params={"slots": 4, "stage": "counter-1"}).json()["stage"] == "counter-1"
    told = client.post("/plan", json={"strategy": "all_at_once", "target": 3, "stage": "counter-2"}).json()
    assert (told["stage"], len(told["steps"])) == ("counter-2", 1)
    assert wait_until(lambda: not client.get("/status").json()["migrating"], 60)
    assert wait_until(lambda: ("keyshift_records_total", *of(3, stage="counter-1")) in samples(client), 60)
    found = samples(client)
    assert [found["keyshift_units", *of(slot, stage="counter-1")] for slot in range(4)] == [4] * 4
    assert found["keyshift_units", *of(3, stage="counter-2")] == 0
    chain.counter.doing = Doing(Activity.MOVING, "step 3 moving")
    found = samples(client)
    for stage, phase in ("counter-1", "steady"), ("counter-2", "moving"):
        of_stage = {key: value for key, value in found.items() if ("stage", stage) in key and "activity" in key[0]}
        assert [dict(key[1:])["keyshift_activity"] for key, value in of_stage.items() if value] == [phase]
    chain.loop.reporter.enter(Doing(Activity.RECOVERING))
    assert sum("recovering" in dict(key[1:]).values() for key, value in samples(client).items() if value) == 2


def test_rate_cancel_and_fault(job, client):
    assert client.post("/rate", params={"rate": 123.5}).json() == {"rate": 123.5}
    assert ("change_rate", 123.5, "events") in job.traffic.told
    refused = client.post("/rate", params={"rate": 5, "source": "event"})
    assert (refused.status_code, "unknown source 'event': did you mean 'events'?" in refused.text) == (400, True)
    assert client.post("/rate", params={"rate": 6, "source": "events"}).json() == {"rate": 6.0}
    job.inner.go.clear()
    client.post("/scale", params={"slots": 4})
    assert client.post("/cancel").json() == {"cancelled": True}
    assert wait_until(lambda: not client.get("/status").json()["migrating"], 60)
    assert client.get("/status").json()["stages"]["counter"]["slots"] == 2
    assert client.post("/fault", params={"fault": "kill:coordinator"}).json() == {"fault": "kill:coordinator"}
    assert client.get("/status").json()["deaths"] == 0
    assert client.post("/fault", params={"fault": "kill:slot"}).status_code == 202
    assert wait_until(lambda: client.get("/status").json()["deaths"] == 1, 60)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/scale", None, 400, "slots: field required (slots that are to own the state)"),
        ("/scale?slots=0", None, 400, "slots = 0: must be a number of slots from 1 to 4"),
        ("/scale?slots=9", None, 400, "4 are provisioned in this job; start a job with --set slots_max=9"),
        ("/scale?slots=3&stage=nope", None, 400, "unknown stage 'nope': known: counter"),
        ("/plan", {"strategy": "fluid", "target": {}}, 400, "must be a number of slots"),
        ("/plan", {"strategy": "fluid", "target": 3, "settings": {"size": 0}}, 400, "size = 0"),
        ("/plan", {"strategy": "meces", "target": 3}, 400, "this job has bins = 1 for its life"),
        ("/plan", {"strategy": "fluid"}, 400, "target: field required (a number of slots"),
        ("/plan", {"strategy": "fluid", "target": 3, "oops": 1}, 400, "unknown key 'oops': known: strategy, target"),
        ("/plan", {"strategy": "fluid", "target": 3, "settings": {"ordre": "id"}}, 400, "did you mean 'order'"),
        ("/plan", {"strategy": "fluid", "target": 3, "settings": [1]}, 400, "settings = [1]: "),
        ("/plan", {"strategy": "fluid", "target": 3, "stage": "nope"}, 400, "unknown stage 'nope'"),
        ("/plan", {"strategy": "fluid", "target": {"99": 1}}, 400, "99"),
        ("/rate?rate=-1", None, 400, "rate = '-1': input should be greater than 0"),
        ("/plan?strategy=chunked&target=3&settings=size=0", None, 400, "size = 0"),
        ("/scale?slots=3&slots=4", None, 400, "slots is given twice, as '3' and as '4'; leave one out"),
        ("/scale?slots=3", {"slots": 4}, 400, "slots is given twice, in the query and in the body; leave one out"),
        ("/plan?settings=size=2", {"strategy": "chunked", "target": 3, "settings": {}}, 400, "settings is given twice"),
        ("/plan", [3], 400, "the body must be a JSON object, not [3]"),
        ("/fault?fault=kill:slot@3", None, 400, "one that is asked for happens now, without @; for example kill:slot"),
        ("/fault?fault=kill:source", None, 400, "source is hit in a phase only; now can be hit slot, coordinator"),
        ("/fault?fault=restart:minio", None, 400, "fault = restart:minio: not here"),
        ("/nowhere", None, 404, "Not Found"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason_and_change_nothing(job, client, path, body, status, words):
    answer = client.post(path, json=body)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.json()
    assert "\n" not in answer.json()["detail"]
    assert client.get("/status").json()["migrations"] == []
    assert len(job.counter.assignments) == 1 and not job.counter.requests
    assert [what for what, *_ in job.traffic.told] == ["feed", "begin"]


def test_stop_answers_with_the_verdict_and_then_everything_else_is_refused(job, client):
    told = client.post("/stop").json()
    assert (told["state"], told["summary"]["verdict"]) == ("ended", "ok")
    stored = job.manifest.model_dump(mode="json")
    assert (told["manifest"], told["summary"]) == (stored, stored["summary"])
    time.sleep(0.15)  # more than what a time is rounded to
    assert client.post("/stop").json() == told, "whoever asks again gets the same"
    answer = client.post("/scale", params={"slots": 3})
    assert (answer.status_code, "is ended, not running" in answer.json()["detail"]) == (409, True)
    assert client.get("/status").json()["state"] == "ended"


@contextlib.contextmanager
def served(job):
    """Its HTTP as it is on loopback; gives a client, and a way to ask for something and not to wait for the answer."""
    listener = listen()
    server = Server(make_app(job, TOKEN), listener)
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    def ask(path):
        stranger = socket.create_connection(listener.getsockname(), PATIENCE_S)
        stranger.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        return stranger

    try:
        with httpx.Client(base_url=url_of(listener), headers=bearer, timeout=PATIENCE_S) as client:
            yield client, ask
    finally:
        server.stop()


def test_those_who_wait_for_the_end_keep_nobody_from_an_answer(job, monkeypatch):
    """Whoever has asked for a stop and is gone by now counts, too."""
    begin, asked = job.begin_stop, []
    monkeypatch.setattr(job, "begin_stop", lambda: (asked.append(True), begin()))
    job.inner.go.clear()
    job.do(Scale(slots=4))
    with served(job) as (client, ask):
        gone = [ask("/stop") for _ in range(MOST_THREADS + 1)]
        assert wait_until(lambda: len(asked) == len(gone) and job.state == "stopping", 60)
        assert {client.get(path).status_code for path in GETS} == {200}
        for each in gone:
            each.close()
        assert client.get("/status").json()["state"] == "stopping"
        job.inner.go.set()
        assert client.post("/stop", timeout=60).json()["summary"]["verdict"] == "ok"


def test_commands_that_wait_keep_nobody_else_from_an_answer_and_one_too_many_is_refused(job, monkeypatch):
    go, waiting = threading.Event(), []

    def waits(command):
        waiting.append(command.rate)
        assert go.wait(60)
        return {"rate": command.rate}

    monkeypatch.setattr(job, "do", waits)
    with served(job) as (client, ask):
        gone = [ask("/rate?rate=5") for _ in range(MOST_COMMANDS)]
        assert wait_until(lambda: len(waiting) == MOST_COMMANDS, 60)
        for each in gone:
            each.close()
        refused = client.post("/rate?rate=6")
        reason = f"{MOST_COMMANDS} commands wait for the job already, nothing was changed: ask again later"
        assert (refused.status_code, refused.json()["detail"]) == (503, reason)
        assert {client.get(path).status_code for path in GETS} == {200}
        go.set()
        assert wait_until(lambda: client.post("/rate?rate=7").status_code == 202, 60)
    assert waiting == [5.0] * MOST_COMMANDS + [7.0]


def test_a_job_that_has_failed_says_why(job, client):
    job.give_up()
    assert client.get("/status").json()["why"] == "the job was given up before it was stopped: it has no verdict"
    answer = client.post("/stop")
    assert (answer.status_code, "no verdict" in answer.json()["detail"]) == (503, True)


def samples(client):
    """Value by name and labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def of(slot, **more):
    return sorted({"stage": "counter", "slot": str(slot), **more}.items())


def test_metrics_tell_of_each_slot(job, client):
    assert wait_until(lambda: ("keyshift_records_total", *of(3)) in samples(client), 60)
    found = samples(client)
    assert (found["keyshift_events_offered_total",], found["keyshift_results",]) == (31, 30)
    assert (found["keyshift_offered_rate",], found["keyshift_records_total", *of(3)]) == (2000, 15)
    assert found["keyshift_queue_bytes", *of(0)] == 7
    assert [found["keyshift_units", *of(slot)] for slot in range(4)] == [8, 8, 0, 0]
    assert found["keyshift_moving", *of(0)] == 0
    assert not [name for name, *_ in found if "state_bytes" in name], "nobody has measured them"
    assert found["keyshift_job_state", ("keyshift_job_state", "running")] == 1
    phase = ("keyshift_activity", "steady")
    assert found["keyshift_activity", phase, ("stage", "counter")] == 1
    assert sum(value for (name, *_), value in found.items() if name == "keyshift_activity") == 1
    told = client.get("/status")
    assert "host" not in told.json()["stages"]["counter"]["of_slot"]["3"], "numbers only"
    assert TOKEN not in client.get("/metrics").text + told.text


def test_the_time_that_each_slot_was_busy_is_told(job, client):
    measure = job.counter.measure
    job.counter.measure = lambda *_: {slot: replace(said, busy_s=slot + 0.5) for slot, said in measure().items()}
    assert wait_until(lambda: samples(client).get(("keyshift_busy_seconds_total", *of(3))) == 3.5, 60)


def test_no_counter_falls_when_results_are_revoked(job, client):
    """They are when the query dies. Prometheus takes a counter that falls for one that began anew."""
    before = samples(client)
    job.traffic.received = 20
    after = samples(client)
    assert [found["keyshift_results",] for found in (before, after)] == [30, 20]
    totals = [sample for sample in before if sample[0].endswith("_total")]
    assert len(totals) > 3 and [sample for sample in totals if after[sample] < before[sample]] == []


def test_metrics_have_the_latencies_of_each_slot(job, client):
    job.traffic.latencies = {0: Latencies(60_009.0, (2, 1, *[0] * 10, 1)), 2: Latencies(1.0, (1, *[0] * 12))}
    found = samples(client)
    within = [found["keyshift_latency_seconds_bucket", *of(0, le=le)] for le in ("0.005", "0.01", "30.0", "+Inf")]
    assert within == [2, 3, 3, 4]
    assert found["keyshift_latency_seconds_sum", *of(0)] == pytest.approx(60.009)
    assert [found["keyshift_latency_seconds_count", *of(slot)] for slot in (0, 2)] == [4, 1]


def test_a_job_that_has_not_begun_has_a_status_and_metrics(monkeypatch):
    from keyshift.lab.live.job import LiveJob

    client = client_of(LiveJob(lambda *_: None, live_spec(SMALL)))
    assert client.get("/status").json()["state"] == "starting"
    assert samples(client)["keyshift_job_state", ("keyshift_job_state", "starting")] == 1
    assert client.post("/scale", params={"slots": 3}).status_code == 409
