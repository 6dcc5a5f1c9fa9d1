"""How the highest rate is found: which rates are tried, what counts as sustained, and what a job is told meanwhile."""

import math

import pytest

from keyshift.experiment.spec import make_spec
from keyshift.lab import run_loop
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts import highest_rate
from keyshift.lab.scripts.highest_rate import Burst, RateSearch, Tried, burst_of, expected_s, late_ms, staircase
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.records import Second
from keyshift.traffic.feed import Progress
from waits import Clock


def climb(limit, start, bisections, tries=1):
    """The rate that is found, and all that were tried, where those up to ``limit`` are sustained."""
    rates, asked = staircase(start, bisections, tries), []
    rate = next(rates)
    while True:
        asked.append(rate)
        try:
            rate = rates.send(rate <= limit)
        except StopIteration as end:
            return end.value, asked


STARTS = pytest.mark.parametrize("start", [highest_rate.LOWEST_PER_S, 500.0, 3_173.0, 8_000.0, 512_000.0])


@STARTS
@pytest.mark.parametrize("limit", [350.0, 1_000.0, 9_999.0, 70_001.0])
def test_the_staircase_ends_just_below_the_limit_wherever_it_starts(limit, start):
    found, asked = climb(limit, start, bisections=4)
    assert found <= limit < found * 2 ** (1 / 16) * 1.000001
    assert len(asked) == len(set(asked)), "a rate was tried twice"


@STARTS
def test_the_lowest_rate_is_tried_before_none_is_sustained_and_it_ends_when_every_rate_is(start):
    found, asked = climb(0, start, bisections=4)
    assert (found, asked[-1], min(asked)) == (0, highest_rate.LOWEST_PER_S, highest_rate.LOWEST_PER_S)
    found, asked = climb(math.inf, start, bisections=2)
    assert found == max(asked)


def test_a_rate_that_fails_is_tried_once_more():
    found, asked = climb(1_000.0, 1_000.0, bisections=1, tries=2)
    assert (found, asked[:3]) == (1_000.0, [1_000.0, 2_000.0, 2_000.0])
    assert asked[3] == asked[4] == pytest.approx(1_000 * math.sqrt(2))


LATE = 3 * highest_rate.SUSTAINED_P99_MS


GOOD, BAD = Second(10, 9, 1.0, 5.0), Second(11, 9, LATE, LATE)
NOT_SUSTAINED = {
    "results are missing": Burst([1.0] * 6, [5.0] * 6, kept_up=False),
    "latency is high at the end": Burst([1.0] * 6, [5.0, 5.0, 5.0, 5.0, LATE, LATE], kept_up=True),
    "nothing was measured": Burst([], [], kept_up=True),
    "results came late, behind its end": burst_of([GOOD, BAD], 10, 11, complete=True),
    "nothing came while it was measured": burst_of([GOOD, Second(11, 0), Second(12, 9, 1.0, 5.0)], 11, 12, True),
    "it was given up": burst_of([GOOD], 10, 11, complete=False),
}


@pytest.mark.parametrize("burst", NOT_SUSTAINED.values(), ids=NOT_SUSTAINED.keys())
def test_a_rate_is_not_sustained_when(burst):
    assert not burst.sustained


def test_a_burst_is_summed_up_by_medians_and_sustained_although_it_began_with_a_hiccup():
    burst = Burst([1.0, 1.0, 9.0, 2.0, 2.0, 2.0], [LATE, LATE, 5.0, 6.0, 6.0, 6.0], kept_up=True)
    assert (burst.p50_ms, burst.p99_ms) == (2.0, 6.0)
    assert burst.sustained


class Job:
    """Takes ``most`` events/s, in the time of ``clock``, from a generator that offers ``full`` at the most. What one of
    them does not take waits.
    """

    def __init__(self, clock, most, full):
        self.clock, self.most, self.full, self.rates, self.seconds, self.notes = clock, most, full, [], [], []
        self.progress = []
        self.rate = self.waiting = self.unsent = self.sent = 0.0
        self.note, self.check = self.notes.append, lambda: None

    def change_rate(self, rate, source):
        self.rates.append(rate)
        self.rate = rate

    def pass_second(self):
        offered = min(self.unsent + self.rate, self.full)
        self.unsent, self.sent = self.unsent + self.rate - offered, self.sent + offered
        self.progress.append(Progress(self.clock.now, round(self.sent), 0))
        self.waiting = max(0.0, self.waiting + offered - self.most)
        late = 10.0 + 1000 * (self.waiting / self.most + self.unsent / self.full)
        self.seconds.append(Second(int(self.clock.now), round(min(self.rate, self.most)), late, late))


