"""Jobs in the background without a job: their files, their clients, and processes that die before they are ready."""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from unittest import mock

import psutil
import pytest
from small_jobs import ENTRY, file_of, journal_of, keep
from small_live import live_job, manifest_of
from typer.testing import CliRunner

from keyshift import folders
from keyshift.cli import app
from keyshift.cli.jobs import stop
from keyshift.control import background, forgetting
from keyshift.control import client as client_module
from keyshift.control.api import make_app
from keyshift.control.background import TOKEN, StartOrder, control_token, start
from keyshift.control.client import Client, await_end, await_migration, await_status, stop_job
from keyshift.control.files import ALL, FORMAT, Jobs, Kept, last_line
from keyshift.control.forgetting import forget
from keyshift.control.server import LOOPBACK, Server, listen, url_of
from keyshift.endpoints import Endpoints
from keyshift.experiment.commands import Scale
from keyshift.experiment.live_spec import live_spec
from keyshift.folders import locked
from keyshift.lab import environment
from keyshift.model.errors import BadInput, JobOver, KeyshiftError, MigrationFailed, RunsElsewhere, ServiceUnavailable
from keyshift.program import GoesOn
from keyshift.progress import silent
from keyshift.services import processes
from keyshift.services import stack as stacks
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from keyshift.wire.memory import Memory, MemoryCoordination

SMALL = {"key_groups": 16, "slots": 2, "strategy": "fluid"}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    return Jobs()


@pytest.mark.parametrize("token", ["one\ntwo", "tokén", "one\x7ftwo"])
def test_a_token_that_no_request_can_have_is_refused_before_anything_is_started(jobs, monkeypatch, token):
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(BadInput, match=rf"{TOKEN}: character 4 .*printable ASCII") as refused:
        control_token()
    assert token not in str(refused.value)
    monkeypatch.setattr(background, "detached", mock.Mock(side_effect=AssertionError))
    with pytest.raises(BadInput, match=TOKEN):
        start(SMALL, silent)
    assert jobs.all() == []


def test_a_token_has_no_blanks_around_it(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    assert control_token() == ""
    for given, token in ((" of a file\n", "of a file"), ("\n", "")):
        monkeypatch.setenv(TOKEN, given)
        assert control_token() == token


def test_a_job_runs_though_the_clock_was_set(jobs, monkeypatch):
    jobs.write(file_of("one"))
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: 1.0)
    assert [job.name for job in jobs.running()] == ["one"]


def test_a_file_is_for_its_owner_alone_and_keeps_all_there_is_to_know(jobs):
    job = file_of("one")
    jobs.write(job)
    (path,) = (jobs.home / "jobs").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert jobs.read("one") == job
    path.write_text("{")
    assert jobs.read("one") is None and jobs.all() == []
    jobs.write(job)
    for other in ({"pid": 1}, {"created": 1.0}, {"born": "1"}, {"entry": "ab"}):
        jobs.remove(job.model_copy(update=other))
        assert path.exists(), "its name is another one's by now, or another process goes on with it"
    jobs.remove(job)
    jobs.remove(job)
    assert not path.exists()


def test_of_a_job_that_is_forgotten_no_file_is_left_that_a_killed_process_was_writing(jobs, gone):
    for name in ("one", "one-2"):
        jobs.write(file_of(name, gone, entry="ab"))
        for kind in ("json", "ab.journal", "ab.leftovers"):
            (jobs.home / "jobs" / f".{name}.{kind}.x1y2").write_text("a secret")
    jobs.remove(jobs.read("one"))
    left = sorted(path.name for path in (jobs.home / "jobs").iterdir())
    assert left == [*(f".one-2.{kind}.x1y2" for kind in ("ab.journal", "ab.leftovers", "json")), "one-2.json"]


