"""Each way in which a live job ends, as docs/endings.md has it: what remains, what is said, how to go on.

The job is a process of its own, its services are a folder (``small_world``).
"""

import contextlib
import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
from small_jobs import file_of
from small_live import Stage, live_job
from small_world import PARTS, REPLICATED, VALUES, WAIT_S, world_of
from typer.testing import CliRunner

from keyshift.cli import app
from keyshift.control import background, forgetting, process
from keyshift.control.client import Client
from keyshift.control.files import ALL, FORMAT, LEFTOVERS, NOTHING, Jobs
from keyshift.experiment.commands import Cancel, InjectFault, MoveBy, Rate
from keyshift.experiment.live_spec import live_spec
from keyshift.lab.live import inbox
from keyshift.lab.live import journal as live_journal
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, PlanRejected, ServiceUnavailable
from keyshift.model.records import Measured
from keyshift.planner import plan
from keyshift.services import processes
from keyshift.services.stack import Stack
from keyshift.waiting import wait_until

DOCUMENT = Path(__file__).parents[3] / "docs" / "endings.md"
NAME = "one"
REMAINS = {"everything": ALL, "leftovers": LEFTOVERS, "nothing": NOTHING}


def rows(columns):
    """Those of the tables with so many columns."""
    lines = [line.strip("|").split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if len(row) == columns and row[0] not in ("ending", "what happens", "---")]


SURVIVALS = {}


def brings_about(survival):
    """The test of the row that begins so."""

    def register(function):
        SURVIVALS[survival] = function
        return function

    return register


@pytest.fixture
def world(monkeypatch, tmp_path):
    with world_of(monkeypatch, tmp_path) as world:
        yield world


def command(*arguments):
    """What a user reads of it."""
    done = CliRunner().invoke(app, arguments)
    return f"{done.output}{done.exception or ''}"


def started(name=NAME, **more):
    said = []
    try:
        background.start(VALUES | more, said.append, name)
    except KeyshiftError as error:
        said.append(str(error))
    return "\n".join(said)


def no_spark(*_, **__):
    raise ServiceUnavailable("Spark did not start")


def ends():
    """Until the job's process is gone; gives what is then in the list of jobs."""
    assert wait_until(lambda: not Jobs().running(), WAIT_S)
    return command("job", "list", "--json")


def sent(number):
    os.kill(Jobs().read(NAME).pid, number)
    return ends()


def stop_over_http():
    """For another thread: commands are for one at a time."""
    try:
        return str(client().stop())
    except KeyshiftError as error:
        return str(error)


@contextlib.contextmanager
def beside(act):
    """Another thread does it meanwhile; the list has what it gives."""
    given = []
    thread = threading.Thread(target=lambda: given.append(act()))
    thread.start()
    yield given
    thread.join(WAIT_S)


# -- endings: what is done with a world, one after the other; each gives what a user is told --------------------------


def start(world):
    return started()


def start_replicas(world):
    return started(**REPLICATED)


def says(*arguments):
    return lambda world: command(*arguments)


def gets(number):
    return lambda world: sent(number)


def sets(fault):
    return lambda world: world.set(fault)


def unsets(fault):
    return lambda world: world.unset(fault)


def ends_by_itself(world):
    return ends()


def is_killed_at(fault, act):
    """The process, while ``act`` is under way and it stands still."""

    def kill(world):
        world.set(fault)
        with beside(act) as said:
            assert wait_until(lambda: world.reached(fault), WAIT_S)
            listed = sent(signal.SIGKILL)
        world.unset(fault)
        return "\n".join([listed, *said])

    return kill


def is_interrupted_at(fault, act):
    """As if Ctrl-C came while the job's process stands still; gives what is said then."""

    def interrupt(world):
        said = []
        world.set(fault)

        def say(line):
            said.append(line)
            if line == fault:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            act(say)
        world.unset(fault)
        return said[-1]

    return interrupt


def starts_as(fault, other):
    """A start; ``other`` befalls it when it has come to where ``fault`` is."""

    def start(world):
        def change():
            if wait_until(lambda: world.reached(fault), WAIT_S):
                world.set(other)
            world.unset(fault)

        world.set(fault)
        with beside(change):
            return started()

    return start


