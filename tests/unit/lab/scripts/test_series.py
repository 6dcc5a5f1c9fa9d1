from types import SimpleNamespace

import pytest

from keyshift.analysis import metrics
from keyshift.experiment.spec import make_spec
from keyshift.lab.reporter import Reporter
from keyshift.lab.run import run_in_one_job
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts import series as scripts
from keyshift.lab.scripts.series import CALM_S, Series, by_job, judged, one_job
from keyshift.model.errors import KeyshiftError, MigrationFailed, ServiceUnavailable
from keyshift.model.records import Second

SMALL = {"keys": 1000, "seconds": 10.0, "trigger_s": 4.0}


def spec(**given):
    return make_spec(SMALL | given)


class Lab:
    """Has no job, and says what it was asked for."""

    def __init__(self, dies=False, full=False):
        self.asked, self.said, self.dies, self.full = [], [], dies, full
        self.say = self.said.append

    def settled(self, specs):
        return [spec.settled(rate=500.0, frame_ms=40.0) for spec in specs]

    def run(self, spec):
        self.asked.append(("alone", spec.strategy.name, spec.workload.seed))
        return SimpleNamespace(strategy=spec.strategy.name)

    def run_series(self, job, specs):
        self.asked.append(("series", [spec.strategy.name for spec in specs], job.workload.bins))
        if self.dies:
            raise KeyshiftError("no slot is left")
        return map(self.stored, specs)

    def stored(self, spec):
        if self.full:
            raise ServiceUnavailable("MinIO is full")
        return SimpleNamespace(strategy=spec.strategy.name)


def test_strategies_triggers_and_times_may_differ_within_a_job():
    assert one_job([spec(workload="micro"), spec(workload="micro", strategy="all_at_once")])
    specs = [
        spec(strategy="fluid"),
        spec(strategy="chunked", size=4, seconds=20.0),
        spec(strategy="stop_restart", trigger="shuffle", affected=8, trigger_s=5.0),
    ]
    job = one_job(specs)
    assert job.tasks == {"counter": 4}, "room for all, though some of them need no more than two slots"
    assert not job.point().restarts
    assert job.start().owner == specs[0].start().owner


def test_a_verdict_is_on_all_laps_of_a_job_and_on_one_run_of_what_cannot_be_a_lap():
    laps = [spec(seconds=20.0, warmup_s=5.0, repetitions=2), spec(seconds=30.0, warmup_s=5.0, strategy="lazy")]
    other = spec(seconds=20.0, warmup_s=5.0, keys=77)
    alone = [spec(seconds=20.0, warmup_s=5.0, fault="kill:slot@4", repetitions=2, seed=seed) for seed in (8, 8)]
    found = [(each.workload.keys, load_s) for each, load_s in judged([*laps, other, *alone])]
    keys = laps[0].workload.keys
    assert found == [(keys, 5 + 2 * 20 + 30), (77, 25), (keys, 25), (keys, 25)]


def test_units_of_a_job_whose_state_is_in_bins_go_back_by_bins():
    job = one_job([spec(strategy="meces"), spec(strategy="meces", to_slots=3)])
    assert job.point().bins == job.workload.bins == 16


def test_a_job_of_several_runs_has_room_where_they_need_it():
    chain = {"workload": "chain", "chain": "map,counter", "stage_slots": "map:1,counter:3", "seconds": 6.0}
    job = one_job([spec(**chain), spec(**chain, to_slots=6), spec(**chain, to_slots=2)])
    assert (job.slots_of, job.tasks) == ({"map": 1, "counter": 3}, {"map": 1, "counter": 6})


def test_runs_whose_load_is_left_to_the_machine_share_a_job_with_each_other_alone():
    """As they do when it is chosen: a job of both may be none that is possible."""
    left, given = spec(frame_ms="auto", strategy="lazy"), spec(strategy="lazy")
    assert by_job([left, given, spec(frame_ms="auto")]) == [[left, spec(frame_ms="auto")], [given]]


