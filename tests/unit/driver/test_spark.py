"""How a Spark starts, without one: beside no other of this process, and what is said if it does not."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keyshift.driver import spark as module
from keyshift.driver.spark import session, telling_line
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.services import processes

LIVES, GONE = SimpleNamespace(poll=lambda: None), SimpleNamespace(poll=lambda: -9)  # a JVM
CALLED = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext."
CAUSE = "org.apache.spark.SparkException: Could not parse Master URL"


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Asks for a session. ``launch`` takes the place of the start of a JVM; ``jvm``: the one that is there."""

    def asked(launch, jvm=None, active=None, master="local[2]"):
        monkeypatch.setattr(SparkContext, "_gateway", jvm and SimpleNamespace(proc=jvm))
        monkeypatch.setattr(SparkContext, "_active_spark_context", active)
        monkeypatch.setattr(SparkContext, "_jvm", None)  # not that of other tests
        monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
        monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda conf: launch())
        session(master, [], tmp_path, tmp_path / "spark.log")

    for name in ("PYSPARK_PYTHON", "MALLOC_ARENA_MAX"):  # which it sets
        monkeypatch.setenv(name, "")
    return asked


def test_beside_another_spark_of_this_process_none_starts(start):
    with pytest.raises(BadInput, match=r"a Spark runs in this process already .*: stop it first"):
        start(lambda: pytest.fail("it was started"), LIVES, "of somebody")


def test_one_whose_jvm_has_gone_keeps_nobody_from_starting_another(start):
    def launch():
        assert SparkContext._gateway is None is SparkContext._active_spark_context
        raise OSError("so far")

    with pytest.raises(ServiceUnavailable, match="so far"):
        start(launch, GONE, SimpleNamespace(stop=lambda: None))


@pytest.mark.parametrize(("error", "raised"), [(OSError, ServiceUnavailable), (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_jvm_that_is_killed_as_its_start_fails_or_is_interrupted_is_not_asked_by_the_next(start, error, raised):
    def launch():
        SparkContext._gateway, SparkContext._active_spark_context = SimpleNamespace(proc=LIVES), "begun"
        raise error

    with pytest.raises(raised):
        start(launch)
    assert SparkContext._gateway is None is SparkContext._active_spark_context


def test_a_start_that_fails_ends_what_it_has_begun_and_nothing_of_a_job_in_the_background(start):
    begun = []

    def launch():
        begun.extend(subprocess.Popen(["sleep", "600"]) for _ in range(2))
        processes.keep_apart(begun[0].pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(launch)
    assert begun[1].wait(60) == -signal.SIGKILL and begun[0].poll() is None
    begun[0].kill()
    begun[0].wait()


def test_a_jvm_is_that_of_the_installed_pyspark_whatever_spark_the_environment_is_set_up_for(start, monkeypatch):
    others, seen = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_DIRS"), []
    addresses = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")
    for name in ("SPARK_HOME", *addresses, *others):
        monkeypatch.setenv(name, "/opt/other")

    def launch():
        seen.append(dict(os.environ))
        raise OSError("so far")

    for master in ("local[2]", "k8s://https://api"):
        with pytest.raises(ServiceUnavailable, match="so far"):
            start(launch, master=master)
        assert Path(seen[-1]["SPARK_HOME"], "bin", "spark-submit").is_file()
        assert not seen[-1].keys() & {*others}
    here, pods = ([each.get(name) for name in addresses] for each in seen)
    assert here == ["127.0.0.1", None], "whatever the name of this machine is"
    assert pods == ["/opt/other"] * 2, "executors have to reach it there"
    found = {os.environ[name] for name in ("SPARK_HOME", *addresses, *others)}
    assert found == {"/opt/other"}, "for whatever else runs here"


def test_nobody_else_may_open_the_sockets_of_a_spark(start, monkeypatch):
    """Those of its JVM, and that at which this process hears of accumulators."""
    seen = []

    def umask():
        seen.append(os.umask(0o077))
        os.umask(seen[-1])

    def begin(conf):
        umask()
        raise OSError("so far")

    monkeypatch.setattr(SparkContext, "getOrCreate", begin)
    before = os.umask(0o002)
    try:
        with pytest.raises(ServiceUnavailable, match="so far"):
            start(umask)
    finally:
        after = os.umask(before)
    assert (seen, after) == ([0o077, 0o077], 0o002)


def test_what_was_begun_in_a_jvm_that_stays_is_stopped_if_its_start_is_interrupted(start):
    stopped = []

    def launch():
        SparkContext._active_spark_context = SimpleNamespace(stop=lambda: stopped.append("ours"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(launch, LIVES)
    assert stopped == ["ours"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{CALLED}\n: {CAUSE}\n\tat org.apache.spark.SparkContext.<init>\nCaused by: java.io.IOException: no", CAUSE),
        ("[JAVA_GATEWAY_EXITED] Java has exited.\nmore", "[JAVA_GATEWAY_EXITED] Java has exited."),
        ("", "OfJava"),
    ],
)
def test_a_spark_that_does_not_start_says_why_while_its_jvm_can_be_asked(start, monkeypatch, said, told):
    killed = []

    class OfJava(Exception):
        def __str__(self):
            if killed:
                raise Py4JError("nobody is there")
            return said

    def launch():
        raise OfJava

    monkeypatch.setattr(module, "kill", killed.append)
    with pytest.raises(ServiceUnavailable) as caught:
        start(launch)
    assert str(caught.value).startswith(f"Spark did not start (local[2]): {told}; its log is ")
    assert killed


def test_of_a_task_that_died_the_cause_is_said_and_no_advice():
    died = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."
    lost = f"Lost task 0.0 in stage 7.0 (TID 20) (localhost executor driver): {died}"
    aborted = "Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times, most recent failure: "
    assert telling_line(f"{aborted}{lost} Consider setting 'a' or'b' to 'true'.\n\tat java.lang") == lost
    assert telling_line(f"{aborted}{lost}\nValueError: 3") == "ValueError: 3"
    assert telling_line("the stream is gone") == "the stream is gone"