def is_killed_as_it_ends(step):
    """The process, as nobody can claim the job any more and its journal is still there."""

    def end(world):
        def kill():
            if wait_until(lambda: world.reached("ending"), WAIT_S):
                os.kill(Jobs().read(NAME).pid, signal.SIGKILL)

        world.set("ending")
        with beside(kill):
            said = step(world)
        world.unset("ending")
        assert Jobs().journal(NAME).read() is not None
        return said

    return end


def still_made(*parts):
    def look(world):
        assert world.made == [*parts]

    return look


def changes_journal(changed):
    def change(world):
        [journal] = (Jobs().home / "jobs").glob(f"{NAME}.*.journal")
        journal.write_text(changed(journal.read_text()))

    return change


TERM, KILL = gets(signal.SIGTERM), gets(signal.SIGKILL)
STOP, RESUME, FORGET = says("job", "stop", NAME), says("resume", NAME), says("job", "forget", NAME)
TAKE_OVER = says("resume", NAME, "--take-over")
RESUME_IS_INTERRUPTED = is_interrupted_at("resuming", lambda say: background.resume(NAME, say))
OF_ANOTHER_KEYSHIFT = changes_journal(lambda text: text.replace(f'"format": {FORMAT}', '"format": 0', 1))


def dies_of(fault, start=start):
    return (start, sets(fault), ends_by_itself, unsets(fault))


def stop_fails(start):
    return (start, sets("no store"), STOP, unsets("no store"), ends_by_itself)


def start_fails(start):
    return (sets("no slots"), start, unsets("no slots"))


def start_is_interrupted(at="starting", **more):
    return is_interrupted_at(at, lambda say: background.start(VALUES | more, say, NAME))


def resumed_with(fault):
    return (start, KILL, sets(fault), RESUME, unsets(fault), ends_by_itself)


def while_away(parts, *steps):
    """Services of which something is to be deleted."""
    faults = [f"no {part}" for part in parts]
    return (*map(sets, faults), *steps, still_made(*parts), *map(unsets, faults))


STOP_WHILE_AWAY = (start, *while_away(["snapshots"], STOP, ends_by_itself))


ENDINGS = {
    "it is stopped": (start, STOP),
    "it is forgotten": (start, TERM, FORGET),
    "its process gets SIGTERM, or Ctrl-C": (start, TERM),
    "its process is killed, or all processes of the machine are": (start, KILL),
    "ZooKeeper is away for 30 s": dies_of("no ZooKeeper"),
    "Kafka is away for 60 s, or the generator or the collector dies": dies_of("no Kafka"),
    "the query dies more often than `recoveries` allow": dies_of("query dies"),
    "an error that nobody has thought of": dies_of("a bug"),
    "a stop that fails before its verdict is stored": stop_fails(start),
    "a resume that fails": resumed_with("no ZooKeeper"),
    "a resume of a job that runs elsewhere": resumed_with("elsewhere"),
    "it is to be forgotten, and runs elsewhere": (start, KILL, sets("present"), FORGET, unsets("present")),
    "it is to be forgotten, and ZooKeeper is away": (start, KILL, sets("no nodes"), FORGET, unsets("no nodes")),
    "a resume that is interrupted": (start, KILL, RESUME_IS_INTERRUPTED, ends_by_itself),
    "a start that fails": start_fails(start),
    "a start while the disk is so full that there is no first journal": (
        starts_as("starting", "disk full"),
        unsets("disk full"),
    ),
    "a start that is interrupted before the job is ready": (start_is_interrupted(),),
    "its process is killed while it starts": (is_killed_at("starting", started),),
    "its process is killed while it undoes a start that was interrupted": (
        is_killed_as_it_ends(start_is_interrupted("kept")),
        RESUME,
    ),
    "it is stopped, and a service is away when it is to be deleted": STOP_WHILE_AWAY,
    "it is killed when its verdict is stored, before it is deleted": (
        start,
        is_killed_at("stored", stop_over_http),
        RESUME,
    ),
    "it is forgotten while a service is away": (start, KILL, *while_away(["topics", "stores"], FORGET)),
    "its journal is of another keyshift": (start, KILL, OF_ANOTHER_KEYSHIFT, RESUME),
    "a job with replicas is stopped": (start_replicas, STOP),
    "a job with replicas gets SIGTERM, or Ctrl-C": (start_replicas, TERM),
    "a job with replicas: its process is killed": (start_replicas, KILL),
    "a job with replicas: another process is to take it over": (start_replicas, TAKE_OVER, KILL),
    "a job with replicas: all of them die": dies_of("query dies", start_replicas),
    "a job with replicas: a stop fails before its verdict is stored": stop_fails(start_replicas),
    "a job with replicas: a start that fails": start_fails(start_replicas),
    "a job with replicas: a start that is interrupted before the job is ready": (start_is_interrupted(**REPLICATED),),
    "somebody has damaged its journal": (start, KILL, changes_journal(lambda text: text[:-9]), FORGET),
}
TOLD_AT_ONCE = {  # how to go on, before the process has ended
    "a stop that fails before its verdict is stored",
    "a resume that fails",
    "a resume of a job that runs elsewhere",
    "a resume that is interrupted",
}


