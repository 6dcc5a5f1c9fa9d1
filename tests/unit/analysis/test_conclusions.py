"""Comparisons of runs, as a table and in words."""

from functools import partial

import pandas as pd
import pytest
from small_store import row as summary

from keyshift.analysis.conclusions import digits, rescaling_sentences, sentences
from keyshift.analysis.tables import comparison_table
from keyshift.model.errors import BadInput

NAN = float("nan")


row = partial(
    summary,
    parameters={"seed": 1, "rate": 100},
    spike_ms=30.0,
    silence_ms=40.0,
    completion_s=3.0,
    recover_s=1.0,
    bytes_moved=3 * 2**20,
    bytes_minimum=2 * 2**20,
)


def test_the_conclusion_follows_from_the_numbers():
    slow = row("stop_restart", spike_ms=1220.0, silence_ms=6000.0, completion_s=1.2)
    assert sentences([slow, row("fluid")]) == [
        "Both runs are correct: nothing lost, duplicated, reordered or wrong.",
        "Each point ran once: what is within a factor of 2 is called the same, as equal runs differ by as much.",
        "fluid kept the P99 spike at 1.5 × its value before (a spike of 30 ms); stop_restart reached 61 × (1.2 s): "
        "41 times as much.",
        "The longest time without a result is 40 ms with fluid, 6.0 s with stop_restart: 150 times as long.",
        "stop_restart completed first, in 1.2 s; fluid took 3.0 s: 2.5 times as long.",
    ]


def test_a_fast_but_wrong_run_wins_nothing_and_one_without_summary_cannot_be_compared():
    said = " ".join(sentences([row("fluid", verdict="bad", lost=3, wrong=1, spike_ms=1.0), row("matched")]))
    assert "fluid is not correct (3 lost, 1 wrong)" in said
    assert "matched kept the P99 spike at 1.5 × its value before (a spike of 30 ms)" in said
    assert "fluid kept" not in said and "fluid completed" not in said
    only_bad = sentences([row("fluid", verdict="bad", duplicated=2)])
    assert len(only_bad) == 1 and "2 duplicated" in only_bad[0]
    with pytest.raises(BadInput, match=r"verdict nan.*did not end"):
        comparison_table([row("fluid", verdict=NAN)])
    with pytest.raises(BadInput, match="no lost"):
        sentences([{name: value for name, value in row("fluid").items() if name != "lost"}])


def test_a_number_has_two_digits_and_no_exponent():
    words = [digits(value) for value in (0.0, 6.1e-5, 0.5, 9.96, 123.0, -912.0)]
    assert words == ["0", "0.000061", "0.5", "10", "120", "-910"]


def test_ties_are_called_ties_and_a_single_run_does_not_make_alike_what_repeated_ones_tell_apart():
    said = sentences([row("fluid"), row("matched", spike_ms=31.0)])
    assert "The P99 spike is about the same everywhere, 1.6 × its value before at the most." in said
    assert not any("times as" in sentence for sentence in said)
    known = [("fluid", 1, 40.0), ("fluid", 2, 40.0), ("matched", 1, 70.0), ("matched", 2, 70.0), ("lazy", 1, 75.0)]
    said = sentences([row(name, parameters={"seed": seed}, silence_ms=ms) for name, seed, ms in known])
    assert "The longest time without a result is 40 ms with fluid, 70 ms with matched: 1.8 times as long." in said


