"""The autoscaler's driver over stand-ins for the job and its traffic: what it sees, asks for, and survives."""

import json
import math
from collections import deque
from types import SimpleNamespace

import pytest

from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import make_spec
from keyshift.lab import autoscaler as module
from keyshift.lab.autoscaler import Autoscaler, decision_told, sentence
from keyshift.model.errors import BadInput, MigrationFailed, QueryDied
from keyshift.model.records import Measured, Second
from keyshift.planner.autoscaling import COOL_DOWN_S
from keyshift.planner.scaling import StageLook
from keyshift.results.from_records import scaling_table
from keyshift.traffic.feed import Before, Progress

RATE = 500.0  # records per second of a slot at work
BEGIN = 1_000.0


class Stage:
    """Slots that work off what comes, as far as they can, and pass it on; a migration takes three seconds."""

    def __init__(self, slots, rate):
        self.slots, self.rate, self.queue, self.target, self.until = slots, rate, 0.0, None, 0.0
        self.work = {slot: [0.0, 0.0] for slot in range(8)}

    def pass_second(self, came):
        done = min(self.queue + came, self.slots * self.rate)
        self.queue += came - done
        for slot in range(self.slots):
            self.work[slot][0] += done / self.slots
            self.work[slot][1] += done / self.slots / self.rate
        return done


class Job:
    """``stages`` by their names. What they get is a ``share`` of the events that are offered."""

    def __init__(self, clock, stages, offered, share):
        self.clock, self.stages, self.offered, self.share, self.sent = clock, stages, offered, share, 0.0
        self.requests, self.raises, self.refuses = [], [], []
        self.feed = SimpleNamespace(progress=deque(maxlen=60), before=Before())
        self.traffic = SimpleNamespace(seconds=[], received=0, early=0)

    def pass_second(self):
        done = self.offered(self.clock.now)
        self.sent += done
        for stage in self.stages.values():
            done = stage.pass_second(done)
        first, *_ = self.stages.values()
        late_ms = None if not done else 10.0 + 1000.0 * first.queue / (first.slots * first.rate)
        self.traffic.seconds.append(Second(self.clock.now, done / self.share, p99_ms=late_ms))
        self.traffic.received += done / self.share
        self.clock.now += 1
        self.feed.progress.append(Progress(self.clock.now, self.sent / self.share, self.sent / self.share))
        for stage in self.stages.values():
            if stage.target is not None and self.clock.now >= stage.until:
                stage.slots, stage.target = stage.target, None

    def measure(self, within_s):
        assert within_s == 10.0
        if self.raises:
            raise self.raises.pop(0)
        return {
            name: {slot: Measured(records=((slot, records),), busy_s=s) for slot, (records, s) in stage.work.items()}
            for name, stage in self.stages.items()
        }

    @property
    def slots(self):
        return [stage.slots for stage in self.stages.values()]

    @property
    def owners(self):
        return {name: set(range(stage.slots)) for name, stage in self.stages.items()}

    @property
    def busy(self):
        return any(stage.target is not None for stage in self.stages.values())

    def request(self, change, stage):
        if self.refuses:
            raise self.refuses.pop()
        asked = self.stages[stage]
        assert asked.target is None
        self.requests.append(change)
        asked.target, asked.until = change.slots, self.clock.now + 3


@pytest.fixture
def driven(monkeypatch):
    """Makes a driver over a job, whose first stage is ``stage``; ``run(seconds)`` lets time pass for both."""

    def make(slots, offered, rates=(RATE,), share=1.0, **values):
        clock = SimpleNamespace(now=BEGIN)
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
        spec = make_spec({"trigger": "auto", "slots": slots, "slots_max": 6} | values)
        names, said = [stage.name for stage in spec.workload.stages], []
        stages = {name: Stage(slots, rate) for name, rate in zip(names, rates, strict=True)}
        job = Job(clock, stages, offered, share)
        driver = Autoscaler(spec, job, job.traffic, job.feed, BEGIN + 2, said.append, job.request)

        def run(seconds):
            for _ in range(seconds):
                job.pass_second()
                driver.go_on()

        return SimpleNamespace(job=job, stage=stages[names[0]], driver=driver, said=said, run=run, clock=clock)

    return make


