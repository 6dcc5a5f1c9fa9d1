"""The Spark application of a replica: what it is told, what it says, and that nothing of it is left; without Spark."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import psutil
import pytest
from small_job import CONFIG

from keyshift.lab.ending import Unwanted
from keyshift.lab.replicas import application, spark
from keyshift.lab.replicas.application import GiveWayNoMore, QueryEnded, QueryStarted, RunQuery, StopQuery
from keyshift.model.errors import QueryDied, ServiceUnavailable
from keyshift.model.messages import decode, encode
from keyshift.place import pods
from keyshift.place.profile import SparkProfile
from keyshift.traffic.messages import Ready, Stop
from keyshift.waiting import wait_until

TOLD = application.ApplicationConfig(
    spark_profile=SparkProfile(), cores=4, jars=(), work=Path("work"), log=Path("spark-0.log"), more={"a": "1"}
)
GIVES_WAY = TOLD.model_copy(update={"gives_way": True})
PODS = SparkProfile(master="k8s://https://127.0.0.1:1", namespace="lab", image="keyshift:1", executors=2)
RUN = RunQuery(replace(CONFIG, job="run", token="secret").of_replica(1), Path("checkpoint"), 30.0, {0: 7, 1: 0})


def test_a_query_travels_with_all_of_its_configuration():
    assert decode(application.ApplicationCommand, encode(RUN)) == RUN
    assert "secret" not in repr(RUN)


class Query:
    """As Spark's."""

    def __init__(self, looks, error=None):
        self.looks, self.error, self.stopped = looks, error, False

    @property
    def isActive(self):
        self.looks -= 1
        return self.looks > 0

    def exception(self):
        return self.error

    def stop(self):
        self.stopped, self.looks = True, 0


@pytest.fixture
def served(monkeypatch):
    """What is said in a process that is told these commands, and what of a query."""

    def serve(commands, query, told=TOLD):
        said, begun, left = [], [], iter([*commands, Stop()])

        def placed(*given):
            session = SimpleNamespace(given=given, range=lambda rows: said.append("warm") or Mock())
            return SimpleNamespace(session=session, await_executors=lambda: said.append("executors"))

        monkeypatch.setattr(application, "say", said.append)
        monkeypatch.setattr(application, "PlacedSpark", placed)
        monkeypatch.setattr(application, "start_query", lambda *given: begun.append(given) or query)
        application.serve(told, SimpleNamespace(next=lambda timeout_s: next(left)))
        return said, begun

    return serve


def test_a_query_begins_where_it_is_told_and_says_why_it_ends(served):
    error = RuntimeError("Traceback\nkeyshift.model.errors.StateLost: unit 3 is gone\nrest")
    said, begun = served([RUN, None, None], Query(3, error))
    assert said == ["executors", Ready(), QueryStarted(), QueryEnded("keyshift.model.errors.StateLost: unit 3 is gone")]
    [(session, *given)] = begun
    assert (*session.given[:2], session.given[-1]) == (SparkProfile(), 4, {"a": "1"})
    assert given == [RUN.config, Path("checkpoint"), 30.0, {0: 7, 1: 0}]


def test_a_query_that_is_stopped_has_no_reason(served):
    assert served([RUN, None, StopQuery()], Query(9))[0][2:] == [QueryStarted(), QueryEnded("")]


def test_a_query_that_runs_is_stopped_with_the_process(served):
    query = Query(99)
    assert QueryEnded("") not in served([RUN, None], query)[0]
    assert query.stopped


def test_one_that_gives_way_does_so_until_it_is_told_otherwise(served, monkeypatch):
    nice, own = [], SimpleNamespace(children=lambda recursive: [], threads=list)
    monkeypatch.setattr(application, "AUTOGROUP", SimpleNamespace(write_text=nice.append))
    monkeypatch.setattr(application.psutil, "Process", lambda: own)
    served([GiveWayNoMore()], Query(1))
    assert nice == ["0"]
    said, _ = served([RUN, GiveWayNoMore()], Query(9), GIVES_WAY)
    assert nice == ["0", "10", "0"]
    assert said[:3] == ["executors", "warm", Ready()], "it takes no time from those that wait for it"