BROUGHT_ABOUT = [row for row in rows(4) if row[0] in ENDINGS]  # others have tests of their own


@pytest.mark.parametrize(("ending", "remains", "words", "how"), BROUGHT_ABOUT, ids=lambda cell: cell[:60])
def test_a_job_ends_as_the_document_says(world, ending, remains, words, how):
    told = [step(world) or "" for step in ENDINGS[ending]]
    if ending in TOLD_AT_ONCE:
        assert f"`keyshift resume {NAME}` goes on with it" in "".join(told[:-1])
    said = "\n".join(told)
    for fragment in re.findall("`(.*?)`", words):
        assert fragment in said
    assert world.verdict == ("its verdict is stored" in remains)
    assert not wait_until(lambda: Jobs().running(), 0.0)
    kind = REMAINS[re.split("[ ,;:]", remains)[0]]
    entry = Jobs().read(NAME)
    if kind == NOTHING:
        assert (world.made, entry) == ([], None)
        return
    assert world.made == PARTS if kind == ALL else world.made
    if "`keyshift resume NAME`" in how:
        assert Jobs().ended(entry).remains == ALL
        listed = command("job", "list", "--json")
        assert f"`keyshift resume {NAME}` goes on with it, `keyshift job forget {NAME}` deletes it" in listed
        assert NAME in command("resume", NAME, "--json")
        assert Jobs().running(), "it goes on"
        assert '"verdict": "ok"' in command("job", "stop", NAME)
    elif "`keyshift job forget NAME`" in how:
        if "its journal is of another keyshift" not in ending:
            assert Jobs().ended(entry).remains == LEFTOVERS
            assert "nothing can go on with it" in command("resume", NAME)
            assert "choose another name" in started(), "what is left could not be found any more"
        assert f"the entry of job {NAME}" in command("job", "forget", NAME)
    else:
        assert "is damaged" in command("job", "list", "--json")
        return
    assert (world.made, Jobs().all()) == ([], [])
    assert "unknown job" in command("job", "forget", NAME)


def deposed_as_it_writes(world):
    """The process of a job, which stands before it puts a journal there, and whose job another one has taken over."""
    started()
    old = psutil.Process(Jobs().read(NAME).pid)
    world.set("writing")
    client().do(Rate(rate=300))
    assert wait_until(lambda: world.reached("writing"), WAIT_S)
    old.suspend()
    world.unset("writing")
    command("resume", NAME, "--take-over")
    return old


# -- of other kinds of jobs -------------------------------------------------------------------------------------------


def test_a_journal_that_comes_when_the_job_was_taken_over_and_stopped_is_not_left(world):
    old = deposed_as_it_writes(world)
    assert '"verdict": "ok"' in command("job", "stop", NAME)
    old.resume()
    old.wait(WAIT_S)
    assert [path.name for path in (Jobs().home / "jobs").iterdir()] == [".lock"]


def test_a_journal_that_a_deposed_process_puts_back_is_written_anew(world):
    """Nothing else would have it written: what was asked for since would be lost."""
    old = deposed_as_it_writes(world)
    client().do(Rate(rate=500))
    has_it = lambda: Jobs().journal(NAME).content().rates == {"events": 500}  # noqa: E731
    assert wait_until(has_it, WAIT_S)
    old.resume()
    old.wait(WAIT_S)
    assert wait_until(has_it, WAIT_S)