def test_all_that_are_the_same_as_the_best_are_named_with_it():
    worst = row("stop_restart", spike_ms=2400.0, silence_ms=6000.0, completion_s=9.0)
    others = [row("matched", spike_ms=31.0), row("fluid")]
    assert sentences([row("lazy", spike_ms=18.0, silence_ms=60.0, completion_s=0.1), *others, worst])[2:] == [
        "lazy, fluid and matched kept the P99 spike at no more than 1.6 × its value before (a spike of 18 ms to 31 "
        "ms); stop_restart reached 120 × (2.4 s): 120 times as much.",
        "The longest time without a result is 40 ms to 60 ms with matched, fluid and lazy, 6.0 s with stop_restart: "
        "150 times as long.",
        "lazy completed first, in 100 ms (the change of owner only); stop_restart took 9.0 s: 90 times as long.",
    ]
    spike, _, completion = sentences([*others, worst])[2:]
    assert spike.startswith("fluid and matched kept the P99 spike at 1.5 × to 1.6 × its value before (a spike of 30 ms")
    assert completion == "matched and fluid completed first, in 3.0 s; stop_restart took 9.0 s: 3.0 times as long."


def test_single_runs_that_differ_as_equal_ones_do_are_called_the_same_and_repeated_ones_are_not():
    """Spikes of 36 to 73 ms were of ten equal runs."""
    one, other = (
        row(name, spike_ms=ms, completion_s=s) for name, ms, s in (("fluid", 37.0, 2.0), ("meces", 73.0, 2.6))
    )
    said = sentences([one, other])
    assert "The P99 spike is about the same everywhere, 3.6 × its value before at the most." in said
    assert "All took about the same time to complete, 2.0 s to 2.6 s." in said
    again = [each | {"parameters": {"seed": seed}} for each in (one, other) for seed in (1, 2)]
    assert any(sentence.endswith("(73 ms): 2.0 times as much.") for sentence in sentences(again))


def test_a_spike_below_the_p99_before_is_no_smaller_multiple_and_without_one_silences_are_compared():
    said = sentences([row("fluid", spike_ms=15.0), row("stop_restart", spike_ms=1200.0)])
    words = "no more than its value before (a spike of 15 ms); stop_restart reached 60 × (1.2 s): 60 times as much."
    assert f"fluid kept the P99 spike at {words}" in said
    rows = [row(name, p99_ms=None, recover_s=None, silence_ms=ms) for name, ms in (("fluid", 30.0), ("lazy", 400.0))]
    said = sentences(rows)
    assert "The longest time without a result is 30 ms with fluid, 400 ms with lazy: 13 times as long." in said
    assert not any("The load ended" in sentence for sentence in said)
    said = sentences([row("fluid", p99_ms=-5.0, spike_ms=900.0)])  # the clock of Kafka's log is behind
    assert "P99 before and at its spike are not both known for fluid." in said


@pytest.mark.parametrize(
    ("longer_ms", "words"),
    [
        (25.0, "The longest time without a result is about the same everywhere, 21 ms to 25 ms."),
        (61.0, "The longest time without a result is about the same everywhere, 21 ms to 61 ms."),
        (95.0, "The longest time without a result is 21 ms with fluid, 95 ms with matched: 4.5 times as long."),
    ],
)
def test_silences_of_two_frames_are_there_at_any_time(longer_ms, words):
    said = {"parameters": {"seed": 1, "frame_ms": 20.0}}
    assert words in sentences([row("fluid", silence_ms=21.0, **said), row("matched", silence_ms=longer_ms, **said)])


def test_who_was_not_seen_to_recover_is_the_best_in_nothing_that_may_not_be_over():
    rows = [
        row("fluid", recover_s=None, spike_ms=24.0, silence_ms=30.0),
        row("matched", spike_ms=200.0, silence_ms=400.0),
        row("lazy", recover_s=None, spike_ms=800.0, silence_ms=410.0),
    ]
    said = sentences(rows)
    assert said[2:4] == [
        "matched kept the P99 spike at 10 × its value before (a spike of 200 ms); lazy reached at least 40 × (800 ms): "
        "at least 4.0 times as much.",
        "The longest time without a result is 400 ms with matched.",
    ]
    assert said[-1] == (
        "The load ended before 3 seconds in a row under the objective were seen behind the migration, or the last "
        "fault, with fluid and lazy: spike and silence may be larger than what is known."
    )
    assert not any("spike at" in sentence or "without a result" in sentence for sentence in sentences(rows[:1]))