def test_the_only_job_that_runs_needs_no_name(jobs, gone):
    with pytest.raises(BadInput, match="no job runs here; start one with `keyshift job start`"):
        jobs.choose(None)
    jobs.write(file_of("dead", gone))
    jobs.write(file_of("one"))
    assert jobs.choose(None).name == "one"
    assert jobs.choose("dead").name == "dead"
    with pytest.raises(BadInput, match="unknown job 'on': did you mean 'one'"):
        jobs.choose("on")
    jobs.write(file_of("two"))
    with pytest.raises(BadInput, match="2 jobs run here, name one: one, two"):
        jobs.choose(None)


def test_names_are_words_and_belong_to_one_job_while_it_runs(jobs, gone):
    assert jobs.free_name("", "keycount") == "keycount-1"
    jobs.write(file_of("keycount-1", gone))
    assert jobs.free_name("", "keycount") == "keycount-2", "what has ended is not forgotten by that"
    assert jobs.free_name("keycount-1", "keycount") == "keycount-1"
    jobs.write(file_of("mine"))
    with pytest.raises(BadInput, match=f"name = mine: a job of this name runs, process {os.getpid()}"):
        jobs.free_name("mine", "keycount")
    path = jobs.home / "jobs" / "mine.json"
    path.write_text("{")
    with pytest.raises(BadInput, match=f"name = mine: {path} cannot be read .*; choose another name, or delete"):
        jobs.free_name("mine", "keycount")
    for name in ("A b", "../up", "-x", "x" * 50):
        with pytest.raises(BadInput, match="must be lower-case letters"):
            jobs.free_name(name, "keycount")


def test_it_is_told_how_a_job_ended_that_nobody_has_stopped(jobs, gone, tmp_path):
    log = tmp_path / "log"
    log.write_text("ready\nkeyshift: Kafka is away\n")
    assert last_line(log) == "Kafka is away"
    killed = file_of("one", gone, log=str(log))
    why = f"its process {gone} was killed; the end of its log: Kafka is away"
    assert jobs.ended(killed) == (why, "nothing", "nothing is left of it")
    assert str(jobs.ended(killed.model_copy(update={"why": "it died"}))) == "it died; nothing is left of it"


def test_a_job_of_another_host_has_not_ended_as_far_as_is_known_here(jobs, gone, monkeypatch):
    """While it starts there, it has not written down yet what it makes."""
    job = file_of("one", gone, host="there")
    jobs.write(job)
    words = f"its process {gone} is of host there, where nobody here can look; ask there, or delete .*one.json"
    for removes in (lambda: stop("one"), lambda: forget("one", silent), lambda: jobs.free_name("one", "keycount")):
        with pytest.raises(KeyshiftError, match=words):
            removes()
    assert jobs.read("one") == job
    assert not jobs.on_other_host(file_of("two", host="there")), "it is found here: the host had another name"
    assert str(jobs.ended(job.model_copy(update={"why": "it died"}))) == "it died; nothing is left of it"
    keep(jobs, "one")
    assert jobs.resumable("one")[0] == job
    assert "of host there" in jobs.ended(job).why and jobs.ended(job).remains == ALL
    monkeypatch.setattr(platform, "node", lambda: "there")
    assert "was killed" in jobs.ended(job).why


def test_a_job_is_what_it_was_when_a_process_was_killed_that_never_got_hold_of_it(jobs, gone):
    before = file_of("one", entry="ab")
    jobs.write(file_of("one", gone, entry="ab", before=before))
    assert jobs.read("one") == before and jobs.running() == [before]
    jobs.write(file_of("one", gone, entry="ab", before=file_of("one", gone, entry="ab", before=before)))
    assert jobs.read("one") == before, "nor did another one"
    jobs.write(file_of("one", entry="ab", before=before.model_copy(update={"pid": gone})))
    for name, entry, pid in (("two", "ab", os.getpid()), ("one", "cd", os.getpid()), ("one", "ab", 1)):
        jobs.hold(name, entry, pid)
        assert jobs.read("one").before, "of another one"
    jobs.hold("one", "ab", os.getpid())
    assert jobs.read("one") == before


