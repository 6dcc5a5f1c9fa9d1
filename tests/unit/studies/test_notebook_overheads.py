"""Notebooks about what is paid while nothing moves: what they say of runs that are made up for it."""

import pytest
from small_notebooks import execute
from small_store import run, tables

from keyshift.studies.study import Study


def study(repetitions):
    made = {name: table.to_pandas() for name, table in tables().items()}
    runs = {
        name: [
            (run(number, name, p50_ms=10.0 + number, peak_rss_mib=more + number), made) for number in range(repetitions)
        ]
        for name, more in (("plain", 500.0), ("ours", 500.5))
    }
    return Study(runs, {})


@pytest.mark.parametrize(
    ("notebook", "cell"), [("spacker/04_overhead", "def paid"), ("megaphone/02_overhead", "timelines.tail")]
)
@pytest.mark.parametrize(
    ("repetitions", "doubt"),
    [(1, "; plain and ours ran once, so all of it may be chance."), (2, " that may be chance (Welch, 95 %).")],
)
def test_a_ratio_says_how_sure_it_is(notebook, cell, repetitions, doubt):
    of = study(repetitions)
    made = execute(notebook, cell, study=of, trigger_s=3.0)
    again = {"runs": made["runs"], "table": made.get("table")}
    said = execute(notebook, "overhead_sentences", study=of, rows=of.rows(), **again)["said"]
    [ratio] = [line for line in said if line.startswith("ours next to plain: P50")]
    assert ratio.endswith(doubt) and "peak memory (MiB)" in ratio
