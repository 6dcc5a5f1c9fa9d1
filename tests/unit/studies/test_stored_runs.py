"""Which stored runs can be compared."""

import pytest
from small_store import OTHER_MACHINE, result_store, run, tables

from keyshift.model.errors import BadInput
from keyshift.studies.stored_runs import comparable, over_rates


@pytest.fixture
def runs():
    store = result_store()
    store.put_run(run(0, "fluid"), tables())
    store.put_run(run(1, "matched", "bad", parameters={"size": 4, "seed": 9}), tables())
    store.put_run(run(2, "fluid", parameters={"rate": 9.0}), tables())
    store.put_run(run(3, "lazy", "died"), {})
    store.put_run(run(4, "fluid", parameters={"repetitions": 3}), tables())
    return store.list_runs()


def strategies(rows):
    return [row["strategy"] for row in rows]


def test_runs_that_differ_in_strategy_and_seed_alone_are_compared_or_those_like_one_that_is_named(runs):
    rows = comparable(runs)
    assert strategies(rows) == ["fluid", "matched", "fluid"]
    assert [row["verdict"] for row in rows] == ["ok", "bad", "ok"]
    (row,) = comparable(runs, like=run(2).run_id[:15])
    assert row["parameters"]["rate"] == 9
    with pytest.raises(BadInput, match="like = '1999': no run with a verdict begins so, of 4"):
        comparable(runs, like="1999")
    assert comparable(runs, workload="nexmark") == []
    assert comparable(runs[:0]) == []


def test_a_run_that_the_others_are_to_be_like_is_of_the_workload_that_is_named():
    store = result_store()
    for number, workload in enumerate(("keycount", "nexmark", "keycount")):
        made = run(number, "fluid", parameters={"workload": workload})
        summary = made.summary.model_copy(update={"workload": workload})
        store.put_run(made.model_copy(update={"workload": workload, "summary": summary}), tables())
    listed = store.list_runs()
    same_day = run(0).run_id[:8]
    assert [row["workload"] for row in comparable(listed, "nexmark", same_day)] == ["nexmark"]
    with pytest.raises(BadInput, match=r"^like = '1999': no run of workload = nexmark with a verdict begins so, of 1"):
        comparable(listed, "nexmark", "1999")


def test_who_chose_the_load_is_no_difference_but_the_load_is():
    store = result_store()
    for number, parameters in enumerate(({}, {"auto": "rate"}, {"auto": "rate", "rate": 9.0})):
        store.put_run(run(number, "fluid", parameters=parameters), tables())
    assert len(comparable(store.list_runs(), like=run(1).run_id)) == 2


def test_migrations_of_one_running_job_are_not_beside_runs_with_a_job_of_their_own():
    store = result_store()
    for number, one_job in enumerate((False, True, True)):
        store.put_run(run(number, "fluid", one_job=one_job), tables())
    listed = store.list_runs()
    assert [row["run_id"] for row in comparable(listed)] == [run(1).run_id, run(2).run_id]
    assert len(comparable(listed, like=run(0).run_id, anywhere=True)) == 1


@pytest.mark.parametrize("other", [{"machine": OTHER_MACHINE}, {"versions": {"keyshift": "0.1"}}])
def test_runs_of_another_machine_or_version_are_not_compared(other):
    store = result_store()
    store.put_run(run(0, "fluid").model_copy(update=other), tables())
    for number in (1, 2):
        store.put_run(run(number, "fluid"), tables())
    listed = store.list_runs()
    assert [row["run_id"] for row in comparable(listed)] == [run(1).run_id, run(2).run_id]
    assert [row["run_id"] for row in comparable(listed, like=run(0).run_id)] == [run(0).run_id]
    assert len(comparable(listed, anywhere=True)) == 3


def test_a_row_says_what_its_run_says_whatever_stands_beside_it():
    """In a table with others, which know more or have died, what one does not know would be NaN, and counts broken."""
    store = result_store()
    for number, summary in enumerate(({"bytes_copied": 5}, {"bytes_copied": None})):
        manifest = run(number, "fluid")
        store.put_run(manifest.model_copy(update={"summary": manifest.summary.model_copy(update=summary)}), tables())
    store.put_run(run(3, "lazy", "died"), {})
    _, newest = comparable(store.list_runs())
    assert newest["bytes_copied"] is None and repr(newest["lost"]) == "0"


def test_runs_are_beside_stored_ones_that_differ_in_the_rate_alone():
    def made(number, strategy="fluid", **parameters):
        shape = {"frame_ms": 20.0, "routers": 2, "strategy": strategy}
        return run(number, strategy, parameters=shape | parameters)

    store = result_store()
    ours = made(0, rate=100.0)
    others = [made(1, rate=500.0), made(2, rate=50.0), made(3, rate=100.0), made(4, rate=500.0, routers=1)]
    others += [made(5, "matched", rate=500.0), made(6, rate=500.0).model_copy(update={"machine": OTHER_MACHINE})]
    for each in (ours, *others):
        store.put_run(each, tables())
    rows = over_rates(store.list_runs(), [ours.summary.model_dump(mode="json") | {"strategy": "as we call it"}])
    found = [(row["run_id"], row["strategy"], row["parameters"]["events in a frame"]) for row in rows]
    expected = [(ours, 1.0), (others[0], 5.0), (others[1], 1.0)]
    assert found == [(each.run_id, "as we call it", events) for each, events in expected]
    assert len(over_rates(store.list_runs()[:0], rows)) == 3, "a store that does not know them"