LAZY, STOP = row("lazy", completion_s=0.1), row("stop_restart", bytes_copied=0)
COPIED = row("replicated", completion_s=0.15, bytes_copied=3 * 2**20)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [LAZY, STOP],
            "lazy completed first, in 100 ms (the change of owner only); stop_restart took 3.0 s: 30 times as",
        ),
        (
            [COPIED, STOP],
            "replicated completed first, in 150 ms (copies were made before); stop_restart took 3.0 s: 20",
        ),
        (
            [row("fluid", completion_s=0.01), LAZY],
            "fluid completed first, in 10 ms; lazy took 100 ms (the change of owner",
        ),
        ([LAZY, LAZY | {"strategy": "hybrid"}], "the same time to complete, 100 ms (the change of owner only)."),
        (
            [LAZY, COPIED, row("fluid", completion_s=0.18)],
            "complete, 100 ms to 180 ms (lazy: the change of owner only; replicated: copies were made before).",
        ),
        ([STOP], "stop_restart completed in 3.0 s."),
    ],
)
def test_who_completes_by_a_change_of_owner_or_has_copied_before_is_named_with_that_wherever_it_stands(rows, words):
    assert any(words in sentence for sentence in sentences(rows))


def test_one_strategy_is_described_without_comparison_and_workloads_are_not_compared_with_each_other():
    said = sentences([row("fluid")])
    assert "fluid completed in 3.0 s." in said
    assert not any("times as" in sentence for sentence in said)
    assert sentences([]) == ["There is no run to compare."]
    said = sentences([row("fluid"), row("fluid", workload="q5", spike_ms=900.0)])
    assert {sentence.split(":")[0] for sentence in said} == {"keycount", "q5"}
    assert not any("times as" in sentence for sentence in said)


@pytest.mark.parametrize("missing", [None, NAN])
def test_missing_values_are_said_to_be_missing(missing):
    gap = row("lazy", spike_ms=missing, completion_s=missing, recover_s=missing)
    said = sentences([gap, row("fluid")])
    assert "P99 before and at its spike are not both known for lazy." in said
    assert "A completion time is missing for lazy." in said
    assert any(sentence.startswith("The load ended before") and "with lazy:" in sentence for sentence in said)
    assert not any("nan" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("happens", "said_of"),
    [
        ({"trigger": "none", "fault": ""}, []),
        ({"trigger": "none", "fault": "kill:replica@4"}, ["spike", "silence", "recover"]),
        ({"trigger": "scale", "fault": ""}, ["spike", "silence", "completion", "recover"]),
    ],
)
def test_nothing_is_said_or_missing_of_what_was_not_to_happen(happens, said_of):
    gap = row("kazoo", parameters={"seed": 1, "rate": 100} | happens, completion_s=None, recover_s=None)
    lines = {
        "spike": "kazoo kept the P99 spike at 1.5 × its value before (a spike of 30 ms).",
        "silence": "The longest time without a result is 40 ms with kazoo.",
        "completion": "A completion time is missing for kazoo.",
        "recover": "The load ended before 3 seconds in a row under the objective were seen behind the migration, or "
        "the last fault, with kazoo: spike and silence may be larger than what is known.",
    }
    said = sentences([gap]) + sentences([gap | {"recover_s": 1.0}])
    assert [name for name, line in lines.items() if line in said] == said_of