@pytest.mark.parametrize("ordering", ["live_robin", "kazoo"])
def test_of_a_job_with_replicas_all_that_they_have_made_is_forgotten(world, ordering):
    started(**REPLICATED | {"ordering": ordering})
    assert not (world.folder / "for a day").exists(), "Kafka keeps what there is until then"
    sent(signal.SIGKILL)
    run = Jobs().journal(NAME).left().run_id
    told = command("job", "forget", NAME)
    for replica in f"{run}-r0", f"{run}-r1":
        assert f"deleted: topic {replica}-results" in told and f"snapshots below savepoints/{replica}/" in told
        assert f"nodes below /keyshift/{replica} in ZooKeeper" in told
    assert f"deleted: topic {run}-events" in told and f"topic {run}-results" not in told
    assert (f"topic {run}-order" in told) is (f"nodes below /keyshift/{run} in" in told) is (ordering == "kazoo")


STORES = "temporary files, and state in stores of its own"


@pytest.mark.parametrize(
    ("values", "cleaned", "told"),
    [
        ({"workload": "wordcount", "text": "/gone.txt"}, [("memory", {})], f"deleted: {STORES}"),
        (
            {"backend": "hybrid", "backend.redis": "r:1", "write": "never"},
            [("hybrid", {"redis": "r:1"})],
            f"deleted: {STORES}",
        ),
        ({"backend": "shelf"}, [], "backend shelf is not known here: what its stores have left elsewhere stays"),
    ],
)
def test_a_job_is_forgotten_of_whose_values_no_spec_can_be_made_any_more(world, monkeypatch, values, cleaned, told):
    started()
    sent(signal.SIGKILL)
    damaged = {"values": values, "own": {"workload": {"mine": "no parcel"}}}
    changes_journal(lambda text: json.dumps(json.loads(text) | damaged))(world)
    found = []
    monkeypatch.setattr(forgetting, "clean_stores", lambda name, given, *_: found.append((name, given)))
    said = command("job", "forget", NAME)
    assert told in said and f"the entry of job {NAME}" in said
    assert (found, Jobs().all()) == (cleaned, [])


def test_wiping_the_services_deletes_all_jobs(world):
    started()
    sent(signal.SIGKILL)
    said = []
    Stack(Jobs().home).down(wipe=True, say=said.append)
    assert Jobs().all() == [] and Jobs().journal(NAME).left() is None
    assert "deleted the data" in said[-1]


def test_a_process_whose_job_another_one_has_taken_over_ends_and_leaves_everything_to_it(world):
    started()
    old = Jobs().read(NAME)
    assert "this is for a job whose process is gone" in command("resume", NAME)
    command("resume", NAME, "--take-over")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(old.pid).wait(WAIT_S)
    new = Jobs().read(NAME)
    assert "this one ends and leaves everything to it" in Path(old.log).read_text() and new.log != old.log
    assert (client().status()["state"], new.why, world.made) == ("running", "", PARTS)
    assert new.before is None, "it has the job, however it ends"
    assert new.pid != old.pid and Jobs().journal(NAME).read() is not None
    assert '"verdict": "ok"' in command("job", "stop", NAME)


def test_a_process_that_was_deposed_is_not_said_to_go_on_when_the_one_that_has_taken_the_job_over_fails(world):
    started()
    old = psutil.Process(Jobs().read(NAME).pid)
    old.suspend()
    said = is_interrupted_at("resuming", lambda say: background.resume(NAME, say, take_over=True))(world)
    assert "goes on with it, as before" not in said and f"`keyshift resume {NAME}` goes on with it" in said
    assert Jobs().read(NAME).pid != old.pid and Jobs().running() == []
    old.resume()
    with contextlib.suppress(psutil.NoSuchProcess):
        old.wait(WAIT_S)
    assert NAME in command("resume", NAME, "--json")
    assert '"verdict": "ok"' in command("job", "stop", NAME)


def test_how_a_job_ends_some_day_is_not_how_a_process_did_that_was_to_take_it_over(world, monkeypatch):
    started()
    before, asked = Jobs().read(NAME), client()
    with monkeypatch.context() as patched:
        patched.setattr(process, "open_job_lab", no_spark)
        assert "Spark did not start" in command("resume", NAME, "--take-over")
    entry = Jobs().home / "jobs" / f"{NAME}.json"
    asked.do(Rate(rate=300))  # its journal is written, as it is the driver
    assert wait_until(lambda: entry.read_text() == before.model_dump_json(), WAIT_S)
    listed = sent(signal.SIGKILL)
    assert "was killed" in listed and "Spark did not start" not in listed
    assert json.loads(entry.read_text())["log"] == before.log and not Path(f"{before.log}.1").exists()


