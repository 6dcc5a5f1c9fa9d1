"""What changed between two runs: all of it, and nothing that stayed."""

import numpy as np
from small_store import run

from keyshift.analysis.differences import differences


def rows(one, other):
    found = differences(one.model_dump(mode="json"), other.model_dump(mode="json"))
    return {(row["kind"], row["name"]): row for row in found.to_dict("records")}


def test_parameters_versions_and_machine_are_told_if_they_differ_and_figures_always():
    other = run(
        1, "matched", parameters={"rate": 4000.0, "size": 4, "strategy": "matched"}, spike_ms=30.0, recover_s=2.0
    )
    other = other.model_copy(update={"versions": {"python": "3.12", "pyspark": "4.3.0"}})
    found = rows(run(0), other)
    assert [name for kind, name in found if kind != "figure"] == ["strategy", "rate", "seed", "size", "python"]
    assert (found["parameter", "size"]["one"], found["parameter", "size"]["other"]) == (None, 4)
    assert found["figure", "P99 spike (ms)"]["ratio"] == 0.5
    assert found["figure", "completion (s)"]["ratio"] == 1
    assert found["figure", "completion (× floor)"]["one"] == 3
    assert np.isnan(found["figure", "recovery (s)"]["ratio"])
    assert ("figure", "backlog (events)") not in found


def test_a_run_that_died_has_no_figures():
    found = rows(run(0), run(0, status="died"))
    assert found["run", "status"]["other"] == "died"
    assert found["run", "error"]["other"] == "Kafka at <address> went away"
    assert found["figure", "P99 spike (ms)"]["other"] is None