def test_a_point_in_which_nothing_can_or_had_to_move_wins_nothing():
    still = row("no_support", parameters={"seed": 1, "trigger": "none"}, spike_ms=21.0, silence_ms=1.0)
    said = sentences([still | {"completion_s": None, "recover_s": None}, row("fluid"), row("lazy", spike_ms=90.0)])
    assert said[0].startswith("All 3 runs are correct")
    assert not any("no_support" in sentence for sentence in said), said
    assert any(sentence.startswith("fluid kept the P99 spike at 1.5") for sentence in said)

    def scaled(name, seed=1, **values):
        return row(name, parameters={"seed": seed, "trigger": "scale"}, steps=4, units_moved=4, **values)

    still = {"steps": 0, "units_moved": 0, "completion_s": None, "spike_ms": 21.0, "silence_ms": 1.0}
    said = sentences([scaled("counters=3") | still, scaled("counters=1"), scaled("counters=2", spike_ms=90.0)])
    assert said[1:4:2] == [
        "Nothing moved in counters=3: spike and silence would be of any moment, and are not compared.",
        "counters=1 kept the P99 spike at 1.5 × its value before (a spike of 30 ms); counters=2 reached 4.5 × (90 ms): "
        "3.0 times as much.",
    ]
    assert not any("counters=3" in sentence for sentence in said[2:]), said
    part = sentences([scaled("fluid"), scaled("fluid", seed=2) | still])
    assert part[1].startswith("Nothing moved in 1 of 2 runs of fluid: ")
    assert part[2].startswith("fluid kept the P99 spike at 1.5 × ")
    rolled_back = still | {"steps": 1, "bytes_moved": 0, "phases": {"prepare": None, "align": None}}
    for each in (still, rolled_back):
        assert sentences([scaled("fluid") | each])[1:] == [
            "Nothing moved in fluid: spike and silence would be of any moment, and are not compared."
        ]
    one, two = {"phases": {"prepare": 0.1, "align": None}}, {"steps": 2, "bytes_moved": None}  # one was rolled back
    for died in (one, two):  # behind a switch: the next attempt has built units where they go
        said = sentences([scaled("fluid") | rolled_back | died])
        assert not any("Nothing moved" in sentence for sentence in said)


def test_a_migration_that_left_units_behind_is_the_best_in_nothing():
    cut = row("chunked", spike_ms=21.0, silence_ms=1.0, completion_s=None, incomplete=True)
    said = sentences([cut, row("fluid"), row("lazy", spike_ms=90.0)])
    assert said[2].startswith(
        "fluid kept the P99 spike at 1.5 × its value before (a spike of 30 ms); lazy reached 4.5 ×"
    )
    assert not any("chunked" in sentence for sentence in said[:-2]), said
    assert said[-2:] == [
        "A completion time is missing for chunked.",
        "Not all units came where they should with chunked: spike and silence are of the others.",
    ]


@pytest.mark.parametrize(
    "parameters", [{"trigger": "auto"}, {"trigger": "script"}, {"trigger": "scale", "fault": "kill:slot@4"}]
)
def test_a_job_that_decides_not_to_move_or_has_a_fault_is_compared_though_nothing_has_moved(parameters):
    stays = row("stays", parameters={"seed": 1} | parameters, steps=0, completion_s=None, recover_s=0.0)
    said = sentences([stays])
    assert any(sentence.startswith("stays kept the P99 spike") for sentence in said)
    assert not any("Nothing moved" in sentence for sentence in said), said


