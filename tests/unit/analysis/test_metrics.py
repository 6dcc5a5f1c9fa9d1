"""The measures, on frames small enough to compute by hand."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis import metrics
from keyshift.model.errors import BadInput

NAN = float("nan")


def latency(*rows: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["created_s", "latency_ms"]).astype({"latency_ms": "float32"})


def seconds(p99: dict[int, float]) -> pd.DataFrame:
    return pd.DataFrame({"second": list(p99), "p99_ms": list(p99.values())})


def migration(*rows: tuple[float, ...]) -> pd.DataFrame:
    """Rows of step, then switched, aligned, received, installed, drained."""
    columns = ["step", "switched_s", "aligned_s", "received_s", "installed_s", "drained_s"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(sent_s=frame["received_s"], bytes=10, unit=range(len(rows)), stage=0)


NO_MIGRATION = migration()
NO_METRICS = pd.DataFrame({"t_s": [], "metric": [], "instance": [], "value": []})
LOAD = metrics.Offered(begin_s=-5.0, end_s=10.0, took_s=15.0, events=150, unprocessed=0, due=150)
TWO_STEPS = migration((0, 1.0, 1.5, 2.0, 2.25, 2.5), (0, 1.0, 1.25, 3.0, 3.5, 3.75), (1, 4.0, 4.5, 4.75, 5.0, 5.5))


def test_a_result_counts_for_the_second_its_event_was_created_in():
    found = metrics.per_second(latency((-0.1, 10), (0.0, 20), (0.9, 30), (2.5, 4000)))
    assert found["second"].tolist() == [-1, 0, 2]
    assert found["count"].tolist() == [1, 2, 1]
    assert found["p50_ms"].tolist() == [10, 25, 4000]
    assert found["max_ms"].tolist() == [10, 30, 4000]
    assert found["p99_ms"].tolist() == pytest.approx([10, 29.9, 4000])
    with pytest.raises(BadInput, match=r"per_second: no column latency_ms; the frame has created_s"):
        metrics.per_second(pd.DataFrame({"created_s": [1.0]}))


def test_before_leaves_out_the_warm_up_the_migration_and_what_was_still_on_its_way_when_that_began():
    found = metrics.before(latency((-9, 500), (-4, 10), (-3, 20), (-2, 30), (0, 900)), since_s=-5)
    assert found == (20, pytest.approx(29.8))
    assert metrics.before(latency((1, 5)), since_s=-5) == (None, None)
    # A batch that is under way when Spark is to stop answers after the restart.
    assert metrics.before(latency((-4, 10), (-3, 10), (-0.2, 1300), (-0.1, 1200)), since_s=-5) == (10, 10)


def test_pace_counts_what_was_answered_while_the_load_lasted_and_what_was_left_then():
    results = latency((-2.0, 100), (-1.0, 100), (0.0, 100), (1.5, 400), (1.9, 200), (1.9, 2600))
    offered = metrics.Offered(begin_s=-2.0, end_s=2.0, took_s=3.2, events=8, unprocessed=0, due=8)
    assert metrics.pace(results, offered) == {
        "offered_per_s": 8 / 4,
        "sustained_per_s": 4 / 4,
        "results_due": 8,
        "backlog": 4,
        "worked_off_s": pytest.approx(2.5),
        "unprocessed": 0,
        "overloaded": False,
        "rate_changed": False,
    }
    assert metrics.pace(results, offered._replace(took_s=5.0))["offered_per_s"] == 8 / 5
    seldom = metrics.pace(results, offered._replace(events=800))
    assert (seldom["offered_per_s"], seldom["sustained_per_s"]) == (200, 100), "a result is due for every 100th event"
    assert seldom["backlog"] == 400, "of events, as the rates"
    assert metrics.pace(latency(), offered._replace(due=0))["sustained_per_s"] is None
    not_waited_for = metrics.pace(latency((0.0, 100), (1.9, 3000)), offered._replace(unprocessed=6, due=2))
    told = ("overloaded", "unprocessed", "results_due", "backlog", "worked_off_s")
    assert [not_waited_for[name] for name in told] == [True, 6, 2, 7, None]
    rarely = metrics.pace(latency((0.0, 100), (1.9, 3000)), offered._replace(events=206, unprocessed=6, due=2))
    assert rarely["backlog"] == 6 + 100
    assert metrics.pace(latency(), offered._replace(events=9, unprocessed=6, due=0))["backlog"] == 6


@pytest.mark.parametrize(
    ("p99", "not_before", "expected"),
    [
        pytest.param([10, 10, 10], 0, 0.0, id="never above"),
        pytest.param([900, 900, 10, 10, 10], 0, 2.0, id="above for two seconds"),
        pytest.param([900, 10, 10, 900, 10, 10, 10], 0, 4.0, id="two seconds under are not for good"),
        pytest.param([900, 10, 10, 10, 900, 10, 10, 10], 4.5, 5.0, id="quiet between two steps is no recovery"),
        pytest.param([900, 10, 10, 10, 10, 10, 10], 3.5, 1.0, id="the migration outlasts the spike"),
        pytest.param([900, 900, 900, 10, 10], 0, None, id="the run ends first"),
        pytest.param([100, 100, 100], 0, 0.0, id="exactly the objective is under it"),
        pytest.param([900, 10, NAN, 10, 10, 10], 0, 1.0, id="a second without results is neither good nor above"),
    ],
)
def test_recovery_is_the_end_of_the_last_second_above_the_objective(p99, not_before, expected):
    frame = seconds({-1: 5000.0} | dict(enumerate(p99)))
    assert metrics.recover_s(frame, 100.0, not_before) == expected
    assert metrics.recover_s(frame.dropna(), 100.0, not_before) == expected


def test_the_spike_is_looked_for_between_trigger_and_recovery_and_the_objective_is_relative_for_a_slow_job_only():
    frame = seconds({-1: 999.0, 0: 10.0, 1: 80.0, 2: 20.0, 3: 700.0})
    assert metrics.spike_ms(frame, 3.0) == 80
    assert metrics.spike_ms(frame, None) == 700
    assert metrics.spike_ms(frame, 0.0) == 10
    assert metrics.spike_ms(seconds({-1: 5.0}), None) is None
    assert metrics.objective_ms(100) == 200
    assert metrics.objective_ms(5) == 55


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([(-3, 0), (-1, 0), (1, 1000), (2, 100), (0, 2600)], 3000, id="between arrivals, not creations"),
        pytest.param([(-9, 0), (-1, 0), (0.5, 0), (1, 0)], 1500, id="not before the trigger"),
        pytest.param([(-9, 0), (-1, 0)], None, id="nothing came after the trigger"),
    ],
)
def test_silence_is_the_longest_time_between_two_results(results, expected):
    found = metrics.silence_ms(latency(*results))
    assert found == (expected and pytest.approx(expected))


def test_the_mean_latency_is_of_events_until_the_last_drained_unit_and_the_longest_of_results_behind_the_trigger():
    results = latency((-0.1, 900), (0.0, 10), (1.0, 20), (2.5, 60), (9.0, 900))
    assert metrics.mean_ms(results, migration((0, 1.0, 1.5, 2.0, 2.25, 2.5))) == 30
    assert metrics.mean_ms(results, NO_MIGRATION) is None
    assert metrics.longest_ms(latency((-3.0, 2900), (-0.5, 700), (1.0, 20), (2.5, 60))) == 700
    assert metrics.longest_ms(latency((-3.0, 2900))) is None


def test_completion_is_from_the_first_switch_to_the_last_install():
    assert metrics.completion_s(TWO_STEPS) == 4.0
    assert metrics.completion_s(NO_MIGRATION) is None
    assert metrics.completion_s(migration((0, 1, 2, 3, NAN, NAN), (0, 1, 2, 3, 4, 5))) is None


def test_phases_of_overlapping_units_end_with_the_last_unit():
    assert metrics.phases(TWO_STEPS, planned_s=0.75, replicate_s=9.0) == {
        "plan": 0.75,
        "replicate": 9.0,
        "prepare": 0.25 + 0.25,
        "align": 0.5 + 0.5,
        "transfer": 1.5 + 0.25,
        "install": 0.5 + 0.25,
        "catch_up": 0.25 + 0.5,
    }


def test_phases_add_up_to_the_time_to_the_last_drained_unit_and_one_at_an_unknown_moment_is_unknown():
    random = np.random.default_rng(7)
    rows = [(step, *np.cumsum(random.uniform(0, 1, 5)) + step * random.uniform(0, 3)) for step in (0, 0, 1, 1, 2)]
    frame = migration(*rows)
    found = metrics.phases(frame, planned_s=0.0)
    assert min(found[name] for name in metrics.MOMENT_PHASES) >= 0
    assert sum(found[name] for name in metrics.MOMENT_PHASES) == pytest.approx(frame["drained_s"].max())
    found = metrics.phases(migration((0, 1.0, NAN, 2.0, 2.5, 3.0), (0, 1.0, 1.5, 2.0, 2.5, 3.0)))
    assert (found["align"], found["transfer"], found["plan"]) == (None, None, None)
    assert (found["prepare"], found["install"], found["catch_up"]) == (1.0, 0.5, 0.5)


def test_the_ccdf_counts_ties_and_ends_at_the_maximum():
    found = metrics.ccdf(latency((0, 5), (0, 1), (0, 5), (0, 2)))
    assert found[["latency_ms", "fraction"]].to_numpy().tolist() == [[1, 1.0], [2, 0.75], [5, 0.5]]
    assert found["results"].tolist() == [4, 3, 2]
    many = metrics.ccdf(pd.DataFrame({"latency_ms": np.arange(1, 100_001)}))
    assert len(many) <= metrics.CCDF_POINTS
    assert many["latency_ms"].iloc[[0, -2, -1]].tolist() == [1, 99_999, 100_000]
    assert np.allclose(many["fraction"], (100_001 - many["latency_ms"]) / 100_000)
    assert metrics.ccdf(latency()).empty


def test_repetitions_are_median_and_range_and_peak_memory_the_largest_sum_over_processes_within_a_second():
    runs = [metrics.per_second(latency((0, value), *(((1, 7),) if value == 3 else ()))) for value in (1, 3, 8)]
    found = metrics.over_repetitions(runs)
    assert found["runs"].tolist() == [3, 1]
    assert found.loc[0, ["p99_low_ms", "p99_ms", "p99_high_ms"]].tolist() == [1, 3, 8]
    rows = [(0.1, "rss_mib", "a", 10), (0.9, "rss_mib", "a", 30), (0.2, "rss_mib", "b", 5), (1.0, "rss_mib", "b", 25)]
    frame = pd.DataFrame([*rows, (0.0, "cpu_cores", "a", 99)], columns=["t_s", "metric", "instance", "value"])
    assert metrics.peak(frame, "rss_mib") == 35
    assert metrics.peak(frame, "no_such_metric") is None


def test_a_run_is_summarised_and_a_spike_below_the_objective_is_still_that_of_the_migration():
    rows = [(t / 10, 10.0) for t in range(-50, 100)] + [(0.5, 800.0), (3.5, 300.0), (20.0, 10.0)]
    memory = pd.DataFrame({"t_s": [0.0], "metric": "rss_mib", "instance": "a", "value": 64.0})
    given = {"since_s": -4, "bytes_minimum": 20, "copy_bytes_per_s": 10, "planned_s": 0.5}
    found = metrics.summarise(latency(*rows), TWO_STEPS, memory, load=LOAD._replace(end_s=20.0, events=250), **given)
    assert (found["p50_ms"], found["p99_ms"]) == (10, 10)
    assert found["spike_ms"] == pytest.approx(np.percentile([10] * 10 + [800], 99))
    assert (found["recover_s"], found["completion_s"]) == (4.0, 4.0)
    assert found["silence_ms"] == pytest.approx(10_100)  # between the results of the events at 9.9 and 20
    assert (found["bytes_moved"], found["units_moved"], found["steps"], found["floor_s"]) == (30, 3, 2, 2.0)
    assert (found["events"], found["rate_per_s"], found["peak_rss_mib"]) == (250, 10.0, 64)
    bump, later = [(3.0 + i / 100, 40.0) for i in range(100)], [(8.0 + i / 100, 45.0) for i in range(100)]
    rows = [(t / 10, 10.0) for t in range(-50, 100)]
    found = metrics.summarise(latency(*rows, *bump, *later), TWO_STEPS, NO_METRICS, load=LOAD, since_s=-4)
    assert (found["recover_s"], found["spike_ms"]) == (0.0, 40.0)


def fault(*moments_s: float) -> pd.DataFrame:
    return pd.DataFrame({"t_s": moments_s}).assign(metric="fault", instance="kill slot", value=1.0)


@pytest.mark.parametrize("moved", [NO_MIGRATION, migration((0, 0.1, 0.2, 0.3, 0.4, 0.5))], ids=["still", "moved"])
def test_a_fault_behind_three_quiet_seconds_is_in_spike_and_recovery(moved):
    rows = [(t / 10, 2000.0 if 40 <= t < 60 else 10.0) for t in range(-50, 100)]
    given = {"load": LOAD, "since_s": -4}
    found = metrics.summarise(latency(*rows), moved, fault(1.0, 4.0), **given)
    assert (found["spike_ms"], found["recover_s"]) == (2000.0, 6.0)
    later = metrics.summarise(latency(*rows), moved, fault(1.0, 4.0, 10.5), **given)
    assert (later["spike_ms"], later["recover_s"]) == (2000.0, 6.0), "a fault behind the load hits no event of it"
    died = metrics.summarise(latency(*rows), moved, fault(4.0).assign(metric="death"), **given)
    assert (died["spike_ms"], died["recover_s"]) == (2000.0, 6.0), "nor is a job over it that has died"
    unseen = metrics.summarise(latency(*rows), moved, fault(8.0), **given)
    assert (unseen["spike_ms"], unseen["recover_s"]) == (2000.0, None), "the run ends first"
    before = metrics.summarise(latency(*rows), moved, fault(-2.0), **given)
    assert before["recover_s"] == 0.0


def test_what_was_not_measured_or_not_told_is_none_not_zero():
    silent = TWO_STEPS.assign(bytes=[10, 0, 10], sent_s=[1.9, NAN, 4.6])
    given = latency((0.5, 10)), silent, NO_METRICS
    assert metrics.summarise(*given, load=LOAD, since_s=-4, bytes_beside=5)["bytes_moved"] is None
    whole = latency((0.5, 10)), TWO_STEPS, NO_METRICS
    assert metrics.summarise(*whole, load=LOAD, since_s=-4, bytes_beside=None)["bytes_moved"] is None
    assert metrics.bytes_sent(silent.assign(switched_s=[1.0, NAN, 4.0])) == 20, "without a switch nothing is sent"
    nothing = LOAD._replace(events=0, due=0)
    found = metrics.summarise(latency(), NO_MIGRATION, NO_METRICS, load=nothing, since_s=-4)
    unknown = {name for name, value in found.items() if value is None}
    known = {"measured_from_s", "events", "phases", "bytes_moved", "units_moved", "steps", "one_job", "incomplete"}
    known |= {"rate_per_s", "offered_per_s", "results_due", "backlog", "unprocessed", "overloaded", "rate_changed"}
    assert unknown == set(found) - known
    assert set(found["phases"].values()) == {None}


# -- several migrations of one run -------------------------------------------------------------------------------------


def moves(*rows: tuple[int, int, float, float]) -> pd.DataFrame:
    """Rows of step, unit, switched, installed; of stage 0."""
    frame = pd.DataFrame(rows, columns=["step", "unit", "switched_s", "installed_s"])
    times = dict.fromkeys(("sent_s", "drained_s"), frame["installed_s"])
    return frame.assign(stage=0, source=0, destination=1, bytes=1, **times)


def planned(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """Rows of migration, step, unit; of stage 0."""
    return pd.DataFrame(rows, columns=["migration", "step", "unit"]).assign(stage=0)


TWICE = moves((0, 7, 1.0, 2.0), (1, 8, 2.5, 3.0), (2, 8, 11.0, 11.5), (2, 7, 11.0, 12.0))
PLANNED_TWICE = planned((0, 0, 7), (0, 1, 8), (1, 0, 7), (1, 0, 8))


def test_the_completion_of_several_migrations_is_the_sum_of_theirs_without_the_pauses_between():
    assert metrics.completion_s(TWICE) == 11.0
    assert metrics.completion_s(TWICE, PLANNED_TWICE) == 2.0 + 1.0
    assert metrics.completion_s(TWICE, planned((0, 0, 7), (0, 1, 8), (0, 2, 7), (0, 2, 8))) == 11.0, "all of one"
    assert metrics.completion_s(TWICE[:0], PLANNED_TWICE[:0]) is None
    assert metrics.completion_s(TWICE.assign(installed_s=[2, 3, NAN, 12]), PLANNED_TWICE) is None
    whole = TWICE.assign(aligned_s=TWICE["switched_s"], received_s=TWICE["installed_s"])
    given = {"load": LOAD, "since_s": -4, "decisions": PLANNED_TWICE}
    assert metrics.summarise(latency((0.5, 10)), whole, NO_METRICS, **given)["completion_s"] == 3.0


def test_units_belong_to_the_migration_of_their_step():
    there = TWICE.assign(stage=1, switched_s=TWICE["switched_s"] + 1, installed_s=TWICE["installed_s"] + 1)
    both = pd.concat([TWICE, there.assign(step=there["step"] + 10)])
    decisions = pd.concat([PLANNED_TWICE, PLANNED_TWICE.assign(stage=1)])
    assert metrics.completion_s(both, decisions) == 3.0 + 2.0, "two stages at once are counted once"
    # A migration is cancelled behind its first step, and the next one moves the others.
    made = moves((0, 7, 1.0, 2.0), (1, 9, 10.0, 11.0), (2, 8, 12.0, 13.0))
    decisions = planned((0, 0, 7), (0, 1, 8), (0, 2, 9), (1, 0, 9), (1, 1, 8), (1, -1, 7))
    assert metrics.migration_of(made, decisions).tolist() == [0, 1, 1]
    assert metrics.completion_s(made, decisions) == 1.0 + 3.0
    # Units are written and read again where they are.
    stayed = moves((0, 5, 1.0, 4.0), (2, 5, 11.0, 14.0)).assign(destination=0)
    made = pd.concat([TWICE, stayed], ignore_index=True)
    assert metrics.migration_of(made, PLANNED_TWICE).tolist() == [0, 0, 1, 1, 0, 1]
    assert metrics.completion_s(made, PLANNED_TWICE) == 3.0 + 3.0


def test_a_migration_whose_last_steps_were_taken_back_has_no_completion():
    first = TWICE[:1]
    assert metrics.completion_s(first, planned((0, 0, 7))) == 1.0
    assert metrics.completion_s(first, planned((0, 0, 7), (0, 1, 8))) is None, "a step before was late, say"
    assert metrics.completion_s(first, planned((0, 0, 7), (0, -1, 8))) == 1.0, "another one put it off"
    elsewhere = pd.concat([planned((0, 0, 7)), planned((0, 0, 8)).assign(stage=1)])
    assert metrics.completion_s(first, elsewhere) is None
    back = planned((0, 0, 7), (1, 0, 7), (1, 1, 8))
    twice = pd.concat([TWICE[:2], first.assign(step=2)])
    assert metrics.completion_s(twice, back) is not None, "the table alone does not tell that 8 did not move again"
    whole = twice.assign(aligned_s=twice["switched_s"], received_s=twice["installed_s"])
    found = metrics.summarise(
        latency((0.5, 10)), whole, NO_METRICS, load=LOAD, since_s=-4, decisions=back, incomplete=True
    )
    assert found["incomplete"] and found["completion_s"] is None
    replaced = planned((0, 0, 7), (0, 1, 9), (1, 0, 8))
    assert metrics.completion_s(TWICE[:2], replaced) == 1.0 + 0.5, "nobody wants the rest of the first one any more"