@pytest.mark.parametrize(("host", "why", "its_own"), [("", "it was interrupted", True), ("there", "", False)])
def test_a_job_is_its_processs_again_if_one_that_was_to_go_on_with_it_has_ended(jobs, gone, host, why, its_own):
    before = file_of("one", entry="ab")
    other = file_of("one", gone, entry="ab", before=before, host=host, why=why)
    jobs.write(other)
    jobs.hold("one", "ab", os.getpid())
    assert (jobs.home / "jobs" / "one.json").read_text() == (before if its_own else other).model_dump_json()


def test_a_job_whose_journal_does_not_name_its_sources_is_not_forgotten(jobs, gone):
    """Its topics would be left for ever."""
    jobs.write(file_of("one", gone))
    (jobs.home / "jobs" / f"one.{ENTRY}.journal").write_text('{"run_id": "2026-one"}')
    with pytest.raises(BadInput, match=r"is damaged, so nobody knows what the job has left"):
        forget("one", silent)
    assert jobs.read("one")


def test_what_a_notebook_has_defined_keeps_its_name_in_the_files_of_a_job(jobs):
    """Jobs that were started before this keyshift have it, too."""
    parcels, file = {"workload": {"mine": "its code"}}, jobs.journal("one", ENTRY)
    file.expect(Kept(run_id="2026-one", sources={}, parcels=parcels))
    assert json.loads((jobs.home / "jobs" / f"one.{ENTRY}.leftovers").read_text())["own"] == parcels
    assert file.left().parcels == parcels
    file.keep(Kept(run_id="2026-one", sources={}, parcels=parcels), journal_of("2026-one"))
    assert json.loads((jobs.home / "jobs" / f"one.{ENTRY}.journal").read_text())["own"] == parcels
    assert file.require().parcels == parcels


def test_what_a_journal_has_is_read_by_who_goes_on_with_the_job_alone(jobs, gone):
    """What is damaged in it does not keep others from listing the job, or forgetting it."""
    jobs.write(file_of("one", gone))
    keep(jobs, "one", work="there")
    file, path = jobs.journal("one"), jobs.home / "jobs" / f"one.{ENTRY}.journal"
    assert file.content() == journal_of("2026-one")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"past": "secret"}))
    assert file.require() == Kept(run_id="2026-one", token="secret", sources={}, work="there")
    with pytest.raises(BadInput, match=r"the journal is damaged: .*past") as refused:
        file.content()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("away", [False, True])
def test_all_topics_of_a_job_that_is_forgotten_are_watched_for_as_long_as_its_frames_want(
    jobs, gone, monkeypatch, away
):
    """If Kafka is away, it is known from ZooKeeper whether the job runs."""
    told = []

    def await_silence(topic, frame_ms):
        told.append((topic.partitions, frame_ms))
        if away:
            raise ServiceUnavailable("Kafka is away")

    presence = mock.Mock(**{"return_value.await_none.side_effect": RunsElsewhere("there")})
    endpoints = Endpoints("k:1", "z:1", "m:1", "a", "s")
    monkeypatch.setattr(Topic, "await_silence", await_silence)
    monkeypatch.setattr(forgetting, "Presence", presence)
    monkeypatch.setattr(forgetting, "Coordination", mock.Mock())
    monkeypatch.setattr(forgetting, "open_services", lambda *_, **__: nullcontext(endpoints))
    jobs.write(file_of("one", gone))
    keep(jobs, "one", sources={"a": 1, "b": 2}, values={"frame_ms": 5000}, replicas=2)
    with pytest.raises(BadInput, match="there; stop it there"):
        forget("one", silent)
    presence.assert_called_once_with(endpoints, "2026-one-r0", "secret")
    assert told == [(1, 5000.0), (2, 5000.0)]


