"""What goes into ``saas``, what routers and slots make of it, and what its oracle sees; runs of it: tests/contract."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError

from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput
from keyshift.workloads.alone import StageAlone
from keyshift.workloads.saas import Saas, stages
from keyshift.workloads.saas.source import CONTROL, DOCUMENT, EVENTS, GLOBAL, NOBODY, RULE
from workload_runs import run, verdict

SMALL = {"key_groups": 8, "customers": 12, "employees": 3, "spread": 5, "alerts": 3, "seed": 4}
PUBLIC, LABEL = "$.document.visibility", "$.document.label"


def taken(source: int, count: int, **changes) -> pa.RecordBatch:
    return Saas(**changes).sources[source].partition(0).take(np.arange(count))


def test_consumers_share_documents_in_the_published_proportions():
    events = taken(0, 40_000)
    made = Saas().sources[0].mapped(events)
    assert made.num_rows == pytest.approx(20_000, rel=0.03)
    bodies = [json.loads(body)["document"] for body in made["body"].to_pylist()]
    publishable = np.array([body["publishable"] == "yes" for body in bodies])
    public = np.array([body["visibility"] == "public" for body in bodies])
    assert publishable.mean() == pytest.approx(0.05, abs=0.01)
    assert public[publishable].mean() == pytest.approx(0.5, abs=0.06)
    assert public[~publishable].mean() == pytest.approx(0.05, abs=0.01)
    assert len({body["id"] for body in bodies}) == made.num_rows
    keys, employees = made["key"].to_numpy(), made["employee"].to_numpy()
    assert (keys.min(), keys.max()) == (0, 249)
    assert 0 <= employees.min() < 50 and 9_950 < employees.max() < 10_000


def test_one_rule_in_five_is_for_everybody_and_has_a_copy_for_each_key_of_the_qualifier():
    events = taken(1, 5000)
    assert (events["customer"].to_numpy() == NOBODY).mean() == pytest.approx(0.2, abs=0.02)
    columns = {"t": [5, 6, 7], "customer": [9, NOBODY, 2], "alert": [1, 2, 0]}
    given = pa.RecordBatch.from_pydict(columns | {"path": ["p", "q", "r"], "value": ["x", "y", "z"]}, schema=CONTROL)
    made = Saas(**SMALL).sources[1].mapped(given)
    rows = list(zip(*(made[name].to_pylist() for name in ("key", "t", "kind", "alert", "path", "value")), strict=True))
    assert rows == [
        (9, 5, RULE, 1, "p", "x"),
        *((key, 6, GLOBAL, 2, "q", "y") for key in range(5)),
        (2, 7, RULE, 0, "r", "z"),
    ]
    assert {key % 5 for key, *_ in rows[1:6]} == set(range(5))


# -- what slots make of it ---------------------------------------------------------------------------------------------


def through(*events: tuple) -> list[tuple]:
    """Seq, turn, alerts and count of each of these events, which go through all stages, one after the other."""
    workload = Saas(**SMALL)
    alone = [StageAlone(workload, stage) for stage in workload.stages]
    told = []
    for event in events:
        rows = pa.RecordBatch.from_pylist([dict(zip(EVENTS.names, event, strict=True))], schema=EVENTS)
        for number, each in enumerate(alone):
            if number:
                for name, kind in (("router", pa.int32()), ("offset", pa.int64())):
                    rows = rows.append_column(name, pa.array([0], kind))
                rows = each.stage.from_results(rows)
            rows = each.process(each.placed(rows))
        [row] = rows.to_pylist()
        told.append((row["seq"], row["turn"], row["raised"], row["count"]))
    return told


def rule(customer, alert, path, value, kind=RULE):
    return customer, 0, kind, NOBODY, alert, path, value, ""


def everybody(alert, path, value, copy=1):
    return rule(copy, alert, path, value, GLOBAL)


def document(customer, visibility, employee=0, **more):
    body = json.dumps({"document": {"visibility": visibility, **more}})
    return customer, 0, DOCUMENT, employee, 0, "", "", body


def test_a_document_raises_the_alerts_of_the_rules_that_were_there_before_it():
    assert through(
        document(1, "public"),
        rule(1, 0, PUBLIC, "public"),
        document(1, "public"),
        document(1, "private"),
        document(2, "public"),  # of a customer without rules
        document(1, "public", employee=2),
        document(1, "public"),
    ) == [(1, 1, [], 0), (2, 0, [], 0), (3, 2, [0], 1), (4, 3, [], 1), (1, 1, [], 0), (5, 4, [0], 1), (6, 5, [0], 2)]


def test_a_global_rule_is_for_all_of_its_key_and_a_path_that_is_not_there_meets_nothing():
    told = through(everybody(2, PUBLIC, "public", copy=1), *(document(customer, "public") for customer in (1, 6, 2)))
    assert told == [(0, 1, [], 0), (1, 2, [2], 1), (1, 3, [2], 1), (1, 1, [], 0)]
    rules = [rule(1, n, path, "public") for n, path in enumerate(("$.nobody", "$.document.visibility.deep", "$"))]
    assert through(*rules, document(1, "public"))[-1] == (4, 1, [], 0)


def test_the_first_rule_of_an_alert_counts_and_an_alert_is_raised_once():
    told = through(
        rule(1, 0, LABEL, "payroll"),
        rule(1, 0, PUBLIC, "public"),  # not the first
        document(1, "public", label="offer"),
        everybody(0, PUBLIC, "public"),  # another rule of the same alert
        everybody(1, LABEL, "payroll"),
        everybody(1, LABEL, "offer"),  # not the first
        document(1, "public", label="offer"),
        document(1, "public", label="payroll"),
    )
    assert [raised for _, _, raised, _ in told] == [[], [], [], [], [], [], [0], [0, 1]]
    assert told[-1] == (5, 6, [0, 1], 3)


# -- what the oracle sees ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made():
    return run(Saas(**SMALL), (2, 3), frames=12)


def test_a_run_has_all_kinds_of_results_and_is_judged_ok(made):
    assert verdict(Saas(**SMALL), made).ok
    kinds = made.results["kind"].value_counts()
    assert set(kinds.index) == {DOCUMENT, RULE, GLOBAL} and kinds.min() > 50
    assert made.results["raised"].map(len).max() > 1
    assert sorted({part["stage"].iloc[0] for part in made.final}) == [0, 1, 2]


def _forgets_which_was_first(known, alert, path, value):
    count, alerts, paths, values = known
    kept = [row for row in zip(alerts, paths, values, strict=True) if row[0] != alert]
    return count + 1, *map(list, zip(*kept, (alert, path, value), strict=True))


def _raises_all(body, rules):
    return sorted({alert for alert, _, _ in rules})


def _raises_twice(body, rules):
    return sorted(alert for alert, path, value in rules if stages._at(json.loads(body), path) == value)


class Deaf(stages.Qualifier):
    """Knows no global rule."""

    def process(self, events, state_of):
        kinds = pa.array(np.where(events["kind"].to_numpy() == GLOBAL, RULE, events["kind"].to_numpy()), pa.int8())
        deaf = super().process(events.set_column(events.schema.get_field_index("kind"), "kind", kinds), state_of)
        return deaf.set_column(deaf.schema.get_field_index("kind"), "kind", events["kind"])


class Forgetful(stages.Counter):
    """Begins anew with every frame."""

    def process(self, events, state_of):
        for unit, key in zip(events["unit"].to_pylist(), events["key"].to_pylist(), strict=True):
            state_of(unit).delete(key)
        return super().process(events, state_of)


@pytest.mark.parametrize(
    ("name", "instead", "words"),
    [
        ("_learned", _forgets_which_was_first, "alerts ["),
        ("_raised", _raises_all, "alerts ["),
        ("_raised", _raises_twice, "alerts ["),
        ("Qualifier", Deaf, "of the qualifier cannot be"),
        ("Counter", Forgetful, "of employee"),
    ],
)
def test_an_operator_that_does_something_else_is_seen(monkeypatch, name, instead, words):
    monkeypatch.setattr(stages, name, instead)
    workload = Saas(**SMALL)
    found = verdict(workload, run(workload, (2, 3), frames=12))
    assert found.wrong > 0
    assert (found.lost, found.duplicated, found.foreign) == (0, 0, 0)
    assert any(words in line for line in found.examples), found.examples


def exchanged(results: pd.DataFrame, column: str, kind: int) -> pd.DataFrame:
    """With the values of two results of different ones."""
    some = results.index[(results["kind"] == kind) & (results["router"] == results["router"].iloc[-1])]
    one, other = some[0], some[-1]
    changed = results.copy()
    changed.loc[[one, other], column] = results.loc[[other, one], column].to_numpy()
    return changed


@pytest.mark.parametrize(("column", "kind"), [("seq", RULE), ("turn", GLOBAL), ("count", RULE), ("kind", RULE)])
def test_places_and_numbers_that_cannot_be_are_seen(made, column, kind):
    if column in ("count", "kind"):
        changed = made.results.copy()
        changed.loc[changed.index[changed["kind"] == kind][0], column] += 1
    else:
        changed = exchanged(made.results, column, kind)
    assert verdict(Saas(**SMALL), replace(made, results=changed)).wrong > 0


def test_more_keys_of_the_qualifier_than_customers_are_refused():
    with pytest.raises(ValidationError):
        Saas(customers=3, spread=4)
    with pytest.raises(BadInput, match="spread = 32: must be at most customers = 20"):
        make_spec({"workload": "saas", "customers": 20})
