"""A job as a notebook sees it: found, asked, watched and stopped over HTTP; its system is a stand-in."""

import contextlib
import threading
from unittest import mock

import pytest
from small_jobs import file_of, keep
from small_live import live_job
from small_page import Page

from keyshift.analysis.plots.live import History
from keyshift.control import client, watched
from keyshift.control import explorer as explorer_module
from keyshift.control.api import make_app
from keyshift.control.explorer import Explorer, line_of, live_picture
from keyshift.control.files import Jobs
from keyshift.control.server import Server, listen, url_of
from keyshift.control.watched import WatchedJob, play
from keyshift.experiment.commands import Cancel, Double, MoveBy, Rate, Scale
from keyshift.experiment.live_spec import live_spec
from keyshift.lab import run_loop
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.waiting import wait_until

VALUES = {"workload": "keycount", "key_groups": 16, "slots": 2, "slots_max": 4, "strategy": "fluid", "rate": 100.0}
PNG = b"\x89PNG"
DEADLINE_S = 60.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    monkeypatch.setattr(watched, "LOOK_S", 0.05)
    monkeypatch.setattr(explorer_module, "LOOK_S", 0.05)
    return tmp_path


@pytest.fixture
def job(home, monkeypatch):
    """A job ``explore``, which ``start`` finds running here; ``job.live`` is the other end of it."""
    with contextlib.ExitStack() as stack:

        def start(values, say, name, profile=None):
            live = stack.enter_context(live_job(monkeypatch, live_spec(values)))
            listener = listen()
            server = Server(make_app(live, "secret"), listener)
            stack.callback(server.stop)
            Jobs().write(file_of(name, url=url_of(listener)))
            job.live = live

        monkeypatch.setattr(watched, "start", start)
        monkeypatch.setattr(watched, "await_end", lambda file: Jobs().remove(file))
        job = WatchedJob()
        yield job


def test_without_a_job_it_says_so_and_nothing_can_be_asked(job, home, gone):
    assert not job.runs
    assert job.how().startswith("no job explore runs")
    for act in (job.look, job.stop, lambda: job.do(Cancel())):
        with pytest.raises(BadInput, match="no job explore runs"):
            act()
    (home / "log").write_text("keyshift: Kafka is away\n")
    Jobs().write(file_of("explore", gone, log=str(home / "log")))
    assert "its process" in job.how() and "Kafka is away" in job.how()


def test_what_is_asked_reaches_the_job_and_what_is_seen_is_kept(job):
    job.start(VALUES)
    job.look()
    job.do(Scale(slots=4))
    assert wait_until(lambda: job.look()["stages"]["counter"]["slots"] == 4, DEADLINE_S)
    job.do(MoveBy(strategy="matched", target=3))
    assert wait_until(lambda: job.look()["stages"]["counter"]["slots"] == 3, DEADLINE_S)
    job.do(Rate(rate=50.0))
    job.do(Double())
    job.do(Cancel())
    assert ("change_rate", 100.0, "events") in job.live.traffic.told
    with pytest.raises(BadInput, match="slots = 9: 4 are provisioned"):
        job.do(Scale(slots=9))
    assert [what for _, what in job.history.requests[:4]] == ["scale 4", "plan matched 3", "rate 50", "double"]
    assert job.history.table()["moved"].sum() == 8 + 4
    assert job.stop().status == "ok" and not job.runs
    assert job.how().endswith("has ended, verdict ok")


def test_another_kernel_finds_the_job_that_runs(job):
    job.start(VALUES)
    other = WatchedJob()
    assert (other.how(), other.look()["state"]) == ("job explore runs: keycount, fluid", "running")
    assert other.stop().run_id == job.live.run_id


@pytest.fixture
def load(monkeypatch):
    """The seconds of load that a script sees: ``passes`` makes them pass."""
    status = watched.Client.status

    class Load:
        seconds = 0

        def passes(self):
            self.seconds += 1

    load = Load()
    monkeypatch.setattr(watched.Client, "status", lambda client: status(client) | {"running_s": load.seconds})
    return load


def outcomes(job):
    return [each["outcome"] for each in job.live.status()["migrations"]]


