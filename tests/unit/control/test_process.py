"""What the process of a job writes down of it."""

import threading
from unittest import mock

import pytest
from small_jobs import file_of, journal_of

from keyshift.control import process
from keyshift.control.background import StartOrder
from keyshift.control.files import Jobs, Kept
from keyshift.experiment.live_spec import live_spec
from keyshift.lab.ending import Ending
from keyshift.lab.live.job import LiveJob
from keyshift.model.errors import BadInput, Deposed, ServiceUnavailable

NAME, VALUES = "one", {"workload": "keycount"}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))


def entry(run, **values):
    values = VALUES | values
    order = StartOrder(name=NAME, values=values, profile=None, entry=run)
    found = process._Entry(order, live_spec(values), threading.Event())
    found.expect(run, "secret")
    Jobs().write(file_of(NAME, entry=run))
    return found


def test_who_was_forgotten_leaves_the_entry_to_the_job_that_has_its_name_now():
    jobs = Jobs()
    before = entry("first")  # it stands still in its start, on a machine that nobody here sees
    jobs.remove(jobs.read(NAME))
    after = entry("second")
    after.keep(journal_of("second"))
    with pytest.raises(BadInput, match="was forgotten"):
        before.keep(journal_of("first"))
    jobs.journal(NAME, "first").keep(Kept(run_id="first", sources={}), journal_of("first"))  # it had looked before
    assert jobs.journal(NAME).read().run_id == "second"
    before.deleted = True
    for ending in Ending:
        before.decided(ending)
        before.ending = ending
        before.ended(mock.Mock(error=None, run_id="first", why="it died"))
    assert (jobs.journal(NAME).read().run_id, jobs.read(NAME).why) == ("second", "")
    after.decided(Ending.STOPPED)
    assert jobs.journal(NAME).read() is None


def test_who_was_forgotten_before_it_was_ready_never_is():
    begun, jobs = entry("first"), Jobs()
    jobs.remove(jobs.read(NAME))
    with pytest.raises(BadInput, match="was forgotten"):
        begun.keep(journal_of("first"))
    assert not begun.resumable() and jobs.journal(NAME, "first").read() is None


def test_who_ends_while_another_process_is_to_go_on_has_no_last_word_in_the_file_of_that_one():
    begun, jobs = entry("first"), Jobs()
    begun.ended(mock.Mock(error=None, run_id="first", why="it died"))
    assert jobs.read(NAME).why == ""  # its process is this one, and not that of the order


@pytest.mark.parametrize("why", ["", "Spark did not start"], ids=["it goes on", "it has ended"])
def test_who_ends_has_no_last_word_while_a_process_of_another_host_is_to_go_on(gone, why):
    """Nobody could reach that one any more."""
    begun, jobs = entry("first"), Jobs()
    mine = jobs.read(NAME)
    begun._pid = mine.pid
    other = file_of(NAME, gone, entry="first", host="there", before=mine, why=why)
    jobs.write(other)
    begun.ended(mock.Mock(error=None, run_id="first", why="it died"))
    told = mine.model_copy(update={"why": "it died"}) if why else other
    assert (jobs.home / "jobs" / f"{NAME}.json").read_text() == told.model_dump_json()


@pytest.mark.parametrize("said", ["", "it was forgotten; not deleted: topic"])
def test_who_was_deposed_though_no_other_process_has_its_entry_has_a_last_word(said):
    """As after ZooKeeper has lost its nodes: it was listed as killed."""
    begun, jobs = entry("first"), Jobs()
    begun.keep(journal_of("first"))
    jobs.write(mine := jobs.read(NAME).model_copy(update={"why": said}))
    begun._pid, why = mine.pid, "ZooKeeper has lost it"
    begun.ended(mock.Mock(error=Deposed(why), run_id="first", why=why))
    assert jobs.read(NAME).why == (said or why)
    assert jobs.journal(NAME).read() is not None


def test_the_last_word_is_why_a_job_died_though_somebody_interrupts_its_tidying_up():
    begun, jobs = entry("first"), Jobs()
    begun._pid = jobs.read(NAME).pid

    def record(*_):
        begun.decide(ServiceUnavailable("Kafka is away"))
        raise KeyboardInterrupt

    job = LiveJob(record, begun.spec, keeper=begun)
    with pytest.raises(KeyboardInterrupt):
        job.execute()
    begun.ended(job)
    assert jobs.read(NAME).why == "Kafka is away"


def test_a_job_that_runs_outlives_the_loss_of_its_entry():
    begun, jobs = entry("first"), Jobs()
    begun.keep(journal_of("first"))
    (jobs.home / "jobs" / f"{NAME}.json").unlink()
    begun.keep(journal_of("first"))


def test_whoever_resumes_a_job_has_the_load_that_was_chosen_for_it():
    jobs, begun = Jobs(), entry("first", **{"run.rate": "auto", "frame_ms": "auto", "keys": 50})
    spec = begun.spec.settled(rate=300.0, frame_ms=50.0)
    begun.chosen(spec)
    begun.keep(journal_of("first"))
    assert live_spec(jobs.journal(NAME, "first").require().values) == spec
