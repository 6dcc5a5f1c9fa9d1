"""A run over a system that is a stand-in: when it requests what, how long it waits, and what it survives."""

import contextlib
import math
from types import SimpleNamespace
from unittest import mock

import pytest
import tenacity.nap

from keyshift import waiting
from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import make_spec
from keyshift.lab import backlog, run_loop
from keyshift.lab.ending import Unwanted
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts import scenario
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.model.errors import QueryDied
from keyshift.model.notes import Note, NoteKind
from keyshift.model.records import Instance, Second
from keyshift.traffic.feed import Before
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.seconds import Seconds
from keyshift.traffic.traffic import Traffic
from waits import Clock

BEGIN = 1000.0


class System:
    """Keeps what it is asked for, with the time since the beginning; ``dies`` at some of these moments."""

    takes = 0.0  # of a migration
    begun = False  # one that has is not taken back

    def __init__(self, clock):
        self.clock, self.calls, self.notes, self.dies, self.busy_until = clock, [], [], [], 0.0
        self.announced = []

    def _called(self, *what):
        self.calls.append((self.clock.now - BEGIN, *what))

    def note(self, line, kind=NoteKind.TOLD):
        self.notes.append(Note(line, kind=kind))

    def check(self):
        if self.dies and self.clock.now - BEGIN >= self.dies[0]:
            self.dies.pop(0)
            raise QueryDied("gone")

    def start(self):
        self._called("start")
        self.check()

    def recover(self):
        self._called("recover")
        self.check()
        return "beginning"

    def announce(self, change):
        assert not self.busy
        self.announced.append((round(self.clock.now - BEGIN, 1), change))

    def request(self, change, replace):
        self._called("request", change, replace)
        self.busy_until = self.clock.now - BEGIN + self.takes

    def hit(self, fault):
        self._called("hit")
        self.dies.append(self.clock.now - BEGIN + 0.5)

    def cancel(self):
        self._called("cancel")
        if not self.begun:
            self.busy_until = 0.0

    @property
    def migrating(self):
        return self.clock.now - BEGIN < self.busy_until

    busy = migrating


@pytest.fixture
def made(monkeypatch):
    """Makes a run whose load is over; its results come as ``come`` says, one number per look at the clock."""
    clock = Clock(BEGIN)

    def make(**values):
        spec = make_spec(values)
        system = System(clock)
        traffic = SimpleNamespace(received=0, check=lambda: None)
        traffic.await_results = lambda over, quiet_s: Traffic.await_results(traffic, over, quiet_s)
        run = RunLoop(spec, system, traffic, Reporter(lambda line: None), lambda: None, scenario_script)
        run.clock, run.come, run.began_at = clock, (lambda s: 0), BEGIN - spec.run.warmup_s
        run.feed = SimpleNamespace(due=10_000)

        def pass_by(seconds):
            clock.now += seconds
            traffic.received = run.come(clock.now - BEGIN)

        clock.pass_by = pass_by
        for module in (backlog, run_loop, scenario, waiting, tenacity.nap):
            monkeypatch.setattr(module, "time", clock)
        run.backlog.begin(run.feed)
        return run

    return make


@pytest.fixture
def loaded(made):
    return made(catch_up_s=30.0, deadline_s=5.0)


@pytest.mark.parametrize(
    ("come", "dies", "overloaded", "over_s"),
    [
        (lambda s: min(10_000, round(s * 400)), [], False, 25),
        (lambda s: round(s * 100), [], True, 30),
        (lambda s: round(s * 100), [20.0], True, 50),
        (lambda s: round(s * 1000) if s < 5 else max(5_000, round(s * 1000) - 13_000), [], False, 23),
        (lambda s: min(9_000, round(s * 1000)), [], False, 24),
    ],
    ids=["all come", "longer than is allowed", "anew after a death", "all come, some late", "some are lost"],
)
def test_a_backlog_is_waited_for_as_long_as_results_come_and_that_is_allowed(loaded, come, dies, overloaded, over_s):
    loaded.come, loaded.system.dies = come, [*dies]
    loaded.surviving(loaded.backlog.await_results)
    assert loaded.backlog.overloaded is overloaded
    assert loaded.clock.now == pytest.approx(BEGIN + over_s, abs=1)


