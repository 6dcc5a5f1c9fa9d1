"""The matrix of faults: which runs it has, and its table."""

from types import SimpleNamespace

from bench import faults
from keyshift.model.errors import QueryDied


class Lab:
    """Each run is ok after 1.2 s of silence, but those that end."""

    def run(self, spec):
        if spec.scenario.fault == "kill:slot@batch":
            raise QueryDied("the query has ended")
        notes = ["the query died 1 s after"] if spec.scenario.fault.startswith("kill") else []
        if spec.scenario.fault == "cut:flight@transfer":
            notes = ["fault = cut:flight@transfer: cut:flight@transfer did not happen, its phase never came"]
        return SimpleNamespace(summary=SimpleNamespace(verdict="ok", silence_ms=1234.0), notes=notes)


def test_every_fault_is_possible_for_every_kind_of_strategy():
    for strategy in faults.KINDS:
        for fault in faults.FAULTS:
            assert faults.spec_of(strategy, fault).scenario.fault == fault


def test_the_table_has_a_row_for_each_fault_and_says_how_runs_ended():
    runs = faults.run_matrix(
        Lab(), ["fluid", "lazy"], ["", "kill:source@transfer", "kill:slot@batch", "cut:flight@transfer"]
    )
    assert faults.matrix_table(runs) == [
        ("fault", "fluid", "lazy"),
        ("none", "ok, 1.2 s", "ok, 1.2 s"),
        ("kill:source@transfer", *["ok, died 1 x, 1.2 s"] * 2),
        ("kill:slot@batch", "died", "died"),
        ("cut:flight@transfer", *["no fault, ok, 1.2 s"] * 2),
    ]
