"""The shared file: whole, on its own, and without a trace of whose machine it was."""

import re

import pytest
from small_html import Elements
from small_store import OTHER_MACHINE, result_store, run, tables

from keyshift.model.errors import BadInput
from keyshift.results.report import overview, report

SPARK = "the query died (java.io.IOException: no route to 10.1.2.3:7077, see /home/ada/.keyshift/spark.log)"
WHERE = {"redis": "10.1.2.3:6379", "text": "/home/ada/books/moby.txt", "chain": "map,<b>counter</b>"}


@pytest.fixture(scope="module")
def page():
    store = result_store()
    for number, strategy in enumerate(("fluid", "matched")):
        store.put_run(run(number, strategy, parameters=WHERE, notes=[SPARK]), tables())
    store.put_run(run(2, "lazy", "bad", parameters=WHERE), tables())
    store.put_run(run(3, "rhino", "died"), {})
    return report(store, store.list_runs()["run_id"].tolist()[::-1])


@pytest.fixture(scope="module")
def elements(page):
    found = Elements(page)
    assert not found.open
    return found


def test_each_run_has_its_figures_which_are_inside_and_the_index_leads_to_it(page, elements):
    assert elements.count["svg"] == 1 + 3 * 5, "Pareto, then five of each run that ended"
    assert elements.count["h2"] == 1 + 4
    for name in ("fluid", "matched", "lazy", "rhino"):
        assert re.search(rf'href="#(2026\S+-{name}-\w+)"', page)[1] in elements.ids
    assert "lazy is not correct (1 lost): it is left out of the comparison." in page
    assert 'class="died">Kafka at &lt;address&gt; went away' in page
    assert not {"script", "img", "link", "iframe"} & elements.count.keys()
    assert all(link.startswith("#") and link[1:] in elements.ids for link in elements.links)


@pytest.mark.parametrize(
    ("parameters", "changes", "words"),
    [
        ({"rate": 5000.0, "size": 4, "auto": "rate"}, {}, "rate"),
        ({}, {"machine": OTHER_MACHINE, "versions": {"keyshift": "0.1"}}, "machine and the version of keyshift"),
        ({}, {"summary": run(1, "matched", one_job=True).summary}, "one_job"),
    ],
)
def test_runs_of_other_loads_machines_or_versions_are_not_compared(parameters, changes, words):
    other = run(1, "matched", parameters=parameters, spike_ms=900.0).model_copy(update=changes)
    page = overview([run(0, "fluid"), other], {each.run_id: f"{each.run_id}.html" for each in (run(0, "fluid"), other)})
    assert f"These runs differ in {words}: their figures are not compared." in page
    assert "Both runs are correct" in page
    assert "times as much" not in page and "<svg" not in page and "95 %" not in page


def test_the_tail_is_of_results_behind_the_warm_up():
    """Of 1000 latencies those of the first 5 s were due before; where nothing says so, as of a live job, all count.
    Of a script the trigger is the first migration, whenever that is.
    """
    store = result_store()
    for number, (trigger_s, since_s) in enumerate(((5.0, None), (None, None), (5.0, -2.0))):
        parameters = {} if trigger_s is None else {"trigger_s": trigger_s}
        store.put_run(run(number, "fluid", parameters=parameters, measured_from_s=since_s), tables())
    found = report(store, store.list_runs()["run_id"].tolist()[::-1])
    parts = found.split("Latency of all results behind the warm-up (ms)")[1:]
    assert [re.search(r"<td>(750|1000|600)</td>", part)[1] for part in parts] == ["750", "1000", "600"]
    within = store.put_run(run(9, "fluid", measured_from_s=60.0), tables()).run_id
    assert report(store, [within]).count("<svg") == 4, "one that ended in its warm-up has no distribution"


def test_parameters_versions_and_verdict_are_there_and_nothing_tells_whose_machine_it_was(page):
    for text in ("pyspark", "4.3.0", "1 lost", "P99 spike (ms)", "2 × some, 100 MiB"):
        assert text in page
    assert "<td>2000.0</td>" in page
    assert "&lt;b&gt;counter" in page, "what is no HTML is shown as it is"
    for text in ("10.1.2.3", "/home", r"\bada\b", "moby", ":6379", ":7077"):
        assert not re.search(text, page), text
    assert "the query died (java.io.IOException: no route to &lt;address&gt;, see &lt;path&gt;)" in page


def test_a_run_that_is_not_there_is_named():
    store = result_store()
    with pytest.raises(BadInput, match="no run given"):
        report(store, [])
    with pytest.raises(BadInput, match=r"^unknown run '2026': `keyshift results list` shows the newest ones$"):
        report(store, ["2026"])