def test_a_script_presses_and_stops_and_its_picture_is_one_that_changes(job, load, monkeypatch):
    drawn, seen, figures = [], [], mock.Mock(wraps=explorer_module.LiveFigure)
    place = mock.Mock(update=lambda image: drawn.append(image.data))
    monkeypatch.setattr(explorer_module, "display", lambda *_, **__: place)
    monkeypatch.setattr(explorer_module, "LiveFigure", figures)
    show = live_picture()

    def look(job):
        show(job)
        seen.append(len(job.history.samples))
        if load.seconds == 4:
            assert wait_until(lambda: outcomes(job) == ["complete"], DEADLINE_S)
        load.passes()

    manifest = play(job, VALUES, ["1: scale 4", "3: double"], 5, look)
    assert manifest.status == "ok" and not job.runs
    assert seen == [1, 2, 3, 4, 5, 6]
    assert outcomes(job) == ["complete"]
    assert ("change_rate", 200.0, "events") in job.live.traffic.told
    assert len(drawn) == 6 and len(set(drawn)) > 1
    assert all(data.startswith(PNG) for data in drawn)
    figures.assert_called_once_with(job.history)  # to make one takes a while, beside the job that is watched


def test_what_the_job_refuses_ends_a_script_and_the_job(job):
    with pytest.raises(BadInput, match="fault = restart:minio: not here"):
        play(job, VALUES, ["0: fault restart:minio"], 5)
    assert not job.runs and job.live.state == "ended"


@pytest.mark.parametrize(
    ("values", "script", "seconds", "words"),
    [
        ({"strategy": "fluit"}, [], 5, "did you mean 'fluid'"),
        ({}, ["6: cancel", "2: cancel"], 5, "seconds = 5: must be above 6"),
        ({}, [], 0, "seconds = 0: must be above 0"),
        ({}, [], 1e9, "at most 3600"),
        ({}, ["1: cancel", "2: scale 9"], 5, "^script: scale 9 at 2 s: slots = 9: 4 are provisioned"),
        ({}, ["2: scale 3 countr"], 5, "^script: scale 3 countr at 2 s: unknown stage 'countr': did you mean"),
        ({}, ["2: plan meces 3"], 5, "^script: plan meces 3 at 2 s: strategy = meces: cuts a key group into bins"),
        ({}, ["2: fault kill:replica"], 5, "^script: fault kill:replica at 2 s: .* no replicas"),
        ({}, ["2: plan stop_restart 17"], 5, "slots = 17: 16 are provisioned"),
        ({}, ["2: plan stop_restart 8", "3: scale 9"], 5, "^script: scale 9 at 3 s: slots = 9: 8 are provisioned"),
    ],
)
def test_a_script_that_is_not_possible_starts_nothing(job, values, script, seconds, words):
    with pytest.raises(BadInput, match=words):
        play(job, VALUES | values, script, seconds)
    assert not job.runs and not hasattr(job, "live")


def test_a_script_may_lead_to_more_slots_by_a_restart_and_use_them_from_then_on(job, load):
    def look(job):
        assert wait_until(lambda: "under way" not in outcomes(job), DEADLINE_S)
        load.passes()

    script = ["1: plan stop_restart 8", "2: scale 3", "3: plan fluid 0:7"]
    assert play(job, VALUES, script, 4, look).status == "ok"
    assert outcomes(job) == ["complete"] * 3


def test_a_job_that_dies_ends_its_script_with_how_it_ended(job):
    def die(job):
        Jobs().write(Jobs().read("explore").model_copy(update={"pid": 2**22 - 1, "why": "it died 6 times"}))

    with pytest.raises(KeyshiftError, match="job explore does not run here: it died 6 times"):
        play(job, VALUES, [], 5, die)