@pytest.fixture
def forgets(jobs, gone, monkeypatch):
    """Forgets a job, whose first driver has the name ``driver``; ``meanwhile`` is done when none is there any more, and
    ``deletes`` when all is to be deleted. Both are told of ZooKeeper.
    """

    def forgets(meanwhile, deletes, driver="2026-one", replicas=1):
        memory = Memory()
        (session := MemoryCoordination(memory)).claim(driver, first=True)
        endpoints = Endpoints("k:1", "z:1", "m:1", "a", "s")
        joined = lambda _hosts, root, _secret, epoch=None: MemoryCoordination(memory, root, epoch)  # noqa: E731
        none_there = mock.Mock(await_none=lambda say: meanwhile(session))
        monkeypatch.setattr(Topic, "await_silence", lambda *_: None)
        monkeypatch.setattr(forgetting, "Coordination", joined)
        monkeypatch.setattr(forgetting, "Presence", lambda *_: none_there)
        monkeypatch.setattr(forgetting, "open_services", lambda *_, **__: nullcontext(endpoints))
        monkeypatch.setattr(forgetting, "_parts", lambda *_: {"all of it": lambda: deletes(session)})
        jobs.write(file_of("one", gone))
        keep(jobs, "one", replicas=replicas)
        return forget("one", silent)

    return forgets


@pytest.mark.parametrize(("driver", "replicas"), [("2026-one", 1), ("2026-one-r0", 2)])
def test_a_job_that_another_host_resumes_is_not_forgotten_and_none_that_is_forgotten_is_resumed(
    jobs, forgets, driver, replicas
):
    """Both may have waited until ZooKeeper had given up the process before."""
    deletes = mock.Mock()
    with pytest.raises(BadInput, match=r"the job runs elsewhere: .*; stop it there"):
        forgets(lambda session: session.claim(driver), deletes, driver, replicas)
    assert jobs.journal("one").read() and not deletes.called

    def deletes_for_good(session):
        with pytest.raises(JobOver):
            session.claim(driver)

    forgets(lambda session: None, deletes_for_good, driver, replicas)
    assert jobs.all() == []


def test_nothing_is_left_of_a_job_that_is_forgotten_while_another_process_resumes_it_and_dies(jobs, gone, forgets):
    resumed = file_of("one", gone, created=2.0)
    assert forgets(lambda _: jobs.write(resumed), lambda _: None) == ["all of it", "the entry of job one"]
    assert [path.name for path in (jobs.home / "jobs").iterdir()] == [".lock"]


def test_a_job_is_forgotten_also_where_no_run_has_room_any_more(jobs, gone, monkeypatch):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: mock.Mock(free=64 * folders.MIB))
    monkeypatch.setattr(stacks, "require_java", lambda: "java")
    monkeypatch.setattr(stacks.Stack, "_start", mock.Mock(side_effect=ServiceUnavailable("services start")))
    jobs.write(file_of("one", gone))
    keep(jobs, "one")
    with pytest.raises(ServiceUnavailable, match="services start"):
        forget("one", silent)


def test_only_a_job_that_has_begun_and_whose_process_is_gone_is_resumed(jobs, gone):
    with pytest.raises(BadInput, match="unknown job to resume 'one': known: none has a snapshot and no process"):
        jobs.resumable("one")
    for name, pid in (("one", gone), ("two", gone), ("2026", gone), ("three", os.getpid())):
        jobs.write(file_of(name, pid))
        keep(jobs, name)
    (path, *_) = (jobs.home / "jobs").glob("one.*.journal")
    assert path.stat().st_mode & 0o777 == 0o600
    assert jobs.resumable("2026")[0].name == "2026", "though the runs of others begin so"
    assert jobs.resumable("one")[1] == jobs.resumable("2026-o")[1]
    assert jobs.resumable("one")[1] == Kept(run_id="2026-one", token="secret", sources={})
    assert jobs.ended(jobs.read("one")).go_on.startswith("`keyshift resume one` goes on with it")
    with pytest.raises(BadInput, match=f"job three runs, process {os.getpid()}"):
        jobs.resumable("three")
    assert jobs.resumable("three", take_over=True)[1].run_id == "2026-three"
    for unclear in ("2026-t", "", "nobody"):
        with pytest.raises(BadInput, match="unknown job to resume"):
            jobs.resumable(unclear)
    with pytest.raises(BadInput, match=r"name = one: there is a job of this name, .* `keyshift resume one` goes on"):
        jobs.free_name("one", "keycount")
    keep(jobs, "one", format=1)
    words = f"job one: its journal has format = 1, and this keyshift reads {FORMAT}; resume it with"
    with pytest.raises(BadInput, match=words):
        jobs.resumable("one")
    path.write_text('{"run_id": ')
    with pytest.raises(BadInput, match=rf"job one: nothing can go on with it; .*one\.{ENTRY}\.journal is damaged"):
        jobs.resumable("one")
    jobs.remove(jobs.read("one"))
    assert jobs.journal("one", ENTRY).read() is None
    with pytest.raises(BadInput, match=rf"job one: .*one\.{ENTRY}\.journal is not there any more"):
        jobs.journal("one", ENTRY).require()
    assert jobs.free_name("one", "keycount") == "one"