def test_of_repeated_points_figures_are_means_and_those_that_scatter_as_far_as_they_differ_prove_nothing():
    silences = [row("fluid", silence_ms=ms, parameters={"seed": ms}) for ms in (50.0, 950.0)]
    said = sentences(silences)
    assert "Of points that were repeated, the figures are means over their runs." in said
    assert "The longest time without a result is 500 ms with fluid." in said
    assert not any("means over" in sentence for sentence in sentences(silences[:1]))

    def runs(strategy: str, *spikes: float) -> list[dict[str, object]]:
        return [row(strategy, spike_ms=s, parameters={"seed": i, "rate": 100}) for i, s in enumerate(spikes)]

    def spike_sentence(*summaries: dict[str, object]) -> str:
        return next(sentence for sentence in sentences(summaries) if "spike" in sentence)

    assert "may be chance" in spike_sentence(*runs("fluid", 20, 60, 40), *runs("matched", 30, 120, 60))
    assert "2.0 times as much" in spike_sentence(*runs("fluid", 20, 21, 22), *runs("matched", 41, 42, 43))


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"overloaded": True}, "The job was overloaded in 1 of 2 runs: their figures know nothing of"),
        ({"cpu_busy": 0.9}, "The processors were full before the migration in 1 of 2 runs"),
        ({"cpu_steal": 0.05}, "The host gave others at least 5% of the processors before the migration in 1 of 2 runs"),
        ({"p99_undisturbed_ms": 9.0, "disturbed_s": 4.0}, "Others had at least 10% of the processors in 1 of 2 runs"),
    ],
)
def test_runs_of_an_overloaded_job_or_on_a_machine_without_room_are_told(known, words):
    said = sentences(
        [row("fluid", **known), row("lazy", p99_undisturbed_ms=19.0, disturbed_s=4.0, cpu_busy=0.89, cpu_steal=0.04)]
    )
    assert said[1].startswith(words)


def test_that_some_runs_have_practised_and_others_have_not_is_told():
    """The job of some has died, say, and each had one of its own then."""
    practised, anew = row("fluid", one_job=True), [row("lazy", one_job=False), row("matched")]
    assert sentences([practised, *anew])[1] == (
        "1 of 3 runs are migrations of one running job, which has practised; the others began anew."
    )
    alike = [[practised, row("lazy", one_job=True)], anew]
    assert not any("practised" in sentence for rows in alike for sentence in sentences(rows))


def test_the_table_has_units_and_one_row_per_point():
    runs = [
        row("fluid", parameters={"seed": 1, "batch": 1}),
        row("fluid", parameters={"seed": 2, "batch": 1}, spike_ms=34.0),
        row("fluid", parameters={"seed": 1, "batch": 4}, verdict="bad", lost=1),
        row("matched", spike_ms=None),
    ]
    table = comparison_table(runs)
    assert table["strategy"].tolist() == ["fluid", "fluid", "matched"]
    assert table["batch"].tolist()[:2] == [1, 4]
    assert table["runs"].tolist() == [2, 1, 1]
    assert table["verdict"].tolist() == ["ok", "bad", "ok"]
    assert table["P99 spike (ms)"].fillna(0).tolist() == [32.0, 0, 0]  # nothing is told of a run that is not correct
    assert table["P99 spike (ms) 95 %"].tolist() == ["6.59 to 57.4", "", ""]
    assert table["moved (× minimum)"].fillna(0).tolist() == [1.5, 0, 1.5]
    assert "completion (× floor)" not in table, "no run knows the floor"
    runs = [row("fluid", parameters={"seed": seed, "rate": 100, "auto": auto}) for seed, auto in ((1, "rate"), (2, ""))]
    assert comparison_table(runs)["runs"].tolist() == [2], "who chose the load makes no other point"


@pytest.mark.parametrize(("missing", "column"), [("recover_s", "recovery (s)"), ("completion_s", "completion (s)")])
def test_what_one_run_should_know_and_does_not_has_no_mean_over_the_others(missing, column):
    known = row("fluid", parameters={"seed": 1, "trigger": "scale"}, steps=4)
    short = known | {"parameters": {"seed": 2, "trigger": "scale"}, missing: None}
    table = comparison_table([known, short])
    assert table[column].isna().all() and table[f"{column} 95 %"].tolist() == [""]
    assert table["P99 spike (ms)"].tolist() == [30.0], "both know it"
    assert not any("completed in" in sentence for sentence in sentences([known, short | {"completion_s": None}]))
    for other in (short | {"steps": 0}, short | {"verdict": "bad", "lost": 1}):  # nothing moved, or nobody asks it
        assert comparison_table([known, other])[column].tolist() == [known[missing]]


