"""Notebooks about what is paid while nothing moves: what they say of runs that are made up for it."""

import pandas as pd
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


def said_of_orders(**points):
    """What is told of points ``{value: {order: status of its runs}}``, of which ``none`` is the first order."""
    made, of_point, runs = {name: table.to_pandas() for name, table in tables().items()}, {}, {}
    for value, orders in points.items():
        for order, statuses in orders.items():
            name = f"{value}, {order}"
            of_point[name] = order, value
            runs[name] = [(run(number, order, status), made) for number, status in enumerate(statuses)]
    of, given = Study(runs, {}), {"of_point": of_point, "orderings": ["none", "kazoo"], "at_rates": {}}
    found = execute("replication/02_orders", "def one(", study=of, seconds=9.0)
    given |= {"table": found["table"], "runs": found["runs"]}
    return execute("replication/02_orders", "overhead_sentences", study=of, **given)["said"]


@pytest.mark.parametrize(
    ("repetitions", "doubt"),
    [
        (1, "1.0 times; 40, none; 40, kazoo ran once, so all of it may be chance."),
        (2, "1.00 times; of P50 (ms), P99 (ms) and CPU (processors) that may be chance (Welch, 95 %)."),
    ],
)
def test_an_order_is_compared_with_the_first_one_and_each_measure_says_how_sure_it_is(repetitions, doubt):
    ok = ["ok"] * repetitions
    said = said_of_orders(**{"40": {"none": ok, "kazoo": ok}})
    assert said[-2] == "40, none: P50 20 ms and P99 60 ms."
    assert said[-1].startswith("40, kazoo next to 40, none: P50 (ms) 1.0") and said[-1].endswith(doubt)


def test_an_order_whose_baseline_failed_is_compared_with_no_other_load():
    said = said_of_orders(**{"20": {"none": ["bad"], "kazoo": ["ok"]}, "40": {"none": ["ok"], "kazoo": ["ok"]}})
    assert "20, kazoo: P50 20 ms and P99 60 ms." in said
    assert [line for line in said if " next to " in line] == [said[-1]] and said[-1].startswith("40, kazoo next")
    said = said_of_orders(**{"40": {"none": ["ok"], "kazoo": ["ok"]}, "80": {"kazoo": ["ok"]}})
    assert said[-1].startswith("80, kazoo next to 40, none: "), "without an order the heartbeat has one value"


ONCE = "1.0 times; passive and kazoo ran once, so all of it may be chance."
CHANCE = "1.00 times; of {} that may be chance (Welch, 95 %)."


@pytest.mark.parametrize(
    ("repetitions", "deaths", "of_silence", "of_cpu"),
    [
        (1, 1, ONCE, ONCE),
        (1, 2, CHANCE.format("silence (s)"), ONCE),
        (2, 1, CHANCE.format("silence (s)"), CHANCE.format("CPU (processors)")),
    ],
)
def test_silences_are_compared_over_deaths_and_cpu_over_runs_and_each_says_how_sure_it_is(
    repetitions, deaths, of_silence, of_cpu
):
    made = {name: table.to_pandas() for name, table in tables().items()}
    died = {"t_s": [0.0, 5.0][:deaths], "metric": "fault", "instance": "kill:slot@4", "value": 1.0}
    made["metrics"] = pd.concat([made["metrics"], pd.DataFrame(died)])
    of = Study(
        {name: [(run(number, name), made) for number in range(repetitions)] for name in ("kazoo", "passive")}, {}
    )
    found = execute("replication/01_deaths", "silences_around", study=of, trigger_s=3.0)
    given = {name: found[name] for name in ("table", "silences", "cpu")}
    said = execute("replication/01_deaths", "overhead_sentences", study=of, **given)["said"]
    assert [line for line in said if line.startswith("kazoo next to")] == [
        f"kazoo next to passive: silence (s) {of_silence}",
        f"kazoo next to passive: CPU (processors) {of_cpu}",
    ]