def test_a_script_ends_as_soon_as_its_job_has_died_with_why_and_how_to_go_on(job, monkeypatch):
    """While its process tidies up, it goes on to tell its status."""
    monkeypatch.setattr(run_loop, "LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(client, "await_end", lambda file: None)

    def die(job):
        keep(Jobs(), "explore")
        job.live.inner.dies += ["a worker is gone"] * 6
        assert job.live.ended.wait(DEADLINE_S)

    words = r"job explore: a worker is gone; it died 6 times .*; `keyshift resume explore` goes on with it"
    with pytest.raises(KeyshiftError, match=words):
        play(job, VALUES, [], 60, die)


# -- the widgets -------------------------------------------------------------------------------------------------------


@pytest.fixture
def explorer(job):
    explorer = Explorer(job, VALUES)
    yield explorer
    if job.runs:
        job.stop()
    assert wait_until(lambda: not explorer.looking, DEADLINE_S)


@pytest.fixture
def page(explorer, monkeypatch):
    return Page(monkeypatch, explorer)


def has_picture(page):
    return wait_until(lambda: bytes(page.picture.value).startswith(PNG), DEADLINE_S)


def says(page, words):
    return wait_until(lambda: words in page.said.value, DEADLINE_S)


def test_buttons_start_watch_ask_and_stop(page, job):
    press = page.buttons
    assert [name for name, button in press.items() if not button.disabled] == ["start"]
    press["start"].click()
    assert has_picture(page) and wait_until(lambda: not press["scale"].disabled, DEADLINE_S)
    assert press["start"].disabled and not press["stop"].disabled
    before = bytes(page.picture.value)
    press["scale"].click()
    assert wait_until(lambda: "counter: 4 slots" in page.status.value, DEADLINE_S)
    assert wait_until(lambda: bytes(page.picture.value) != before, DEADLINE_S)
    press["plan"].click()
    assert says(page, "plan matched 4")
    press["double"].click()
    assert wait_until(lambda: ("change_rate", 200.0, "events") in job.live.traffic.told, DEADLINE_S)
    press["stop"].click()
    assert says(page, "has ended, verdict ok")
    assert wait_until(lambda: not press["start"].disabled and press["scale"].disabled, DEADLINE_S)


@pytest.mark.parametrize(("typed", "given"), [("auto", "auto"), ("250", 250), ("2.5", 2.5), ("fast", "fast")])
def test_the_rate_of_a_page_is_a_number_or_what_else_was_typed(monkeypatch, typed, given):
    started = []
    job = mock.Mock(runs=False, how=lambda: "", history=History(), start=lambda values, say: started.append(values))
    page = Page(monkeypatch, Explorer(job, VALUES | {"rate": "auto"}))
    assert (page.rate.value, page.given["rate"]["rate"].value) == ("auto", "2000.0")
    page.rate.value = typed
    page.buttons["start"].click()
    assert wait_until(lambda: started, DEADLINE_S) == [VALUES | {"rate": given}]


@pytest.mark.parametrize(("name", "near"), [("workload", "keycount"), ("strategy", "fluid")])
def test_a_page_refuses_what_is_not_among_its_choices(name, near):
    with pytest.raises(BadInput, match=f"unknown {name} '{near}s': did you mean '{near}'"):
        Explorer(mock.Mock(), VALUES | {name: f"{near}s"})


def test_a_page_that_is_opened_later_shows_the_job_that_runs(job, monkeypatch):
    job.start(VALUES)
    explorer = Explorer(WatchedJob(), VALUES)
    page = Page(monkeypatch, explorer)
    assert has_picture(page)
    job.stop()  # by somebody else
    assert says(page, "no job explore runs")
    assert wait_until(lambda: page.buttons["scale"].disabled, DEADLINE_S) and not explorer.looking


def test_a_page_does_not_look_any_more_when_its_cell_has_run_again(explorer, page, job, monkeypatch):
    page.buttons["start"].click()
    assert has_picture(page)
    again = Page(monkeypatch, Explorer(WatchedJob(), VALUES))
    assert wait_until(lambda: not explorer.looking, DEADLINE_S)
    assert has_picture(again)
    job.stop()
    assert says(again, "no job explore runs")
    assert page.said.value == "job explore runs: keycount, fluid"


def test_what_is_refused_is_said_in_one_line(page, job, monkeypatch):
    press = page.buttons
    press["start"].click()
    assert wait_until(lambda: not press["scale"].disabled, DEADLINE_S)
    page.given["scale"]["slots"].value = "9"
    press["scale"].click()
    assert says(page, "slots = 9: 4 are provisioned")
    stopped = threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(job, "stop", stop := mock.Mock(side_effect=lambda say: stopped.wait(DEADLINE_S)))
        for _ in range(2):
            press["stop"].click()
        assert says(page, "starts or stops already") and wait_until(lambda: stop.called, DEADLINE_S)
        stopped.set()
    assert job.runs


def test_a_page_goes_on_with_a_job_that_was_started_between_two_looks(page, job):
    page.buttons["start"].click()
    assert has_picture(page)
    job.history = History()  # as a start leaves it
    assert wait_until(lambda: len(job.history.samples) > 2, DEADLINE_S)


def test_a_status_is_one_line():
    assert line_of({"stages": {}, "state": "starting"}) == "starting"
    told = {"stages": {"counter": {"slots": 3}}, "running_s": 4.4, "activity": "steady", "deaths": 0}
    told |= {"rate": 100.0, "results_per_s": 99, "p50_ms": 4.2, "p99_ms": 9.8}
    line = "4 s | steady | 100 events/s offered | 99 results/s | P50 4 ms, P99 10 ms | counter: 3 slots | deaths 0"
    assert line_of(told) == line
