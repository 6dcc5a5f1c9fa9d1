"""What is asked of a Flink cluster, and what is made of its answers; without one."""

import json
from collections.abc import Callable

import httpx
import pytest

from keyshift.model.errors import ServiceUnavailable
from keyshift.peers import flink_client
from keyshift.peers.flink_client import FlinkClient, Rescaled, cause

TRACE = (
    "org.apache.flink.E: outer\n\tat a.B.c(D.java:1)\nCaused by: java.lang.F: middle\nCaused by: java.lang.G: inner\n"
)
Answers = Callable[[str, str], object]


@pytest.fixture
def client(tmp_path):
    """A client of a cluster that gives these answers: ``(method, path)`` → several, one for each time; the last stays.
    Its ``asked``: what it was asked, with the bodies.
    """
    clients = []

    def make(answers: dict[tuple[str, str], list[object]]) -> FlinkClient:
        asked: list[tuple[str, str, bytes]] = []

        def handle(request: httpx.Request) -> httpx.Response:
            asked.append((request.method, request.url.path, request.content))
            given = answers[request.method, request.url.path]
            answer = given.pop(0) if len(given) > 1 else given[0]
            if isinstance(answer, Exception):
                raise answer
            return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

        transport = httpx.MockTransport(handle)
        clients.append(FlinkClient("http://jobs", "http://sql", tmp_path, transport))
        clients[-1].asked = asked
        return clients[-1]

    yield make
    for each in clients:
        each.close()


SESSION = {("POST", "/v3/sessions"): [{"sessionHandle": "s"}]}
STATEMENT = {("POST", "/v3/sessions/s/statements"): [{"operationHandle": "o"}]}
RESULT = ("GET", "/v3/sessions/s/operations/o/result/0")


def test_a_statement_is_carried_out_under_its_settings_and_waited_for_and_may_make_no_job(client):
    ready = {"resultType": "PAYLOAD", "jobID": "j", "results": {"data": []}}
    none = {"resultType": "PAYLOAD", "results": {"data": []}}
    flink = client(SESSION | STATEMENT | {RESULT: [{"resultType": "NOT_READY"}, ready, none]})
    flink.open_session()
    assert flink.execute("INSERT INTO a", **{"parallelism.default": "4"}) == "j"
    assert [path for _, path, _ in flink.asked][-2:] == [RESULT[1], RESULT[1]]
    body = flink.asked[1][2]
    assert b'"executionConfig":{"parallelism.default":"4"}' in body and b"INSERT INTO a" in body
    assert flink.execute("CREATE TABLE a") == ""


def test_what_flink_refuses_is_one_line_with_the_last_cause(client):
    refused = httpx.Response(500, json={"errors": ["Internal server error.", TRACE]})
    flink = client(SESSION | {("POST", "/v3/sessions/s/statements"): [refused]})
    flink.open_session()
    with pytest.raises(ServiceUnavailable, match=r"^Flink answered 500: java\.lang\.G: inner"):
        flink.execute("SELECT")


def test_a_cluster_is_ready_when_both_answer_and_its_slots_are_free(client):
    overview = ("GET", "/overview")
    info = {("GET", "/v3/info"): [{}]}
    few = {"slots-available": 1, "flink-version": "2.2.0"}
    flink = client(info | {overview: [httpx.ConnectError("refused"), few, few | {"slots-available": 4}]})
    assert [flink.ready(4) for _ in range(3)] == [False, False, True]
    assert flink.version() == "2.2.0"


def vertex(running: int) -> dict[str, object]:
    return {"parallelism": 2, "tasks": {"RUNNING": running, "INITIALIZING": 2 - running}}


def test_a_job_runs_when_all_tasks_of_all_vertices_do(client):
    some, both = {"vertices": [vertex(2), vertex(1)]}, {"vertices": [vertex(2), vertex(2)]}
    flink = client({("GET", "/jobs/j/status"): [{"status": "RUNNING"}], ("GET", "/jobs/j"): [some, both]})
    flink.await_running("j", 60)
    assert [path for _, path, _ in flink.asked].count("/jobs/j") == 2


def test_a_job_that_has_failed_says_why(client):
    history = {"exceptionHistory": {"entries": [{"stacktrace": TRACE}]}}
    answers = {("GET", "/jobs/j/status"): [{"status": "FAILED"}], ("GET", "/jobs/j/exceptions"): [history]}
    with pytest.raises(ServiceUnavailable, match=r"^Flink's job is FAILED: java\.lang\.G: inner$"):
        client(answers).require_alive("j")
    ended = {("GET", "/jobs/j/status"): [{"status": "FINISHED"}], ("GET", "/jobs/j/exceptions"): [{}]}
    with pytest.raises(ServiceUnavailable, match="FINISHED: it gives no reason"):
        client(ended).require_alive("j")


STOP = {("POST", "/jobs/j/stop"): [{"request-id": "t"}]}
MADE = ("GET", "/jobs/j/savepoints/t")


