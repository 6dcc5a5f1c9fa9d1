"""What a notebook gets of searches for the highest rate, with runs that were never made."""

from pathlib import Path

import pytest
import small_store
from small_lab import opens

from keyshift.analysis.rates import RATE_MEASURES, rate_ratio_sentences, rate_sentences
from keyshift.experiment.loads import write_events
from keyshift.experiment.spec import make_spec
from keyshift.lab.environment import NotStarted, nothing_starts
from keyshift.lab.scripts.highest_rate import Burst, Tried
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.studies import highest_rate as studies
from keyshift.studies.highest_rate import measure_highest_rates

GOOD, BAD = Burst([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], kept_up=True), Burst([], [], kept_up=False)
OFFERED_LATE = Burst([], [], kept_up=False, in_time=False)


class Lab:
    """Its jobs take 1000 events/s for each slot, and some more with each seed. Those of ``dies`` die, and beside those
    of ``full`` the generator is full.
    """

    def __init__(self):
        self.dies, self.bad, self.full, self.asked, self.store = set(), set(), set(), [], self

    def get_tables(self, run_id):
        return {}

    def run(self, spec, make_script):
        slots, search = spec.job.slots, make_script.__self__
        self.asked.append((slots, spec.workload.seed))
        if slots in self.dies:
            raise KeyshiftError(f"{slots} slots died")
        search.highest = 1000.0 * slots + spec.workload.seed
        failed = OFFERED_LATE if slots in self.full else BAD
        search.held, search.tried = GOOD, [Tried(search.highest, GOOD), Tried(2 * search.highest, failed)]
        status = "bad" if slots in self.bad else "ok"
        return small_store.run(len(self.asked), "fluid", status=status, parameters=spec.parameters())


@pytest.fixture
def lab(monkeypatch):
    return opens(monkeypatch, studies, Lab())


def points(*slots):
    return {f"{each} slots": {"slots": each} for each in slots}


def test_each_point_has_its_highest_rate_in_a_job_of_its_own(lab):
    lab.dies = {3}
    study = measure_highest_rates(points(1, 2, 3), {"repetitions": 2, "seconds": 5, "seed": 10})
    assert lab.asked == [(1, 10), (2, 10), (3, 10), (1, 11), (2, 11), (3, 11)]
    assert [(row["strategy"], row["highest_per_s"], row["held_p99_ms"]) for row in study.rows()] == [
        *(("1 slots", 1010.0, 6.0), ("1 slots", 1011.0, 6.0)),
        *(("2 slots", 2010.0, 6.0), ("2 slots", 2011.0, 6.0)),
    ]
    tried = study.tried()
    assert tried.loc["2 slots", "events/s"].to_list() == [2010, 4020, 2011, 4022]
    assert tried["sustained"].to_list() == [True, False] * 4
    assert tried["P99 of a second (ms)"].iloc[0] == 6.0, "the median over its seconds"
    assert study.died == {"3 slots": "3 slots died"}
    with pytest.raises(KeyshiftError, match="all points died: 3 slots died"):
        measure_highest_rates(points(3))


def test_a_search_is_expected_to_take_as_long_as_its_bursts():
    with nothing_starts(), pytest.raises(NotStarted) as told:
        measure_highest_rates(points(1, 2), {"repetitions": 3, "seconds": 5, "warmup_s": 1}, bisections=2)
    assert told.value.asked.load_s == 2 * 3 * (1 + 7 * (2 + 5 + 2))


def test_what_more_slots_bring_is_said_of_correct_runs_alone(lab):
    lab.bad = {4}
    study = measure_highest_rates(points(1, 2, 4), {"workload": "chain", "chain": "map", "seed": 0})
    wrong, right, grown, step = rate_sentences(study.rows())
    assert wrong.startswith("4 slots is not correct")
    assert right == "1 slots and 2 slots: correct, nothing lost, duplicated, reordered or wrong."
    assert grown == "map: 1000 events/s with slots = 1, 2000 with 2: 2 times as many with 2 times the slots."
    assert step == "Each rate is known to within 100 %: the next one that was tried is not sustained."
    assert {name: measure(study.rows()[0]) for name, measure in RATE_MEASURES.items()} == {
        "highest sustained rate (events/s)": 1000.0,
        "P50 of a second at 80 % of it (ms)": 2.0,
        "P99 of a second at 80 % of it (ms)": 6.0,
    }