@pytest.fixture
def searched(monkeypatch):
    """Searches the highest rate of a job that takes ``most`` events/s."""

    def search(most, full=math.inf, **values):
        clock = Clock(1000.0)
        job, found = Job(clock, most, full), RateSearch(bisections=2)
        spec = make_spec({"trigger": "none", "rate": 1000, "seconds": 4, "trigger_s": 0, "warmup_s": 1, **values})
        run = RunLoop(spec, job, job, Reporter(lambda line: None), lambda: None, found.script)
        run.feed, run.began_at = job, clock.now

        def pass_by(seconds):
            before, clock.now = clock.now, clock.now + seconds
            for _ in range(int(before), int(clock.now)):
                job.pass_second()

        clock.pass_by = pass_by
        for module in (highest_rate, run_loop):
            monkeypatch.setattr(module, "time", clock)
        run.follow()
        job.expected_s = expected_s(spec, 2)
        return found, job

    return search


@pytest.mark.parametrize("most", [700.0, 1000.0, 5200.0])
def test_the_search_ends_just_below_what_a_job_takes_and_rests_between_two_rates(searched, most):
    found, job = searched(most)
    assert most / 2 ** (1 / 4) / 1.02 < found.highest <= most * 1.02
    assert [tried.rate for tried in found.tried] == [rate for rate in job.rates if rate != highest_rate.REST_PER_S][:-1]
    assert job.rates[-2:] == [highest_rate.HELD * found.highest, highest_rate.REST_PER_S]
    assert job.rates[1::2] == [highest_rate.REST_PER_S] * (len(job.rates) // 2)
    assert found.held.sustained and found.held.p99_ms == 10.0 and len(found.held.p99s_ms) == 4
    assert job.expected_s / 2 < len(job.seconds) < 2 * job.expected_s
    (note,) = job.notes
    assert f"{len(found.tried)} were tried: the highest sustained is {found.highest:.0f} events/s, P99 of a" in note
    assert "P99 of a second at 80% of it 10.0 ms" in note
    assert not found.at_least and all(burst.in_time for _, burst in found.tried) and "may be higher" not in note


def test_where_the_generator_is_full_first_the_job_may_sustain_more(searched):
    found, job = searched(50_000.0, full=3000.0)
    assert found.highest <= 3000.0 < found.above and found.at_least
    assert {rate > found.highest for rate, burst in found.tried if not burst.in_time} == {True}
    assert f"; {found.above:.0f} events/s were offered late, so it may be higher" in job.notes[0]
    found.tried.append(Tried(found.above, Burst([900.0], [2000.0], kept_up=False)))
    assert not found.at_least, "once it was in time, and the job did not keep up"


def test_events_are_late_by_what_a_generator_has_not_offered_of_them():
    def told(events_per_s, begin=100):
        return [Progress(begin + second, second * events_per_s, 0) for second in range(8)]

    assert late_ms(told(1000), 100, 1000) == 0
    assert late_ms(told(750), 100, 1000) == pytest.approx(0.25 * 7000)
    before = [Progress(second, 9, 0) for second in range(100)]
    assert late_ms([*before, *told(750)], 100, 1000) == pytest.approx(0.25 * 7000), "what was before does not count"
    assert late_ms(told(750)[:2], 100, 1000) == 0, "nobody can say"


def test_a_job_that_takes_hardly_anything_has_no_highest_rate(searched):
    found, job = searched(200.0)
    assert (found.highest, found.held) == (0.0, None)
    assert "none is sustained, not even 250 events/s" in job.notes[0]


def test_a_backlog_that_stays_ends_the_search(searched):
    with pytest.raises(ServiceUnavailable, match=r"catch_up_s = 5: .* at 100 events/s; raise catch_up_s"):
        searched(50.0, catch_up_s=5)