def test_a_stop_waits_for_its_savepoint_and_knows_its_size_and_one_that_fails_says_why(client, tmp_path):
    (tmp_path / "savepoint-j-1").mkdir()
    (tmp_path / "savepoint-j-1" / "_metadata").write_bytes(b"x" * 300)
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": f"file:{tmp_path}/savepoint-j-1"}}
    waiting = {"status": {"id": "IN_PROGRESS"}, "operation": None}
    flink = client(STOP | {MADE: [waiting, waiting, done]})
    savepoint, _ = flink.stop("j")
    assert savepoint.endswith("/savepoint-j-1") and flink.size(savepoint) == 300
    for _ in range(2):  # there may be none
        flink.remove_savepoints()
        assert flink.size(savepoint) == 0 and not (tmp_path / "savepoint-j-1").exists()
    assert len(flink.asked) == 4
    assert all(each in flink.asked[0][2] for each in (b'"drain":false', tmp_path.as_uri().encode()))
    failed = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": {"stack-trace": TRACE}}}
    with pytest.raises(ServiceUnavailable, match=r"stopped with a savepoint: java\.lang\.G: inner"):
        client(STOP | {MADE: [failed]}).stop("j")


def running(vertices: int, parallelism: int, tasks: int) -> dict[str, object]:
    each = {"parallelism": parallelism, "tasks": {"RUNNING": tasks}}
    return {"vertices": [each] * vertices, "timestamps": {"CREATED": 7500}}


NEEDED = {"parallelism": {"lowerBound": 1, "upperBound": 2}}
RESCALING = {
    ("GET", "/jobs/j/resource-requirements"): [{"a": NEEDED, "b": NEEDED}],
    ("PUT", "/jobs/j/resource-requirements"): [{}],
    ("GET", "/jobs/j/status"): [{"status": "RUNNING"}],
    ("GET", "/jobs/j"): [running(2, 2, 2), running(2, 4, 3), running(2, 4, 4)],
}
HISTORY = [{"id": number, "trigger_timestamp": 1000 * number, "state_size": 100 * number} for number in (6, 5)]


def test_a_running_job_is_rescaled_when_all_its_tasks_are_as_many_and_one_that_began_anew_was_not(client):
    told = {"latest": {"restored": {"id": 5}}, "history": HISTORY}
    flink = client(RESCALING | {("GET", "/jobs/j/checkpoints"): [told]})
    assert flink.rescale("j", 4, 60) == Rescaled(7.5, 5.0, 5, 500)
    [(_, _, body)] = [each for each in flink.asked if each[0] == "PUT"]
    assert json.loads(body) == {name: {"parallelism": {"lowerBound": 1, "upperBound": 4}} for name in "ab"}
    assert [path for _, path, _ in flink.asked].count("/jobs/j") == 3
    told = {"latest": {"restored": None}, "history": []}
    with pytest.raises(ServiceUnavailable, match="begun anew, as it had no complete checkpoint"):
        client(RESCALING | {("GET", "/jobs/j/checkpoints"): [told]}).rescale("j", 4, 60)


LATE = {
    RESULT: [{"resultType": "NOT_READY"}],
    MADE: [{"status": {"id": "IN_PROGRESS"}, "operation": None}],
    ("GET", "/jobs/j"): [running(2, 4, 3)],
}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda flink: flink.execute("INSERT"), "Flink's gateway did not carry out 'INSERT' within 0.05 s"),
        (lambda flink: flink.await_running("j", 0.05), "Flink's job did not run within 0.05 s"),
        (lambda flink: flink.stop("j"), "could not be stopped with a savepoint: not within 0.05 s"),
        (lambda flink: flink.rescale("j", 4, 0.05), "Flink's job did not run with 4 tasks within 0.05 s"),
    ],
)
def test_what_flink_has_not_done_in_time_is_named(client, monkeypatch, ask, words):
    monkeypatch.setattr(flink_client, "STATEMENT_S", 0.05)
    monkeypatch.setattr(flink_client, "SAVEPOINT_S", 0.05)
    flink = client(SESSION | STATEMENT | STOP | RESCALING | LATE)
    flink.open_session()
    with pytest.raises(ServiceUnavailable, match=words):
        ask(flink)


def test_a_job_is_cancelled_even_if_flink_is_gone(client):
    flink = client({("PATCH", "/jobs/j"): [httpx.Response(202, json={}), httpx.ConnectError("gone")]})
    flink.cancel("j")
    flink.cancel("j")
    assert len(flink.asked) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACE, "java.lang.G: inner"),
        (TRACE.replace("\n", "\\n"), "java.lang.G: inner"),
        ("plain words\nmore", "plain words"),
        ("", "nothing"),
    ],
)
def test_of_a_stack_trace_the_last_cause_is_told(text, said):
    assert cause(text) == said