CHAIN = {"workload": "chain", "chain": "map", "seed": 0}
LEAST = "At least: the next rate that was tried, if there is one, was offered late: it says nothing of the job."


def test_where_the_generator_was_late_a_rate_is_the_least_and_no_multiple_of_it_is_told(lab):
    lab.full = {2}
    study = measure_highest_rates(points(1, 2), CHAIN)
    assert study.tried()["offered in time"].to_list() == [True, True, True, False]
    assert rate_sentences(study.rows())[1:] == [
        "map: 1000 events/s with slots = 1, at least 2000 with 2.",  # one slot may sustain up to 2000
        LEAST,
        "Each other rate is known to within 100 %: the next one that was tried is not sustained.",
    ]
    lab.full = {1, 2}
    said = rate_sentences(measure_highest_rates(points(1, 2), CHAIN).rows())
    assert said[1:] == ["map: at least 1000 events/s with slots = 1, at least 2000 with 2.", LEAST]


@pytest.mark.parametrize(
    ("full", "slots", "words"),
    [
        ((), (3, 1), "3 slots sustains 3.0 times as many events/s as 1 slots."),
        ((), (2, 3), "2 slots sustains about as many events/s as 3 slots."),  # 4000 and 6000 were not sustained
        # What is known of the other one is that it sustains its rate, and not the next one, which is twice as high.
        ((3,), (3, 1), "3 slots sustains at least 1.5 times as many events/s as 1 slots."),
        ((1,), (3, 1), "3 slots sustains at most 6.0 times as many events/s as 1 slots."),
        ((1, 3), (3, 1), "3 slots and 1 slots are not compared: of both, the next rate was offered late."),
    ],
)
def test_the_first_rate_is_told_as_a_multiple_of_the_others(lab, full, slots, words):
    lab.full = {*full}
    study = measure_highest_rates(points(*slots), CHAIN)
    assert rate_ratio_sentences(study.rows()) == [words]
    lab.bad = {slots[0]}
    (said,) = rate_ratio_sentences(measure_highest_rates(points(*slots), CHAIN).rows())
    assert said == f"{slots[0]} slots is not compared: a run of it is not correct, or sustains no rate."


def test_a_rate_that_is_not_sustained_is_no_rate_of_0(lab, monkeypatch):
    run, tried = lab.run, [Tried(500.0, BAD), Tried(250.0, BAD)]

    def none_of_one_slot(spec, make_script):
        manifest, search = run(spec, make_script), make_script.__self__
        if spec.job.slots == 1 or spec.workload.seed == 1:
            search.highest, search.held, search.tried = 0.0, None, tried
        return manifest

    monkeypatch.setattr(lab, "run", none_of_one_slot)
    study = measure_highest_rates(points(1, 2), {"workload": "chain", "chain": "map", "repetitions": 2, "seed": 0})
    assert [row["highest_per_s"] for row in study.rows()] == [None, None, 2000.0, None]
    assert rate_sentences(study.rows())[1:] == [
        "map: 2000 events/s with slots = 2.",
        "Each rate is known to within 100 %: the next one that was tried is not sustained.",
        "map: not even 250 events/s with slots = 1.",
        "map: not even 250 events/s with slots = 2 in 1 of 2 searches.",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trigger": "scale"}, "trigger must be none (it is scale)"),
        ({"rate": "auto"}, "rate a number to begin with"),
        ({"frame_ms": "auto"}, "frame_ms a number"),
        ({"rate_steps": "1:100"}, "rate_steps empty"),
        ({"events": "events.parquet"}, "events empty"),
    ],
)
def test_a_rate_is_searched_while_nothing_moves_changes_it_or_ends(lab, given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_events(make_spec({"seconds": 9}), Path("events.parquet"))
    with pytest.raises(BadInput) as refused:
        measure_highest_rates(points(1), {"seconds": 9} | given)
    assert words in str(refused.value) and not lab.asked