@pytest.mark.parametrize(
    ("begun", "received", "cancelled_at", "over_s"),
    [(False, 0, [30], 30), (True, 0, [30], 100), (True, 10_000, [], 100)],
    ids=["what has not begun", "what has begun is waited for", "there is no backlog"],
)
def test_a_migration_is_taken_back_once_when_the_time_for_the_backlog_is_up(
    loaded, begun, received, cancelled_at, over_s
):
    loaded.traffic.received, loaded.come = received, lambda s: received
    loaded.system.busy_until, loaded.system.begun = 100.0, begun
    loaded.backlog.await_migrations()
    assert [what for _, what in loaded.system.calls] == ["cancel"] * len(cancelled_at)
    assert [at for at, _ in loaded.system.calls] == pytest.approx(cancelled_at, abs=0.5)
    assert loaded.clock.now == pytest.approx(BEGIN + over_s, abs=0.5)
    assert loaded.backlog.overloaded is bool(cancelled_at)


def play(run):
    run.follow()
    return run.system.calls


@pytest.mark.parametrize(
    ("on_overlap", "takes", "second"),
    [
        ("queue", 9.0, ("request", ScaleTo(3), False)),
        ("replace", 9.0, ("request", ScaleTo(3), True)),
        ("cancel", 9.0, ("cancel",)),
        ("cancel", 2.0, ("request", ScaleTo(3), False)),
    ],
)
def test_requests_are_made_when_the_scenario_says(made, on_overlap, takes, second):
    run = made(trigger_s=2.0, to_slots=4, then="3", gap_s=5.0, on_overlap=on_overlap)
    run.system.takes = takes
    calls = play(run)
    assert [call[0] for call in calls] == pytest.approx([2.0, 7.0])
    assert [call[1:] for call in calls] == [("request", ScaleTo(4), on_overlap == "replace"), second]


@pytest.mark.parametrize(
    ("takes", "on_overlap", "announced"),
    [(2.0, "queue", [(4.0, ScaleTo(3)), (9.0, ScaleTo(2))]), (5.0, "queue", []), (6.0, "cancel", [(7.0, ScaleTo(2))])],
    ids=["in time", "too late", "what was under way is taken back"],
)
def test_what_the_next_migration_wants_copied_is_copied_as_soon_as_the_one_before_is_over(
    made, takes, on_overlap, announced
):
    run = made(trigger_s=2.0, to_slots=4, then="3,2", gap_s=5.0, on_overlap=on_overlap)
    run.system.takes = takes
    assert [at for at, *_ in play(run)] == pytest.approx([2.0, 7.0, 12.0], abs=0.1)
    first, *later = run.system.announced
    assert first == (0.0, ScaleTo(4))
    assert [change for _, change in later] == [change for _, change in announced]
    assert [at for at, _ in later] == pytest.approx([at for at, _ in announced], abs=0.3)


def test_a_system_that_the_scenario_kills_is_recovered_and_the_scenario_goes_on(made):
    run = made(trigger_s=2.0, to_slots=4, then="3", gap_s=5.0, fault="kill:slot@3")
    calls = play(run)
    assert [what for _, what, *_ in calls] == ["request", "hit", "recover", "request"]
    assert [at for at, *_ in calls] == pytest.approx([2.0, 3.0, 3.5, 7.0], abs=0.25)


@pytest.mark.parametrize("fault, calls", [("kill:slot@3", ["start", "recover"]), ("", ["start"])])
def test_a_query_that_dies_while_it_starts_is_recovered_if_somebody_may_have_killed_it(made, fault, calls):
    run = made(fault=fault)
    run.system.dies = [0.0]
    run.traffic.open, run.traffic.feed = (lambda: None), (lambda *_: "feed")
    with contextlib.nullcontext() if fault else pytest.raises(QueryDied):
        assert run.open() == "feed"
    assert run.traffic.lasts_s == run.spec.run.load_s, "so long Kafka has to keep its events"
    assert [what for _, what in run.system.calls] == calls


def test_whether_latency_is_normal_is_asked_of_the_last_seconds_alone(made):
    """Twenty times a second, of a job that may last for days."""

    class Told(Seconds):
        read = 0

        def __getitem__(self, index):
            self.read += isinstance(index, int)
            return super().__getitem__(index)

    run = made()
    run.traffic.seconds = told = Told()
    for number in range(1000):
        told.append(Second(number, 9, 4.0, 8.0))
    assert [run.calm(*asked) for asked in ((990, 5, 8.0), (997, 5, 8.0), (0, 5, 7.0))] == [True, False, False]
    assert told.read == 15


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_query_that_dies_while_it_recovers_is_recovered_as_often_as_a_run_may_survive(made, deaths):
    run = made(recoveries=2)
    run.system.dies = [1.0] * deaths
    with pytest.raises(QueryDied) if deaths > 2 else contextlib.nullcontext():
        run.surviving(lambda: run.look_until(BEGIN + 3))
        assert run.clock.now == pytest.approx(BEGIN + 3)
        (note,) = run.system.notes
        assert "(gone); everything since its beginning was done again" in note.text and note.kind is NoteKind.DEATH
    assert [what for _, what in run.system.calls] == ["recover", "recover"]