def test_a_job_that_runs_elsewhere_can_be_reached_and_keeps_its_files_when_a_resume_was_refused(world, tmp_path):
    started()
    sent(signal.SIGKILL)
    before, work = Jobs().read(NAME), tmp_path / "work"
    work.mkdir()
    world.set("elsewhere")
    command("resume", NAME)
    after = Jobs().read(NAME)
    assert (after.url, after.token, after.pid) == (before.url, before.token, before.pid)
    assert "the job runs elsewhere" in after.why and work.exists()
    world.unset("elsewhere")
    command("resume", NAME)
    assert not work.exists(), "by then they are nobody's"


def test_a_job_is_found_where_it_goes_on_though_another_host_was_to_go_on_with_it_meanwhile(world, gone, monkeypatch):
    """It could be neither asked nor stopped: its address was in no file."""
    started()
    sent(signal.SIGKILL)
    before, jobs = Jobs().read(NAME), Jobs()
    there = file_of(NAME, gone, entry=before.entry, host="there", before=before)
    jobs.write(there)  # and its Spark starts
    world.set("elsewhere")
    for _ in range(2):  # it is tried again
        assert "the job runs elsewhere" in command("resume", NAME)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "living", lambda pid, *_: True if pid == gone else None)  # as it is seen there
        assert jobs.running() == [there]
        jobs.hold(NAME, there.entry, gone)
    assert jobs.read(NAME) == there.model_copy(update={"before": None})


def test_the_process_of_a_job_can_be_seen_to_drive_it_from_its_start_until_all_of_it_has_ended(world):
    world.set("starting")
    with beside(started):
        assert wait_until(lambda: world.reached("starting"), WAIT_S)
        assert world.drivers == [Jobs().read(NAME).pid]
        world.unset("starting")
    world.set("stored")
    with beside(stop_over_http):
        assert wait_until(lambda: world.reached("stored"), WAIT_S)
        assert world.drivers == [Jobs().read(NAME).pid], "nobody offers events any more, and its verdict is computed"
        world.unset("stored")
    ends()
    assert (world.drivers, world.made) == ([], [])


@pytest.mark.parametrize("end", ["given up", "dies", "its lab is closed"])
def test_of_a_job_of_a_notebook_nothing_is_left(world, end):
    with process.open_job_lab() as lab:
        job = lab.start(live_spec(VALUES))
        assert world.made == PARTS
        assert (world.folder / "for a day").exists(), "then it goes, if the kernel is killed"
        if end == "dies":
            world.set("no Kafka")
            assert job.ended.wait(WAIT_S)
            assert "the generator process died" in job.why
        else:
            job.give_up() if end == "given up" else lab.__exit__()
            assert "it has no verdict" in job.why
    assert world.made == []


ELSEWHERE = {  # in the tests above
    "another process has taken the job over (`keyshift resume NAME --take-over`)",
    "`keyshift down --wipe` (refused while a job has something in services that are not embedded)",
    "a job of a notebook (`start_job`, `Lab.start`) that is given up, or dies",
}


def test_every_ending_of_the_document_is_brought_about_and_no_other():
    assert {row[0] for row in rows(4)} == ENDINGS.keys() | ELSEWHERE
    assert {row[0] for row in rows(3)} == SURVIVALS.keys()


# -- what does not end a job ------------------------------------------------------------------------------------------


def notes(client, words):
    """Those there are when one of them has ``words``."""
    assert wait_until(lambda: any(words in line for line in client.status()["notes"]), WAIT_S)
    return "\n".join(client.status()["notes"])


def client():
    return Client(Jobs().read(NAME))


@brings_about("another process is to take the job over, and ends before it has")
def _(world, monkeypatch):
    before = Jobs().read(NAME)
    monkeypatch.setattr(process, "open_job_lab", no_spark)
    said = command("resume", NAME, "--take-over")
    assert "did not start" in said and f"`keyshift resume {NAME}`" not in said
    assert Jobs().read(NAME) == before and Jobs().running() == [before]
    return said


