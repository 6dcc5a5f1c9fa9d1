"""What is paid while nothing moves: means and intervals in a table, and how many times as much in sentences."""

import pandas as pd
import pytest

from keyshift.analysis.overhead import overhead_sentences, overhead_table

PLAIN = pd.DataFrame({"P99 (ms)": [20.0, 21.0, 22.0], "CPU (%)": [50.0, 51.0, 52.0], "copied (MiB)": 0.0})
OURS = pd.DataFrame({"P99 (ms)": [20.5, 21.5, 23.0], "CPU (%)": [60.0, 61.0, 63.0], "copied (MiB)": 9.0})
UNKNOWN = pd.DataFrame({"P99 (ms)": [None] * 3, "CPU (%)": [50.0, 51.0, 52.0], "copied (MiB)": 0.0})


def test_the_table_has_means_and_intervals_if_a_point_was_repeated():
    table = overhead_table({"plain": PLAIN, "ours": OURS[:1]})
    assert table["P99 (ms)"].tolist() == [21.0, 20.5]
    assert table["P99 (ms) 95 %"].tolist() == ["18.5 to 23.5", ""]
    assert [*overhead_table({"plain": PLAIN[:1], "ours": OURS[:1]})] == [*PLAIN]


def test_what_may_be_chance_is_called_so():
    assert overhead_sentences({"plain": PLAIN, "ours": OURS}) == [
        "ours next to plain: P99 (ms) 1.03 times, CPU (%) 1.20 times; of P99 (ms) that may be chance (Welch, 95 %)."
    ]
    silences = {"passive": PLAIN[["P99 (ms)"]], "kazoo": OURS[["P99 (ms)"]] / 5000}
    assert overhead_sentences(silences) == ["kazoo next to passive: P99 (ms) 0.00021 times."], "none is 0.00 times"


@pytest.mark.parametrize(("plain", "ours", "once"), [(1, 1, "plain and ours"), (3, 1, "ours"), (1, 3, "plain")])
def test_of_single_runs_it_is_said_that_they_are(plain, ours, once):
    [said] = overhead_sentences({"plain": PLAIN[:plain], "ours": OURS[:ours]})
    assert said.endswith(f", CPU (%) 1.2 times; {once} ran once, so all of it may be chance.")


def test_a_measure_that_one_run_of_several_knows_may_be_chance():
    some = OURS.assign(**{"CPU (%)": [60.0, None, None]})
    assert overhead_sentences({"plain": PLAIN, "ours": some}) == [
        "ours next to plain: P99 (ms) 1.03 times, CPU (%) 1.18 times; "
        "of P99 (ms) and CPU (%) that may be chance (Welch, 95 %)."
    ]


def test_what_is_not_known_and_a_single_point_are_not_compared():
    assert overhead_sentences({"plain": UNKNOWN, "ours": OURS}) == ["ours next to plain: CPU (%) 1.20 times."]
    assert overhead_sentences({"plain": PLAIN}) == overhead_sentences({}) == []
    behind = OURS.assign(**{"P99 (ms)": -5.0})
    for pair in ({"plain": PLAIN, "ours": behind}, {"plain": behind, "ours": PLAIN}):
        assert "P99 (ms)" not in overhead_sentences(pair)[0], "the clock of Kafka's log is behind"
