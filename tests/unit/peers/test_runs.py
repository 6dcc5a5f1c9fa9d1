"""What the runs of all peers have in common."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from small_bucket import ENDPOINTS

from keyshift.driver.spark import idle_jvm
from keyshift.lab.machine.sampler import Sampler
from keyshift.lab.run_loop import RunLoop
from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.peers import runs
from keyshift.peers.spark_job import spark_spec
from keyshift.progress import silent
from keyshift.waiting import wait_until

SPEC = SimpleNamespace(workload=SimpleNamespace(name="keycount"), peer="spark_state", parameters=dict)


def lab(home):
    return runs.PeerLab(None, None, home, print)


def prepares(run):
    return lambda run_id: nullcontext(run)


@pytest.fixture
def recorded(monkeypatch):
    """What was stored of a run."""
    stored = []
    recording = SimpleNamespace(
        ended=lambda *_: stored.append("ended") or "manifest", died=lambda error, log: stored.append(str(error))
    )
    monkeypatch.setattr(runs, "Recording", lambda *given, **more: recording)
    monkeypatch.setattr(runs.bare_copy, "bytes_per_s", lambda path: 1e9)
    monkeypatch.setattr(runs, "Stack", lambda home: SimpleNamespace(pids=lambda: {7: "kafka"}))
    return stored


def test_a_run_that_was_judged_is_stored_though_a_service_is_away_when_it_is_tidied_up(recorded, tmp_path):
    closed, said = [], []

    def away():
        raise ServiceUnavailable("Kafka is away")

    @contextmanager
    def prepared(run_id):
        found = SimpleNamespace(tables={"metrics": 1}, _replace=lambda **changed: changed)
        with runs.tidied(away, SimpleNamespace(close=lambda: closed.append("topics")), said.append):
            yield SimpleNamespace(execute=lambda: found)

    assert runs.run_peer(SPEC, lab(tmp_path), prepared) == "manifest"
    assert recorded == ["ended"] and closed == ["topics"]
    assert said == ["cleaning up: job (ServiceUnavailable: Kafka is away)"]


def test_an_interrupt_while_a_run_is_tidied_up_does_not_hide_why_it_died(recorded, tmp_path):
    def execute():
        raise KeyshiftError("the query died")

    @contextmanager
    def prepared(run_id):
        with runs.tidied(lambda: signal.raise_signal(signal.SIGINT), SimpleNamespace(close=lambda: None), silent):
            yield SimpleNamespace(execute=execute)

    with pytest.raises(KeyboardInterrupt):
        runs.run_peer(SPEC, lab(tmp_path), prepared)
    assert recorded == ["the query died"]


def test_what_services_take_is_not_taken_for_that_of_others_and_metrics_are_written(recorded, tmp_path, monkeypatch):
    around, written = [], []
    monkeypatch.setattr(runs, "written", lambda *given: written.append(given))

    def execute():
        around.append(run.services())
        run.metrics()
        raise KeyshiftError("it is over")

    run = SimpleNamespace(execute=execute)
    with pytest.raises(KeyshiftError, match="it is over"):
        runs.run_peer(SPEC, lab(tmp_path), prepares(run))
    assert around == [{7: "kafka"}] and recorded == ["it is over"]
    ((_, of, home),) = written
    assert (of, home) == (run, tmp_path)


@pytest.fixture
def counting(monkeypatch, tmp_path):
    """Gives the loop of a run in another engine with this script, ready to be executed, and its topics of events."""

    @contextmanager
    def prepared(script, **values):
        made, topics = [], []

        def traffic(workload, events, *given, **more):
            topics.extend(events)
            return SimpleNamespace(close=lambda: None, pids={})

        monkeypatch.setattr(runs, "Traffic", traffic)
        opened = runs.OpenEngine(
            lambda *given: SimpleNamespace(close=lambda: None), lambda spec, lab, prepared: made.append(prepared)
        )
        spec = spark_spec("spark_state", {"skew": 0.0} | values)
        runs.run_counting(spec, runs.PeerLab(ENDPOINTS, None, tmp_path, silent), opened, script)
        with made[0]("run-1") as loop:
            yield loop, topics

    return prepared


def test_a_run_in_another_engine_follows_the_script_that_it_is_given(counting):
    with counting(lambda loop: iter([loop])) as (loop, _):
        assert isinstance(loop, RunLoop) and [*loop._script] == [loop]


@pytest.mark.parametrize("given", [{"routers": 3}, {"source_routers": "events:3"}], ids=str)
def test_another_engine_gets_its_events_in_as_many_partitions_as_ours_has_routers(counting, given):
    with counting(lambda loop: iter([]), **given) as (_, topics):
        assert [topic.partitions for topic in topics] == [3]


FILES = """
import sys
from pathlib import Path
from unittest.mock import Mock
from keyshift.peers import runs
session = runs.session = Mock()
runs.jars = Mock()
for _ in range(2):
    with runs.local_spark(1, Path(sys.argv[1]), print, {}):
        pass