def test_where_the_port_of_the_profile_is_taken_a_job_listens_at_another_one(jobs, monkeypatch, tmp_path):
    """Of a second job in one pod, or of one that a batch starts which tells its metrics there."""
    said, ports = [], []

    def begin(*_, pass_fds, **__):
        with socket.fromfd(*pass_fds, socket.AF_INET, socket.SOCK_STREAM) as listener:
            ports.append(listener.getsockname()[1])

    monkeypatch.setattr(background, "detached", begin)
    with listen() as taken:
        port = taken.getsockname()[1]
        (tmp_path / "place.yaml").write_text(f"control: {{port: {port}}}")
        words = f"port = {port}: {LOOPBACK} cannot be listened on"
        for asked, error, why in ((0, AttributeError, "NoneType"), (port, BadInput, words)):  # at first no process
            with pytest.raises(error, match=why):
                start(SMALL, said.append, profile=str(tmp_path / "place.yaml"), port=asked)
    (other,) = ports
    assert said == [f"port {port} is taken, using {other}"]


def test_a_client_asks_a_job_over_http(monkeypatch):
    with live_job(monkeypatch, live_spec(SMALL)) as job:
        listener = listen()
        server = Server(make_app(job, "secret"), listener)
        known = file_of("one", url=url_of(listener))
        client = Client(known)
        with pytest.raises(BadInput, match="job one: the job's token is needed"):
            Client(known.model_copy(update={"token": "other"})).status()
        migration = client.do(Scale(slots=4))
        said = []
        told = await_status(client, lambda told: not told["migrating"], said.append)
        assert told["migrations"][migration["number"]]["outcome"] == "complete"
        assert said == ["  steady"]
        with pytest.raises(BadInput, match="job one: slots = 9"):
            client.do(Scale(slots=9))
        ended = stop_job(client, said.append)
        assert (ended["manifest"], ended["summary"]) == (job.manifest, job.manifest.summary)
        server.stop()
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            client.status()


def test_what_is_asked_in_words_is_checked_by_the_job_alone(monkeypatch, tmp_path):
    """It may have strategies of a notebook, of which this process knows nothing."""
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    asked = CliRunner()
    with live_job(monkeypatch, live_spec(SMALL)) as job:
        listener = listen()
        server = Server(make_app(job, "secret"), listener)
        Jobs().write(file_of("one", url=url_of(listener)))
        refused = asked.invoke(app, ["job", "plan", "--strategy", "mine", "--target", "4"])
        assert str(refused.exception).startswith("job one: unknown strategy 'mine'")
        plan = ["job", "plan", "--strategy", "chunked", "--target", "4", "--set", "size=2"]
        [line] = [line for line in asked.invoke(app, plan).output.splitlines() if line.startswith("{")]
        told = json.loads(line)
        assert (told["outcome"], told["planned_steps"]) == ("complete", 2)
        job.stop()
        [line] = asked.invoke(app, ["job", "status", "--json"]).output.splitlines()
        assert json.loads(line)["manifest"] == job.manifest.model_dump(mode="json")
        server.stop()