def test_it_looks_as_often_as_was_asked_and_not_before_the_first_time(driven):
    made = driven(1, lambda now: 100.0, autoscale_s=5)
    made.run(30)
    assert [d.look.at_s - BEGIN for d in made.driver.decisions] == [2, 7, 12, 17, 22, 27]
    assert len(made.said) == 6


def test_it_sees_what_is_offered_what_is_left_and_how_long_slots_were_at_work(driven):
    made = driven(2, lambda now: 1200.0, slo_ms=500, slots_max=2)
    made.run(12)
    look = made.driver.decisions[-1].look
    assert look.offered_per_s == 1200.0
    assert look.backlog == made.stage.queue == 12 * 200.0
    assert look.missed_s == 2.0, "both seconds since the look before"
    (stage,) = look.stages
    assert (stage.slots, stage.records, stage.busy_s) == (2, 2000.0, 4.0)
    assert made.driver.decisions[-1].reason == "more is to be done than 2 slots can, and no more are allowed"


def test_it_requests_what_is_decided_and_nothing_while_that_is_under_way(driven):
    made = driven(1, lambda now: 200.0 if now < BEGIN + 20 or now >= BEGIN + 80 else 1500.0)
    made.run(160)
    numbers = [change.slots for change in made.job.requests]
    assert made.job.requests == [ScaleTo(number) for number in numbers]
    assert 3 < numbers[0] <= max(numbers) <= 6 and numbers[-1] == made.stage.slots == 1
    under_way = [d for d in made.driver.decisions if d.look.migrating]
    assert under_way and not any(d.moves for d in under_way)
    first = next(decision for decision in made.driver.decisions if decision.moves)
    after = next(decision.look for decision in made.driver.decisions if decision.look.migrated_at_s)
    assert after.migrated_at_s == first.look.at_s + 3, "so long it took"


def test_a_death_passes_through_and_the_next_look_begins_a_measurement(driven):
    made = driven(2, lambda now: 600.0)
    made.run(11)
    made.job.raises = [QueryDied("gone")]
    with pytest.raises(QueryDied):
        made.run(2)
    made.stage.work = {slot: [0.0, 0.0] for slot in range(8)}  # the next attempt counts from 0
    made.run(2)
    assert made.driver.decisions[-1].look.stages == (StageLook(2, 0.0, 0.0),)
    made.run(2)
    assert made.driver.decisions[-1].look.stages[0].records == 1200.0
    assert made.driver.decisions[-1].stages[0].true_per_s == pytest.approx(RATE)


def test_slots_that_do_not_answer_are_no_look_and_no_end(driven):
    made = driven(1, lambda now: 100.0)
    made.run(3)
    made.job.raises = [MigrationFailed("measure: 1 did not answer within 30 s")]
    made.run(2)
    assert len(made.driver.decisions) == 1
    assert made.said[-1] == "autoscaler: no look, measure: 1 did not answer within 30 s"
    made.run(4)
    assert len(made.driver.decisions) == 3
    assert made.driver.decisions[-1].look.offered_per_s == 100.0


def backlog(made):
    """As another look sees it, a while later."""
    made.clock.now += 2
    made.driver.go_on()
    return made.driver.decisions[-1].look.backlog


def test_results_that_are_due_for_some_events_only_are_counted_in_events(driven):
    made = driven(1, lambda now: 1000.0, slots_max=1)
    made.run(10)
    progress = [Progress(at, events, events / 4) for at, events, _ in made.job.feed.progress]
    made.job.feed.progress = deque(progress)
    seconds = made.job.traffic.seconds
    seconds[:] = [second._replace(results=second.results / 4) for second in seconds]
    made.job.traffic.received /= 4
    assert backlog(made) == made.stage.queue