def test_a_run_without_an_undisturbed_second_or_whose_autoscaler_asked_for_nothing_hides_no_other():
    known = row("fluid", parameters={"seed": 1, "trigger": "auto"}, steps=4, p99_undisturbed_ms=9.0)
    other = (
        known
        | {"parameters": {"seed": 2, "trigger": "auto"}, "steps": 0}
        | dict.fromkeys(["completion_s", "p99_undisturbed_ms"])
    )
    [found] = comparison_table([known, other]).to_dict("records")
    assert (found["completion (s)"], found["P99 before, undisturbed (ms)"]) == (known["completion_s"], 9.0)


def costs(*of_runs):
    """Of migrations, as ``rescalings`` has them."""
    return pd.DataFrame(of_runs, columns=["number", "completion_s", "spike_ms"])


def test_of_each_migration_all_are_named_that_were_or_may_be_about_as_good_as_the_best_and_who_had_copied_before():
    tables = {
        "fluid": costs((0, 1.001, 20.0), (1, 4.0, 20.0), (2, NAN, 30.0)),
        "matched": costs((0, 1.0, 60.0), (1, 1.0, 20.1), (1, 2.0, 20.1), (2, NAN, NAN)),
    }
    assert rescaling_sentences(tables, ["2 → 4", "4 → 3", "3 → 5"]) == [
        "2 → 4: fluid and matched were done first, in 1.0 s.",
        "2 → 4: fluid had the lowest spike, 20 ms.",
        "4 → 3: matched was done first, in 1.5 s.",
        "4 → 3: fluid and matched had the lowest spike, 20 ms.",
        "3 → 5: fluid and matched: not compared, as a completion or a spike is not known.",
    ]
    assert rescaling_sentences({}, ["2 → 4"]) == []
    tables = {
        "fluid": costs((0, 1.0, 20.0), (0, 1.2, 21.0), (0, 2.0, 22.0)),
        "matched": costs((0, 1.1, 60.0), (0, 1.9, 61.0), (0, 2.2, 62.0)),
        "lazy": costs((0, 0.1, 20.0), (0, NAN, 20.0), (0, NAN, 20.0)),
    }
    assert rescaling_sentences(tables, ["2 → 4"]) == [
        "2 → 4: fluid and matched were done first, in 1.4 s to 1.7 s.",
        "2 → 4: fluid had the lowest spike, 21 ms.",
        "2 → 4: lazy: not compared, as a completion or a spike is not known.",
    ]
    tables = {"chunks of 1": costs((0, 1.0, 20.0)), "chunks of 4, copied": costs((0, 1.5, 20.0))}
    rows = [row("chunks of 1"), row("chunks of 4, copied", bytes_copied=1)]
    assert rescaling_sentences(tables, ["2 → 4"], rows) == [
        "2 → 4: chunks of 1; chunks of 4, copied were done first, in 1.0 s to 1.5 s.",
        "2 → 4: chunks of 1; chunks of 4, copied had the lowest spike, 20 ms.",
        "chunks of 4, copied: copies were made before some of these migrations.",
    ]


def test_the_last_spike_of_who_was_not_seen_to_recover_may_not_be_over_and_is_not_the_lowest():
    tables = {
        name: costs((0, 1.0, ms), (1, 1.0, ms)) for name, ms in (("fluid", 20.0), ("matched", 60.0), ("chunked", 900.0))
    }
    rows = [row("fluid", recover_s=None), row("matched"), row("chunked")]
    assert rescaling_sentences(tables, ["2 → 4", "4 → 3"], rows) == [
        "2 → 4: fluid, matched and chunked were done first, in 1.0 s.",
        "2 → 4: fluid had the lowest spike, 20 ms.",
        "4 → 3: fluid, matched and chunked were done first, in 1.0 s.",
        "4 → 3: matched had the lowest spike, 60 ms.",
        "4 → 3: fluid: not compared in spike, as the load ended before all runs were seen to recover.",
    ]