@brings_about("the query dies")
def _(world, monkeypatch):
    client().do(InjectFault())
    return notes(client(), "the query died")


@brings_about("the disk is full when the journal is written")
def _(world, monkeypatch):
    before = Jobs().journal(NAME).content()
    world.set("disk full")
    client().do(Rate(rate=300))
    said = notes(client(), "the journal cannot be written")
    assert Jobs().journal(NAME).content() == before
    world.unset("disk full")
    notes(client(), "and is written again")
    assert wait_until(lambda: Jobs().journal(NAME).content().rates == {"events": 300}, WAIT_S)
    return said


@brings_about("a restart (`stop_restart`) is late")
def _(world, monkeypatch):
    world.set("late")
    client().do(MoveBy(strategy="stop_restart", target=4))
    said = notes(client(), "the query was given up")
    assert wait_until(lambda: not client().status()["migrating"], WAIT_S)
    (migration,) = client().status()["migrations"]
    assert migration["why"].startswith("the query was given up")
    assert "savepoint 0-abc of counter: slot-1 did not answer within 30 s" in said
    return said


@brings_about("a stop finds a slot that hangs")
def _(world, monkeypatch):
    with live_job(monkeypatch, live_spec(VALUES)) as job:
        hangs = [MigrationFailed("savepoint 0-abc of counter: slot-1 did not answer within 30 s")]

        def savepoint():
            if hangs:
                raise hangs.pop()

        job.loop.system.stop = savepoint
        assert job.stop().verdict.lost == 0
        assert job.inner.calls == ["start", "recover"]
        return "\n".join(map(str, job.inner.notes))


@brings_about("the autoscaler's request is rejected, or its strategy raises")
def _(world, monkeypatch):
    errors = [PlanRejected("step 0 is empty"), ZeroDivisionError("of a cell")]

    def planned(*_):
        if errors:
            raise errors.pop()
        return proposed(*_)

    proposed = plan.propose
    monkeypatch.setattr(plan, "propose", planned)
    seen = 0.0

    def measured(stage, *_):
        nonlocal seen
        seen += 1.0
        return {n: Measured(seconds=1.0, records=((n, 100 * seen),), busy_s=seen) for n in range(stage.config.slots)}

    monkeypatch.setattr(Stage, "measure", measured)
    values = VALUES | {"trigger": "auto", "autoscale_s": 1, "slots_max": 4}
    with live_job(monkeypatch, live_spec(values)) as job:
        assert wait_until(lambda: sum("nothing was requested of" in line for line in job.said) == 2, WAIT_S)
        assert not errors
        assert job.state == "running"
        assert any("the strategy raised ZeroDivisionError: of a cell" in line for line in job.said)
        return "\n".join(job.said)


def asked_for(act):
    """A command that does this."""
    return SimpleNamespace(carry_out=lambda controls: act())


@brings_about("a request finds the query dead")
def _(world, monkeypatch):
    monkeypatch.setattr(inbox, "wait", waits := mock.Mock(wraps=inbox.wait))  # behind what was asked is in the inbox
    with live_job(monkeypatch, live_spec(VALUES)) as job:
        reached, go_on, told = threading.Event(), threading.Event(), {}

        def ask(name, command):
            try:
                told[name] = job.do(command)
            except KeyshiftError as error:
                told[name] = error

        def dies():
            reached.set()
            assert go_on.wait(WAIT_S)
            job.inner.dies.append("killed")
            job.inner.check()

        asked = {"dies": asked_for(dies), "rate": Rate(rate=5), "cancel": Cancel()}
        threads = [threading.Thread(target=ask, args=each) for each in asked.items()]
        for number, thread in enumerate(threads, 1):
            thread.start()
            assert reached.wait(WAIT_S)  # nobody looks from now on
            assert wait_until(lambda number=number: waits.call_count == number, WAIT_S)
        job.begin_stop()
        go_on.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert told == {"rate": {"rate": 5.0}, "cancel": {"cancelled": True}, "dies": told["dies"]}
        assert job.ended.wait(WAIT_S) and job.state == "ended"
        assert job.inner.calls == ["start", "recover"]
        assert job.traffic.told[-2:] == [("change_rate", 5.0, "events"), ("end_load",)]
        return str(told["dies"])