first, second = (Path(call.args[2]) for call in session.call_args_list)
assert first == second and first.is_dir()
print(first)
"""


def test_sparks_files_have_one_folder_that_goes_with_its_process_or_if_that_is_killed_with_the_next(tmp_path):
    left = tmp_path / "keyshift-work" / "spark-files-left"
    left.mkdir(parents=True)
    (left / "in-use").touch()
    done = subprocess.run([sys.executable, "-c", FILES, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent == left.parent and folder.name.startswith("spark-files-")
    assert not folder.exists() and not left.exists()


@contextmanager
def java(folder, does):
    """A program that the sampler takes for a JVM."""
    program = folder / "java"
    if not program.exists():
        program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", does]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_jvm_of_spark_that_was_there_before_is_not_the_jobs(recorded, monkeypatch, tmp_path):
    """PySpark keeps it behind the last session, for as long as the process lasts."""
    seen, asked = [], []

    def around():
        asked.append(run.services())
        return asked[-1]

    def execute():
        with Sampler(around) as sampler:
            assert wait_until(lambda: len(asked) > 1, 60.0)  # it looks, and has rows of that at the end of the block
        seen.extend(sampler.rows)
        raise KeyshiftError("it is over")

    run = SimpleNamespace(execute=execute)
    of_other_tests = {each.pid: "of other tests" for each in psutil.Process().children(recursive=True)}
    with ExitStack() as stack:
        idle = stack.enter_context(java(tmp_path, "kept = b'x' * (128 << 20); import time; time.sleep(600)"))
        assert wait_until(lambda: psutil.Process(idle.pid).memory_info().rss > 128 << 20, 60.0)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=idle))
        stack.enter_context(java(tmp_path, "import time; time.sleep(600)"))
        with pytest.raises(KeyshiftError, match="it is over"):
            runs.run_peer(SPEC, lab(tmp_path), prepares(run), beside=lambda: idle_jvm() | of_other_tests)
        assert idle_jvm() == {idle.pid: "idle Spark"}
    assert idle_jvm() == {}, "it has ended"
    memory = [value for _, metric, of, value in seen if (metric, str(of)) == ("rss_mib", "spark_jvm")]
    assert memory and 0 < max(memory) < 100
    assert "idle Spark" in {str(of) for _, metric, of, _ in seen if metric == "harness_cores"}


def test_an_interrupt_while_spark_stops_waits_until_it_has(monkeypatch, tmp_path):
    ended = []

    def stop():
        os.kill(os.getpid(), signal.SIGINT)
        ended.append("spark")

    monkeypatch.setattr(runs, "jars", lambda conf, say: [])
    monkeypatch.setattr(runs, "session", lambda *told: SimpleNamespace(stop=stop))
    with pytest.raises(KeyboardInterrupt), runs.local_spark(2, tmp_path, silent, {}):
        assert not ended
    assert ended == ["spark"]


@pytest.mark.parametrize("error", [Py4JError("nobody is there"), ConnectionRefusedError()])
def test_that_a_jvm_has_died_does_not_hide_why_the_run_did(monkeypatch, tmp_path, error):
    def stop():
        raise error

    monkeypatch.setattr(runs, "jars", lambda conf, say: [])
    monkeypatch.setattr(runs, "session", lambda *told: SimpleNamespace(stop=stop))
    with pytest.raises(KeyshiftError, match="the query died"), runs.local_spark(2, tmp_path, silent, {}):
        raise KeyshiftError("the query died")