@pytest.mark.parametrize(
    ("asked", "where", "words"),
    [
        (["scale", "--slots", "4"], "await_migration", "job one goes on with what it was asked for: `keyshift job"),
        (["cancel"], "Client.ask", "job one goes on with what it was asked for: "),
        (["stop"], "stop_job", "job one goes on to its verdict: `keyshift job stop one` waits for it again"),
        (["stop"], "await_end", "job one has its verdict, and its process is about to end"),
    ],
)
def test_an_interrupt_of_who_waits_for_a_job_says_that_the_job_goes_on(jobs, monkeypatch, asked, where, words):
    jobs.write(file_of("one"))
    monkeypatch.setattr(Client, "ask", lambda *_: {"number": 0})
    summary = manifest_of("2026-one", live_spec(SMALL)).summary
    monkeypatch.setattr(client_module, "stop_job", lambda *_: {"examples": [], "summary": summary})
    monkeypatch.setattr(f"{client_module.__name__}.{where}", mock.Mock(side_effect=KeyboardInterrupt))
    told = CliRunner().invoke(app, ["job", *asked])
    assert isinstance(told.exception, GoesOn) and str(told.exception).startswith(words)
    assert ("2026-one" in told.stdout) is (where == "await_end"), "it is not told once more"


def process_of(monkeypatch, script):
    """Instead of a job's process one that does what ``script`` says; gives the list of those that were started."""
    started = []

    def begin(program, *rest, **how):
        started.append(processes.detached([sys.executable, "-c", script], *rest, **how))
        return started[-1]

    monkeypatch.setattr(background, "detached", begin)
    monkeypatch.setattr(environment, "require_java", lambda: None)
    return started


def test_what_is_below_the_process_of_a_job_is_kept_apart_from_the_runs_of_who_has_started_it(jobs, monkeypatch):
    started = process_of(monkeypatch, "import subprocess; subprocess.run(['sleep', '600'])")
    ready = {"return_value.status.return_value": {"state": "running"}}
    monkeypatch.setattr(background, "Client", mock.Mock(**ready))
    before = processes.apart()
    start(SMALL, silent)
    with started[0] as process:
        job = psutil.Process(process.pid)
        assert wait_until(job.children, 60)
        both = {job, *job.children()}
        assert processes.apart() - before == both <= set(processes.all_below())
        processes.kill(both)
    assert not processes.apart() & both


@pytest.mark.parametrize(("status", "kind"), [(2, BadInput), (3, KeyshiftError)])
def test_a_job_that_dies_before_it_is_ready_is_told_in_one_line_and_leaves_nothing(jobs, monkeypatch, status, kind):
    script = f"import sys; sys.stderr.write('starting Spark\\nkeyshift: Spark did not start\\n'); sys.exit({status})"
    process_of(monkeypatch, script)
    said, hosts, write = [], set(), Jobs.write
    monkeypatch.setattr(Jobs, "write", lambda jobs, job: hosts.add(job.host) or write(jobs, job))
    with pytest.raises(kind, match="job keycount-1 did not start: Spark did not start") as failed:
        start(SMALL, said.append)
    assert "\n" not in str(failed.value)
    assert (said, hosts, jobs.all()) == (["starting Spark"], {platform.node()}, [])


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        ({"fault": "kill:slot@3"}, {}, "fault is of a run with a scenario"),
        ({}, {"name": "A b"}, "name = 'A b'"),
        ({}, {"port": 70000}, "port = 70000"),
    ],
)
def test_what_is_not_possible_is_refused_before_a_process_is_started(jobs, monkeypatch, values, more, words):
    started = process_of(monkeypatch, "")
    with pytest.raises(BadInput, match=words):
        start(values, print, **more)
    assert not started and jobs.all() == []


@pytest.mark.parametrize("named", ["by name", "in the environment", "not at all"])
def test_a_job_has_its_profile_wherever_it_is_resumed(jobs, monkeypatch, tmp_path, named):
    """Also if another one is in the environment then."""
    script = "import pathlib, sys; pathlib.Path('order').write_text(sys.stdin.readline()); sys.exit(3)"
    process_of(monkeypatch, script)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("{}")
    if named == "in the environment":
        monkeypatch.setenv("KEYSHIFT_PROFILE", "my.yaml")
    with pytest.raises(KeyshiftError, match="did not start"):
        start(SMALL, print, profile="my.yaml" if named == "by name" else None)
    told = StartOrder.model_validate_json((tmp_path / "order").read_text())
    assert told.profile == ("local" if named == "not at all" else str(tmp_path / "my.yaml"))
    assert (told.name, told.values) == ("keycount-1", SMALL) and told.entry and told.token and told.pid