def test_deaths_of_long_ago_are_forgotten_though_the_clock_is_set_back(made):
    run = made(recoveries=2)
    run.clock.time = lambda: BEGIN
    after_s = [run_loop.WINDOW_S + 10] * 4

    def step():
        if after_s:
            run.clock.sleep(after_s.pop())
            raise QueryDied("gone")

    run.surviving(step)
    assert run.deaths == [BEGIN] * 4 and run.clock.now == BEGIN + 4 * (run_loop.WINDOW_S + 10)


def test_a_run_that_nobody_wants_any_more_ends_before_its_next_attempt_and_while_that_begins(made):
    run = made(recoveries=9)
    run.died_at, run.system.dies = [BEGIN] * 7, [0.0]

    def come(passed_s):
        run.unwanted = passed_s > 3
        return 0

    run.come = come
    with pytest.raises(Unwanted):
        run.surviving(lambda: run.look_until(BEGIN + 9))
    assert run.clock.now == pytest.approx(BEGIN + 3, abs=0.5) and run.system.calls == []
    with pytest.raises(Unwanted):
        run.traffic.require_wanted()


@pytest.mark.parametrize(("began_at", "words"), [(BEGIN - 1.5, "2.5 s after"), (math.nan, "before")])
def test_it_is_told_when_a_query_died_and_kept_with_the_samples(made, monkeypatch, began_at, words):
    run = made()
    run.began_at, run.system.dies = began_at, [1.0]
    run.surviving(lambda: run.look_until(BEGIN + 3))
    assert run.system.notes[0].text.startswith(f"the query died {words} the load began (gone); everything since")
    run.traffic.stop, run.system.final_state = (lambda: None), (lambda: None)
    monkeypatch.setattr(run_loop, "EndedJob", lambda *given: given[4])
    run.samples = [sample] = [(BEGIN, "rss_mib", "spark_jvm", 1.0)]
    assert run.end() == [sample, (pytest.approx(BEGIN + 1, abs=0.3), "death", Instance("query died"), 1.0)]


def test_the_time_for_a_backlog_begins_when_a_query_that_was_dead_as_the_load_ended_goes_on(made, monkeypatch):
    run = made(seconds=10.0, trigger="none", catch_up_s=30.0, deadline_s=5.0)
    recover = run.system.recover

    def slowly():
        run.clock.now += 20
        return recover()

    feed = SimpleNamespace(due=10_000, before=Before(), begin=lambda *_: None)
    run.open, run.system.recover, run.system.dies = (lambda: feed), slowly, [5.0]
    run.come, run.system.stop = (lambda s: round(s * 100)), lambda: None
    monkeypatch.setattr(run_loop, "Sampler", lambda *_: contextlib.nullcontext(SimpleNamespace(rows=[], notes=[])))
    run.run()
    assert run.backlog.overloaded and run.clock.now == pytest.approx(BEGIN + 55, abs=1)