@pytest.mark.parametrize(
    ("both", "other"),
    [
        ({}, {"rate": 100.0}),
        ({}, {"keys": 999}),
        ({}, {"strategy": "meces"}),  # cuts the state into bins
        ({}, {"backend": "rocksdb"}),
        ({}, {"fault": "kill:slot@2"}),
        ({}, {"then": "2", "gap_s": 2.0}),
        ({}, {"rate_steps": "1:100"}),
        ({}, {"trigger": "auto"}),
        ({"workload": "micro", "later_events": 1000}, {"strategy": "all_at_once"}),  # later laps would have other ones
        ({"replicas": 2, "ordering": "live_robin", "to_slots": 4}, {"strategy": "all_at_once"}),  # copies: of one alone
    ],
)
def test_runs_of_other_jobs_and_with_courses_of_their_own_do_not_share_a_job(both, other):
    assert one_job([spec(**both), spec(**both | other)]) is None


def test_runs_are_put_together_by_their_jobs_and_repeated_in_rounds():
    lab = Lab()
    made = run_in_one_job(lab, [spec(repetitions=2), spec(strategy="meces"), spec(strategy="lazy", repetitions=2)])
    assert [(of.strategy.name, each.strategy) for of, each in made] == [
        (name, name) for name in ("fluid", "lazy", "fluid", "lazy", "meces")
    ]
    # Meces is compared with the others, so it has practised, too.
    assert lab.asked == [("series", ["fluid", "lazy", "fluid", "lazy"], 1), ("series", ["meces"], 16)]


def test_where_no_two_runs_share_a_job_none_has_practised_and_what_is_no_migration_of_a_job_never_has():
    lab = Lab()
    assert len(list(run_in_one_job(lab, [spec(), spec(strategy="meces")]))) == 2
    assert lab.asked == [("alone", "fluid", 1), ("alone", "meces", 1)]
    dies = spec(strategy="meces", fault="kill:slot@2")
    assert len(list(run_in_one_job(lab, [spec(), spec(strategy="lazy"), dies]))) == 3
    assert lab.asked[2:] == [("series", ["fluid", "lazy"], 1), ("alone", "meces", 1)]


def test_runs_of_a_job_that_died_are_made_one_by_one_and_that_is_said():
    lab = Lab(dies=True)
    made = list(run_in_one_job(lab, [spec(), spec(strategy="lazy")]))
    assert [each.strategy for _, each in made] == ["fluid", "lazy"]
    assert lab.asked[1:] == [("alone", "fluid", 1), ("alone", "lazy", 1)]
    assert lab.said == ["the job of 2 runs died, so each gets one of its own: no slot is left"]


def test_runs_that_cannot_be_stored_are_not_made_again_as_some_are_stored_already():
    lab = Lab(full=True)
    with pytest.raises(ServiceUnavailable, match="MinIO is full"):
        list(run_in_one_job(lab, [spec(), spec(strategy="lazy")], failed=lambda *of: None))
    assert len(lab.asked) == 1 and lab.said == []


@pytest.mark.parametrize(
    ("told", "objective_ms"),
    [
        ([*(Second(at, 0) for at in range(20)), *(Second(20 + at, 9, 40.0, 80.0) for at in range(5))], 160),
        ([Second(30, 9, 40.0, 80.0), Second(31, 0), Second(32, 0)], 160),
        ([Second(number, 0) for number in range(25)], 50),
    ],
    ids=["a job takes a while to start", "nothing came for a while", "nothing has come yet"],
)
def test_normal_latency_is_that_of_the_seconds_under_load_that_have_results(monkeypatch, told, objective_ms):
    job, asked = CalmJob(spec(), 1.0), []
    job.began_at, job.traffic = 19.5, SimpleNamespace(seconds=told)
    job.calm = lambda since, seconds, objective_ms: asked.append(objective_ms) or True
    played(monkeypatch, job, [job.spec])
    assert asked == [objective_ms] * 2