def test_the_end_of_a_process_is_waited_for(gone, monkeypatch):
    await_end(file_of("one", gone))
    monkeypatch.setattr(client_module, "END_S", 0.0)
    with pytest.raises(ServiceUnavailable, match=f"process {os.getpid()} of job one did not end; its log is nowhere"):
        await_end(file_of("one"))


def test_a_stop_without_a_verdict_is_not_waited_for_longer_than_is_said(monkeypatch):
    never = threading.Event()
    job = mock.Mock(**{"status.return_value": {"state": "stopping"}, "stop.side_effect": lambda: never.wait(60)})
    monkeypatch.setattr(client_module, "LOOK_S", 0.01)
    with pytest.raises(TimeoutError):
        stop_job(job, print, within_s=0.1)
    never.set()


def told_of_moving(monkeypatch, *looks):
    """A client whose statuses have these states and outcomes, one after the other; and the migration."""
    migration = {"stage": "counter", "number": 0, "slots": 4}
    told = [
        {"state": state, "why": why, "migrations": [migration | dict(zip(("outcome", "why"), came, strict=False))]}
        for state, why, *came in looks  # one that has begun before there was a why has it in the outcome
    ]
    monkeypatch.setattr(client_module, "LOOK_S", 0.0)
    return mock.Mock(**{"status.side_effect": told}), migration


def test_a_migration_is_waited_for_while_somebody_else_stops_the_job(monkeypatch):
    looks = [("running", None, "under way"), *[("stopping", None, "under way")] * 2, ("stopping", None, "complete")]
    client, migration = told_of_moving(monkeypatch, *looks)
    assert (await_migration(client, migration, silent)["outcome"], client.status.call_count) == ("complete", len(looks))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (("failed", "it died 6 times", "under way"), "is under way; the job has failed: it died 6 times"),
        (("ended", None, "under way"), "is under way; the job has ended"),
        (("stopping", None, "incomplete", "it was taken back"), "is incomplete: it was taken back"),
        (("stopping", None, "incomplete: it was taken back"), "is incomplete: it was taken back"),
    ],
)
def test_a_migration_that_does_not_come_to_its_end_has_failed_and_it_is_said_why(monkeypatch, last, words):
    client, migration = told_of_moving(monkeypatch, ("stopping", None, "under way"), last)
    with pytest.raises(MigrationFailed) as failed:
        await_migration(client, migration, silent)
    assert str(failed.value) == f"the migration of counter to 4 slots {words}"


def test_a_start_that_fails_leaves_the_entry_to_the_job_that_has_its_name_now(jobs, monkeypatch):
    process_of(monkeypatch, "raise SystemExit(3)")
    monkeypatch.setattr(subprocess.Popen, "terminate", lambda process: jobs.write(file_of("one")))
    with pytest.raises(KeyshiftError, match="job one did not start"):
        start(SMALL, silent, "one")
    assert jobs.read("one") == file_of("one")


def test_nobody_takes_the_name_of_a_job_while_its_entry_goes(jobs, monkeypatch):
    """That one's would go: nobody could stop or resume it any more."""
    tried = []

    def remove(jobs, job):
        with pytest.raises(ServiceUnavailable), locked(jobs.home / "jobs" / ".lock", "another start", silent, 0.0):
            tried.append("taken")
        tried.append(job.name)

    monkeypatch.setattr(Jobs, "remove", remove)
    started = process_of(monkeypatch, "import time; print('starting'); time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        start(SMALL, mock.Mock(side_effect=KeyboardInterrupt), "one")
    assert tried == ["one"] and started[0].returncode == -signal.SIGTERM