def test_the_backlog_is_that_of_a_moment_that_both_sides_have_told_of(driven):
    made = driven(1, lambda now: 400.0)
    made.run(10)
    assert backlog(made) == 0
    made.job.traffic.early = 300
    made.job.traffic.received += made.job.traffic.early
    assert backlog(made) == 0
    made.job.feed.progress.pop()  # the generator tells later than the collector
    assert backlog(made) == 0
    made.job.feed.progress = deque(Progress(p.at - 0.5, p.events - 200, p.due - 200) for p in made.job.feed.progress)
    assert backlog(made) == 0
    made.job.feed.progress.clear()
    assert backlog(made) == 0


@pytest.mark.parametrize("answered", [8_000, 200], ids=["most", "little"])
def test_after_a_resume_the_backlog_is_that_of_all_events_and_results(driven, answered):
    """Results are counted from the beginning of the job, and so is what was offered."""
    made = driven(1, lambda now: 400.0)
    made.run(10)
    made.job.feed.before = Before(events=10_000, due=10_000)
    made.job.traffic.received += answered
    assert backlog(made) == 10_000 - answered
    made.job.feed.progress = deque(Progress(at, events=0, due=0) for at, *_ in made.job.feed.progress)
    made.job.traffic.received = answered
    made.job.traffic.seconds[:] = [second._replace(results=0) for second in made.job.traffic.seconds]
    assert backlog(made) == 10_000 - answered, "while nothing is offered, too"


def test_every_decision_is_said_and_stored_with_its_numbers(driven):
    made = driven(1, lambda now: 1500.0, slots_max=6)
    made.run(10)
    (moved,) = [d for d in made.driver.decisions if d.moves]
    line = sentence(moved, ["counter"])
    assert f"  autoscaler: {line}" in made.said
    for part in ("1 → ", "1500/s offered", "a slot takes 500/s", "slot-seconds to stay", moved.reason):
        assert part in line
    plain = decision_told(moved, ["counter"])
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["stages"]["counter"]["target"] == moved.stages[0].target and plain["moves"]
    assert decision_told(made.driver.decisions[0], ["counter"])["stay_cost"] is None
    table = scaling_table(made.driver.decisions, BEGIN).to_pandas()
    assert len(table) == len(made.driver.decisions) == 5
    assert table["t_s"].tolist() == [2, 4, 6, 8, 10]
    row = table[table["target"] != table["slots"]].iloc[0]
    assert (row["slots"], row["target"], row["reason"]) == (1, moved.stages[0].target, moved.reason)
    assert table["migrating"].any() and not row["migrating"]
    assert row["move_cost"] < row["stay_cost"]
    assert math.isnan(table["stay_cost"].iloc[0])


def test_each_stage_of_a_chain_gets_the_slots_that_it_needs(driven):
    made = driven(1, lambda now: 900.0, rates=(RATE, RATE / 2), workload="chain")
    made.run(90)
    assert made.job.slots == [3, 5], "900 of 500 and of 250 per second, at most 85 % at work"
    assert not any(d.moves for d in made.driver.decisions[-15:])
    assert all(d.look.migrating is False for d in made.driver.decisions if d.moves)
    first, second = made.driver.decisions[-1].stages
    assert (first.true_per_s, second.true_per_s) == (pytest.approx(RATE), pytest.approx(RATE / 2))
    assert made.driver.decisions[-1].look.backlog < 900
    moved = next(d for d in made.driver.decisions if d.moves)
    assert "counter-1 1 → " in sentence(moved, made.driver.stages)
    table = scaling_table(made.driver.decisions, BEGIN).to_pandas()
    assert table.groupby("stage").size().tolist() == [len(made.driver.decisions)] * 2
    assert table.groupby("stage")["slots"].last().tolist() == [3, 5]


def test_of_a_chain_a_stage_whose_request_is_refused_stays_and_the_others_move(driven):
    made = driven(1, lambda now: 900.0, rates=(RATE, RATE / 2), workload="chain")
    made.job.refuses = [BadInput("not now")]
    made.run(15)
    (moved,) = (decision for decision in made.driver.decisions if decision.moves)
    assert [stage.target - stage.slots for stage in moved.stages] == [0, made.job.slots[1] - 1]
    assert moved.reason == "more is to be done than the slots can; nothing was requested of counter-1, not now"