def test_who_is_nice_is_so_with_all_that_it_has_started(served, monkeypatch, tmp_path):
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    session, child = tmp_path / "autogroup", psutil.Process(sleeping.pid)
    own = SimpleNamespace(children=lambda recursive: [child], threads=list)
    monkeypatch.setattr(application, "AUTOGROUP", session)
    monkeypatch.setattr(application.psutil, "Process", lambda: own)
    try:
        served([], Query(1), GIVES_WAY)
        assert session.read_text() == "10" and os.getpriority(os.PRIO_PROCESS, sleeping.pid) == 10
    finally:
        sleeping.kill()
        sleeping.wait()


class Process:
    """As ``JsonProcess``, with the number of none: it says what ``answers`` has for what it is told."""

    def __init__(self, module, config, reports, heard):
        self.heard, self.told, self.running, self.pid, self.answers = heard, [], True, 2**22 + 1, {}
        self.config = config
        made.append(self)

    def tell(self, command):
        self.told.append(command)
        for report in self.answers.get(type(command), ()):
            self.heard(report)

    def check(self):
        if not self.running:
            raise ServiceUnavailable("the application process died: exit status -9")

    def stop(self):
        self.tell(Stop())
        self.running = False

    def kill(self):
        self.running = False


made: list[Process] = []


@pytest.fixture
def begun(monkeypatch):
    """An application and its process."""
    monkeypatch.setattr(spark, "JsonProcess", Process)
    monkeypatch.setattr(spark, "START_S", 0.2)
    monkeypatch.setattr(spark, "STOP_S", 0.2)
    made.clear()
    one = spark.application_of(SparkProfile(), 4, [], Path("."), Path("home"), "0")
    one.end()
    assert not made, "it has not begun"
    one.begin()
    return one, made[0]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config_of(one):
    """What its process gets."""
    one.begin()
    return made[-1].config


def given():
    return RUN.config, RUN.checkpoint, RUN.batch_s, RUN.offsets


@pytest.fixture
def running(begun):
    """An application whose query is under way, its process, and the query."""
    one, process = begun
    process.heard(Ready())
    one.await_ready()
    process.answers = {RunQuery: [QueryStarted()]}
    return one, process, one.start_query(*given())


def test_a_query_in_another_process_is_one_for_whoever_asks(running):
    one, process, query = running
    process.answers = {StopQuery: [QueryEnded("")]}
    assert process.told == [RUN] and query.isActive
    query.stop()
    assert not query.isActive and query.exception() is None
    query.stop()
    assert process.told == [RUN, StopQuery()]
    one.end()
    assert process.told[-1] == Stop()


def test_one_whose_spark_still_starts_is_killed_at_its_end(begun):
    one, process = begun
    one.end()
    assert process.told == [] and not process.running


def test_why_a_query_has_ended_is_known(running):
    _, process, query = running
    process.heard(QueryEnded("a worker is gone"))
    assert not query.isActive and query.exception() == "a worker is gone"


def test_a_process_that_is_killed_has_no_query_and_is_asked_nothing_more(running):
    one, process, query = running
    one.kill()
    assert not query.isActive and query.exception() == "the process of the replica is gone"
    query.stop()
    one.end()
    assert process.told == [RUN]


def test_each_has_a_folder_and_a_log_of_its_own_and_gives_way_or_not(begun):
    given = SparkProfile(), 4, [], Path("."), Path("home"), "1"
    first, second = (config_of(spark.application_of(*given, number, number > 0)) for number in (0, 1))
    assert (first.log, first.work, first.gives_way) == (Path("home/spark-1.log"), Path("spark-1"), False)
    assert (second.log, second.work, second.gives_way) == (Path("home/spark-1-1.log"), Path("spark-1-1"), True)


@pytest.fixture
def executors(monkeypatch):
    """Of applications whose executors are pods."""
    made = Mock()
    monkeypatch.setattr(pods, "ExecutorPods", made)
    return made