def test_each_lap_says_that_the_clock_was_set_though_that_is_known_behind_the_last_one(monkeypatch):
    job = CalmJob(spec(), 1.0)
    job.announce, job.measured_wrong = (lambda *_: job.notes.append(len(job.notes))), ["the clock was set"]
    laps = played(monkeypatch, job, [job.spec] * 2)
    assert [lap.notes for _, lap in laps] == [[number, "the clock was set"] for number in ("0", "1")]


class CalmJob:
    """Has a calm second after the other, on a clock of its own, and a migration takes it ``takes_s``."""

    def __init__(self, spec, takes_s):
        self.spec, self.takes_s, self.now, self.began_at = spec, takes_s, 1000.0, 990.0
        self.system, self.plans, self.traffic = self, self, self
        self.notes, self.migrated_at, self.measured_wrong, self.reporter = [], [], [], Reporter(lambda line: None)
        self.time = self.perf_counter = lambda: self.now
        self.status, self.measure = (lambda: {"attempt": 0}), dict
        self.announce = self.copied = self.end_copies = self.verdict = lambda *_: None
        self.end = lambda: self

    @property
    def seconds(self):
        return [Second(at, 9, 4.0, 8.0) for at in range(990, int(self.now))]

    def calm(self, *asked):
        return RunLoop.calm(self, *asked)

    def propose(self, stage, change, point):
        return SimpleNamespace(stage=stage)

    def adopt(self, plan):
        self.migrated_at.append(self.now + self.takes_s)
        return 0

    def ended(self, stage, number):
        return True if self.now >= self.migrated_at[-1] else None


def test_a_lap_tells_that_its_migration_has_left_units_behind(monkeypatch):
    job, ended = CalmJob(spec(), 1.0), CalmJob.ended
    job.ended = lambda stage, number: ended(job, stage, number) and len(job.migrated_at) != 3  # behind practice
    laps = played(monkeypatch, job, [job.spec] * 2)
    assert [lap.incomplete for _, lap in laps] == [True, False]


def test_a_series_whose_units_do_not_go_back_ends_as_the_next_lap_would_begin_elsewhere(monkeypatch):
    job, ended = CalmJob(spec(), 1.0), CalmJob.ended
    job.ended = lambda stage, number: ended(job, stage, number) and len(job.migrated_at) != 4
    with pytest.raises(MigrationFailed, match="units did not go back"):
        played(monkeypatch, job, [job.spec] * 2)


def played(monkeypatch, job, specs):
    """What is known of these laps of a job: of each its span, and all."""
    monkeypatch.setattr(scripts, "time", job)
    monkeypatch.setattr(scripts, "evaluation_of", lambda ended, lap, verdict: lap)
    series = Series(specs)
    for moment in series.script(job):
        job.now = max(job.now + 0.01, moment)
    return series.evaluations()


@pytest.mark.parametrize(
    ("takes_s", "seconds", "behind_s"),
    [(1.0, 40.0, CALM_S), (7.0, 40.0, CALM_S), (7.0, 10.0, 0.0)],
    ids=["a short migration", "one that is longer than the calm time", "no longer than the run"],
)
def test_a_lap_lasts_until_latency_was_normal_for_a_while_behind_its_migration(monkeypatch, takes_s, seconds, behind_s):
    mine = spec(seconds=seconds)
    job, asked, objective_ms = CalmJob(mine, takes_s), [], metrics.objective_ms
    monkeypatch.setattr(metrics, "objective_ms", lambda ms: asked.append(ms) or objective_ms(ms))
    [(span, _)] = played(monkeypatch, job, [mine])
    assert job.strategy == mine.strategy.name, "what is told of the series meanwhile"
    assert len(asked) == 2, "it is of all seconds: once before the migration, and once behind it"
    _, _, migrated_at, _ = job.migrated_at  # behind practice, and before the way back
    assert behind_s <= span.end - migrated_at < behind_s + 2.5