def test_a_source_that_drops_most_events_needs_slots_for_the_others_only(driven):
    made = driven(1, lambda now: 120.0, share=0.08, workload="nexmark", query="q3")
    made.run(40)
    last = made.driver.decisions[-1]
    assert (last.look.offered_per_s, made.driver.decisions.moves) == (1500.0, 0)
    assert last.stages[0].demand_per_s == pytest.approx(120.0)
    assert last.stages[0].utilisation == pytest.approx(120 / RATE)


def test_what_somebody_else_has_requested_is_left_alone_until_a_cool_down_is_over(driven):
    made = driven(1, lambda now: 200.0)
    made.run(20)
    made.job.request(ScaleTo(4), "counter")
    made.stage.until += 9
    made.run(11)
    assert made.driver.decisions[-1].look.migrating
    made.run(9)
    assert made.stage.slots == 4 and len(made.job.requests) == 1
    made.run(30)
    assert made.stage.slots == 1, "and then it is a job like any other"
    moved = next(decision for decision in made.driver.decisions if decision.moves)
    assert moved.migration_s < 4, "what lasted longer was not its own migration"


def moved_once(made):
    """Until a look sees that its first own migration is over, whose cool-down that is."""
    while not made.job.requests or made.driver.decisions[-1].reason != "a measurement begins":
        made.run(1)


def test_what_somebody_else_requests_in_a_cool_down_has_one_of_its_own(driven):
    made = driven(1, lambda now: 1500.0, autoscale_s=1)
    moved_once(made)
    made.job.request(ScaleTo(1), "counter")
    made.stage.until += 9
    made.run(12 + int(COOL_DOWN_S))
    assert made.stage.slots == 1 and len(made.job.requests) == 2
    assert made.driver.decisions[-1].reason.startswith("cool-down for ")
    made.run(20)
    assert made.stage.slots > 1, "and then it is a job like any other"


@pytest.mark.parametrize("every_s", [1, 5], ids=["looks see it", "between two looks"])
def test_nothing_is_learnt_from_a_migration_in_whose_cool_down_somebody_else_has_moved(driven, every_s):
    made = driven(4, lambda now: 200.0, autoscale_s=every_s)
    moved_once(made)
    made.job.request(ScaleTo(4), "counter")
    made.run(60)
    first, second = (decision for decision in made.driver.decisions if decision.moves)
    assert [each.stages[0].target for each in (first, second)] == [1, 1]
    assert second.migration_missed_s == first.migration_missed_s


def test_a_migration_of_somebody_else_between_two_looks_does_not_go_unnoticed(driven):
    made = driven(1, lambda now: 200.0, autoscale_s=10)
    made.run(23)
    made.job.request(ScaleTo(4), "counter")
    made.run(13)
    assert made.stage.slots == 4 and not any(d.look.migrating for d in made.driver.decisions)
    assert made.driver.decisions[-1].reason == "a measurement begins"


def test_a_request_that_cannot_be_made_is_said_and_made_later(driven):
    made = driven(1, lambda now: 1500.0, slots_max=4)
    made.job.refuses = [MigrationFailed("measure: 1 did not answer")]
    made.run(40)
    assert "autoscaler: nothing was requested of counter, measure: 1 did not answer" in made.said
    assert made.stage.slots > 3
    assert made.driver.decisions.moves == len(made.job.requests)
    refused = next(
        decision for decision in made.driver.decisions if decision.reason.startswith("nothing was requested")
    )
    assert refused.reason == "nothing was requested of counter, measure: 1 did not answer"
    assert refused.stages[0].target == refused.stages[0].slots and not decision_told(refused, ["counter"])["moves"]
    requested = next(decision for decision in made.driver.decisions if decision.moves)
    assert requested.migration_s == refused.migration_s, "a refusal says nothing about how long a migration takes"
    between = [d for d in made.driver.decisions if refused.look.at_s < d.look.at_s < requested.look.at_s]
    assert not any(d.look.migrating or d.reason.startswith("cool-down") for d in between)