def in_pods(*more):
    return spark.application_of(PODS, 4, [], Path("."), Path("home"), *more)


def test_pods_are_named_by_their_replica_and_found_by_their_application(begun, executors):
    opened = [in_pods("0"), in_pods("1"), in_pods("0", 1, True), in_pods("spare-0", 0, True)]
    given = [config_of(one).more for one in opened]
    labels = [each["spark.kubernetes.executor.label.keyshift/replica"] for each in given]
    assert labels == ["0", "1", "0", "spare-0"]
    applications = [each["spark.app.id"] for each in given]
    assert len({*applications}) == 4
    assert executors.mock_calls == [call(PODS, each) for each in applications]


@pytest.mark.parametrize("fails", [None, ServiceUnavailable("the API server cannot be reached")])
def test_with_the_process_go_the_pods_of_its_executors(begun, executors, fails):
    one, its_own = in_pods("0"), executors.return_value
    one.kill()
    assert its_own.mock_calls == [], "it has not begun"
    one.begin()
    its_own.delete.side_effect = fails
    one.delete_executor("10.0.0.7")
    one.kill()
    one.kill()
    assert its_own.mock_calls == [call.delete_one("10.0.0.7"), call.delete()] and one.pid is None


def test_one_that_does_not_start_is_named_with_its_log(begun):
    one, process = begun
    with pytest.raises(
        ServiceUnavailable, match=r"Spark of a replica did not start within 0\.2 s; its log is home/spark-0"
    ):
        one.await_ready()
    with pytest.raises(QueryDied, match="the query of a replica did not begin within"):
        one.start_query(*given())
    process.running = False
    with pytest.raises(QueryDied, match="the application process died"):
        one.start_query(*given())


def test_one_that_nobody_wants_any_more_is_not_waited_for(begun):
    (one, _), unwanted = begun, Mock(side_effect=Unwanted("the job was given up"))
    for wait in (lambda: one.await_ready(unwanted), lambda: one.start_query(*given())):
        with pytest.raises(Unwanted):
            wait()


def test_a_query_that_does_not_stop_is_ended_with_its_process(running):
    _, process, query = running
    query.stop()
    assert not process.running


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def parent(monkeypatch):
    """An application, its process with a child, the child, and what the application sees of its process. Both
    processes end with the test.
    """
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    seen = SimpleNamespace(pid=parent.pid, running=True, kill=lambda: (parent.kill(), parent.wait()))
    monkeypatch.setattr(spark, "JsonProcess", lambda *given: seen.__setattr__("heard", given[-1]) or seen)
    one = spark.Application(TOLD)
    one.begin()
    yield one, parent, child, seen
    for each in (parent, child):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    parent.wait()
    parent.stdout.close()


def gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_nothing_is_left_of_a_process_that_is_killed_nor_of_what_it_has_started(parent):
    one, process, child, _ = parent
    one.kill()
    assert process.wait(60) == -9 and gone(child)


def test_one_that_is_stopped_goes_on_after_a_while_with_all_that_it_has_started(parent):
    one, process, child, seen = parent
    both = psutil.Process(process.pid), child

    def stopped():
        return all(each.status() == psutil.STATUS_STOPPED for each in both)

    # Again, if this process was not asked for so long that both go on.
    assert wait_until(lambda: one.pause(1.0) or wait_until(stopped, 0.5, 0.02), 60, 2.0)
    assert wait_until(lambda: all(each.status() != psutil.STATUS_STOPPED for each in both), 60, 0.02)
    one.pause(5.0)
    one.kill()
    assert gone(child)
    seen.running = False
    one.pause(1.0)  # nothing is there


@pytest.mark.parametrize("how", ["kill", "end"])
def test_what_a_process_that_has_died_leaves_behind_writes_no_more(parent, how):
    """A JVM notices seconds later that nobody is there any more; its query goes on until then."""
    one, process, child, seen = parent
    seen.heard(Ready())
    process.kill()
    process.wait()
    seen.running = False
    assert not gone(child)
    getattr(one, how)()
    assert gone(child)
    getattr(one, how)()
