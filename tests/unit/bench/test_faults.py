"""The matrix of faults: which runs it has, its table, and its exit status."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from bench import faults
from keyshift.analysis.timelines import DEATH
from keyshift.model.errors import BadInput
from keyshift.studies.study import Study

HAPPENED = {"kill:source@transfer": DEATH, "stop:coordinator@align:3s": "stop coordinator"}


class Summary(SimpleNamespace):
    def model_dump(self, mode):
        return {"run_id": "1"}


def study_of(specs, *_, **__):
    """Each run is ok after 1.2 s of silence, but those that end. A fault that is not in HAPPENED never comes."""
    runs = {}
    for point, spec in specs.items():
        what = [HAPPENED[spec.scenario.fault]] if spec.scenario.fault in HAPPENED else []
        metrics = pd.DataFrame({"t_s": [1.0], "metric": "fault", "instance": what}) if what else NOTHING
        manifest = SimpleNamespace(status="ok", summary=Summary(silence_ms=1234.0), run_id="1", notes=["a note"])
        runs[point] = [(manifest, {"metrics": metrics})]
    died = {point: "the query has ended" for point, spec in specs.items() if spec.scenario.fault == "kill:slot@batch"}
    return Study(runs | {point: [] for point in died}, specs, died)


NOTHING = pd.DataFrame({"t_s": [], "metric": [], "instance": []})


def test_every_fault_is_possible_for_every_kind_of_strategy_and_executors_die_where_they_are_processes():
    (_, first), (profile, second) = faults.matrix()
    assert {spec.strategy.name for spec in first.values()} == {"fluid", "meces", "lazy"}
    assert len(first) == 3 * 22
    assert [spec.scenario.fault for spec in second.values()] == ["kill:executor@transfer"] * 3
    assert profile == "local-cluster"
    spec = first["meces, kill:slot@batch"]
    assert (spec.workload.name, spec.workload.keys, spec.run.verify) == ("windowcount", 4000, "snapshots")
    assert (spec.job.snapshot_s, spec.job.batch_s, spec.run.recoveries) == (1, 8, 3)


def test_the_matrix_may_be_of_other_strategies_and_faults():
    ((_, specs),) = faults.matrix(["drrs"], ["kill:slot@1"])
    assert [(spec.strategy.name, spec.scenario.fault) for spec in specs.values()] == [("drrs", "kill:slot@1")]
    with pytest.raises(BadInput, match="did you mean 'fluid'"):
        faults.matrix(["fluidd"])


def test_the_table_has_a_row_for_each_fault_and_says_how_runs_ended():
    ((_, specs),) = faults.matrix(["fluid", "lazy"], ["", *HAPPENED, "kill:slot@batch", "cut:flight@transfer"])
    assert faults.matrix_table(study_of(specs)) == [
        ("fault", "fluid", "lazy"),
        ("none", "ok, 1.2 s", "ok, 1.2 s"),
        ("kill:source@transfer", *["ok, died 1 x, 1.2 s"] * 2),
        ("stop:coordinator@align:3s", *["ok, 1.2 s"] * 2),
        ("kill:slot@batch", "died", "died"),
        ("cut:flight@transfer", *["no fault, ok, 1.2 s"] * 2),
    ]


def test_the_exit_status_is_1_if_a_run_died_or_a_fault_never_came(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(faults, "collect", study_of)
    for only, status in (("kill:source@transfer", 0), ("kill:slot@batch", 1), ("kill:executor@transfer", 1)):
        with pytest.raises(faults.typer.Exit) as left:
            faults.main(["fluid"], [only], tmp_path / "out.json")
        assert left.value.exit_code == status
        assert only in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["runs"] == [{"run_id": "1", "strategy": "fluid, kill:executor@transfer", "notes": ["a note"]}]