@brings_about("a request gets no answer for 110 s")
def _(world, monkeypatch):
    assert inbox.ANSWER_S == 110
    with live_job(monkeypatch, live_spec(VALUES)) as job:
        begun, go_on, over, done = threading.Event(), threading.Event(), threading.Event(), []
        holds = asked_for(lambda: begun.set() or go_on.wait(WAIT_S))
        holding = threading.Thread(target=job.do, args=(holds,))
        holding.start()
        assert begun.wait(WAIT_S)

        def still_at_it():
            with pytest.raises(ServiceUnavailable) as told:
                job.do(asked_for(lambda: over.wait(WAIT_S)))
            return "the job is still at it after" in str(told.value)

        with monkeypatch.context() as patch:
            patch.setattr(inbox, "ANSWER_S", 0.2)
            with pytest.raises(ServiceUnavailable, match=r"did not come to it within 0\.2 s, nothing") as failed:
                job.do(asked_for(lambda: done.append(1)))
            go_on.set()
            assert wait_until(still_at_it, WAIT_S)
        over.set()
        holding.join(WAIT_S)
        job.do(Cancel())
        assert not done, "what was given up is never done"
        return str(failed.value)


@pytest.mark.parametrize(("what", "becomes", "words"), rows(3), ids=lambda cell: cell[:60])
def test_a_job_survives_what_the_document_says_it_survives(world, monkeypatch, what, becomes, words):
    monkeypatch.setattr(live_journal, "KEEP_AGAIN_S", 0.1)
    started()
    said = SURVIVALS[what](world, monkeypatch)
    for fragment in re.findall("`(.*?)`", words):
        assert fragment in said
    assert (client().status()["state"], world.made) == ("running", PARTS)
    assert '"verdict": "ok"' in command("job", "stop", NAME)
    assert world.made == []


# -- who may do what when ---------------------------------------------------------------------------------------------


def test_of_a_start_and_resumes_at_the_same_time_one_has_the_job(world):
    started()
    sent(signal.SIGKILL)
    all_of_them = threading.Barrier(3, timeout=WAIT_S)

    def at_once(act):
        all_of_them.wait()
        try:
            return act()[0].pid
        except BadInput as error:
            return str(error)

    acts = [lambda: background.resume(NAME, print)] * 2 + [lambda: background.start(VALUES, print, NAME)]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(at_once, acts))
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [Jobs().read(NAME).pid]
    others = [said for said in map(str, outcomes) if "runs, process" in said or "there is a job of this name" in said]
    assert len(others) == 2
    assert '"verdict": "ok"' in command("job", "stop", NAME)


def test_a_job_that_runs_is_not_forgotten_and_of_one_that_has_ended_nothing_runs_on_and_a_stop_deletes_nothing(world):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    started()
    assert f"`keyshift job stop {NAME}` ends it" in command("job", "forget", NAME)
    assert (world.made, client().status()["state"]) == (PARTS, "running")
    sent(signal.SIGTERM)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child for child in left if child.status() != "zombie"] == []
    assert f"`keyshift resume {NAME}` goes on with it" in command("job", "stop", NAME)
    assert Jobs().journal(NAME).read() is not None and world.made == PARTS


def test_a_stop_that_comes_while_a_job_starts_is_not_lost_and_who_has_started_it_hears_that_it_began(world):
    world.set("starting")
    with beside(started) as said:
        assert wait_until(lambda: world.reached("starting"), WAIT_S)
        world.set("stored")
        with beside(client().stop) as stopped:
            world.unset("starting")
            assert wait_until(lambda: said, WAIT_S), "it never was seen to run"
            world.unset("stored")
    assert stopped[0]["summary"].verdict == "ok" and "did not start" not in said[0]


def test_who_stops_a_job_that_is_interrupted_while_it_is_deleted_hears_that_its_verdict_is_stored(world):
    started()
    world.set("ending")
    with beside(stop_over_http) as said:
        assert wait_until(lambda: world.reached("ending"), WAIT_S)
        os.kill(Jobs().read(NAME).pid, signal.SIGTERM)
        world.unset("ending")
    ends()
    assert world.verdict and (world.made, Jobs().all()) == ([], [])
    assert "it was interrupted when its verdict was stored: `keyshift results show 2" in said[0]