def test_a_run_offers_its_load_plays_its_scenario_and_ends_the_system_behind_the_traffic(made, monkeypatch):
    given = {"warmup_s": 4.0, "seconds": 20.0, "trigger_s": 8.0, "rate": 100.0, "rate_steps": "5:300"}
    run = made(strategy="fluid", fault="kill:slot@1", **given)
    said, clock = [], run.clock

    def note(what):
        return lambda *given: said.append((round(clock.now - BEGIN, 1), what, *given))

    class Feed:
        due, before = 10, Before()

        def begin(self, start, seconds):
            note("load")(start - BEGIN, seconds)

    run.began_at, run.traffic.pids, run.traffic.received = math.nan, set(), 10
    run.come = lambda s: 10
    run.traffic.open, run.traffic.stop = note("open"), note("stop traffic")
    run.traffic.feed = lambda loads, frame_ms: note("feed")(*loads) or Feed()
    for name in ("start", "announce", "stop"):
        setattr(run.system, name, note(name))
    run.system.request, run.system.hit = note("request"), note("hit")  # which nothing dies of
    run.system.final_state = lambda: note("final state")() or "final"

    @contextlib.contextmanager
    def metrics():
        note("metrics begin")()
        yield
        note("metrics end")()

    run.metrics = metrics
    sampled = SimpleNamespace(rows=["sample"], notes=["the clock was set"])
    monkeypatch.setattr(run_loop, "Sampler", lambda *ignore: contextlib.nullcontext(sampled))
    ended = mock.Mock(return_value=mock.Mock(evaluation=lambda span, scalings, say: (span, scalings)))
    monkeypatch.setattr(run_loop, "EndedJob", ended)
    monkeypatch.setattr(run_loop, "LEAD_S", begin := 0.5)
    span, scalings = run.execute()
    workload, _, _, final, samples, overloaded = ended.call_args.args
    assert said == [
        (0.0, "open"),
        (0.0, "feed", SourceLoad(100.0, [(9.0, 300.0)])),
        (0.0, "start"),
        (0.0, "metrics begin"),
        (0.0, "load", begin, 24.0),
        (begin + 4.0, "announce", ScaleTo(4)),
        (begin + 5.0, "hit", *run.spec.scenario.faults()),
        (begin + 12.0, "request", ScaleTo(4), False),
        (begin + 24.0, "stop"),
        (begin + 24.0, "metrics end"),
        (begin + 24.0, "stop traffic"),
        (begin + 24.0, "final state"),
    ]
    assert span == tuple(BEGIN + begin + passed for passed in (0.0, 4.0, 24.0, 12.0))
    assert (workload, final, samples, overloaded) == (run.spec.workload, "final", ["sample"], False)
    missed = "fault = kill:slot@1: not all of it happened, the query died 0 times and not 1"
    assert run.measured_wrong == sampled.notes and run.system.notes == [*map(Note, [*sampled.notes, missed])]
    assert list(scalings) == []


def test_an_autoscaler_goes_on_at_each_look_and_others_once_a_second_and_either_may_see_a_death(made, monkeypatch):
    def looking(looks, dies):
        def look():
            looks.append(run.clock.now - BEGIN)
            if len(looks) == dies:
                raise QueryDied("seen by whoever asks")

        return look

    run, often, once_a_second = made(trigger="auto", trigger_s=2.0, seconds=10.0, recoveries=2), [], []
    monkeypatch.setattr(run_loop, "Autoscaler", lambda *_: SimpleNamespace(go_on=looking(often, 20)))
    run.each_second.append(looking(once_a_second, 3))
    run.autoscale(BEGIN, print)
    run.surviving(lambda: run.look_until(BEGIN + 3.5))
    run.backlog.await_results()
    assert once_a_second == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.25)
    assert often[-1] == pytest.approx(3.5, abs=2 * run_loop.LOOK_S)
    assert len(often) == pytest.approx(3.5 / run_loop.LOOK_S, abs=2)
    assert [what for _, what in run.system.calls] == ["recover", "recover"]


class Replicated(System):
    """A replica that was hit is full again after ``comes_back_s``."""

    comes_back_s = full_at = 0.0

    def hit(self, fault):
        self._called("hit")
        self.full_at = self.clock.now - BEGIN + self.comes_back_s

    @property
    def returning(self):
        return self.clock.now - BEGIN < self.full_at


@pytest.mark.parametrize(
    ("fault", "comes_back_s", "hits"),
    [
        ("kill:replica@2, kill:replica@6", 3.0, [2.0, 6.0]),
        ("kill:replica@2, kill:slot@6", 7.0, [2.0, 9.0]),
        ("kill:replica@2, kill:replica@2, kill:replica@4", 5.0, [2.0, 2.0, 7.0]),
        ("kill:replica@2, kill:replica@6, kill:replica@8", 30.0, [2.0]),
        ("kill:replica@2, stop:replica@4:1s", 30.0, [2.0, 4.0]),
    ],
    ids=["full in time", "full later", "two at once", "not full before the end", "one that is stopped lives"],
)
def test_the_death_of_a_replica_waits_until_the_one_before_is_full_again(made, fault, comes_back_s, hits):
    run = made(seconds=20.0, trigger="none", fault=fault, replicas=3, ordering="live_robin")
    run.system.__class__, run.system.comes_back_s = Replicated, comes_back_s
    assert [at for at, *_ in play(run)] == pytest.approx(hits, abs=0.25)
    assert run.clock.now == pytest.approx(BEGIN + 20)
