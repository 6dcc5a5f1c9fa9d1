"""What the benchmark of all strategies says of runs, on runs made up for it; and that its runs are what it claims."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import small_store

from bench import strategies as bench
from bench.aims import aims, hand_over_s
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput
from keyshift.planner import make_plan, strategies
from keyshift.studies.study import Study, named, specs_of

MIB = 2**20
STEP_S, SETTLE_S = 0.25, 8.0  # of measured time: for each step, and to recover


def run(preset: str, repetition: int = 0, spike_ms: float = 30.0, copy_s: float | None = None, **values: Any) -> dict:
    phases = {"transfer": 0.3, "install": 0.1, "align": 0.2}
    row = small_store.row(preset, parameters={"seed": 1 + repetition})
    row |= {"spike_ms": spike_ms, "completion_s": 0.75, "phases": phases, "silence_ms": 50.0, "floor_s": 0.25}
    row |= {"bytes_moved": 8 * MIB, "bytes_minimum": 8 * MIB, "bytes_copied": None, "copy_s": copy_s}
    return row | values


def found(*rows: dict) -> dict[str, tuple[float | None, bool | None]]:
    return {row.measure: (row.ratio, row.met) for row in aims(rows)}


def test_the_spike_is_compared_with_its_own_past_and_with_the_naive_presets():
    rows = found(run("fluid", spike_ms=30), run("order_unaware", spike_ms=100), run("stop_restart", spike_ms=3000))
    assert rows == {
        "spike of fluid, against P99 before": (1.5, True),
        "spike of fluid, against that of order_unaware": (0.3, False),
        "spike of fluid, against that of stop_restart": (0.01, True),
    }


def test_repetitions_are_compared_with_their_neighbours_and_those_without_one_left_out():
    runs = [run("fluid", n, spike_ms=10 * 2**n) for n in range(3)]
    runs += [run("order_unaware", n, spike_ms=100 * 2**n) for n in (0, 2)]
    (row,) = [row for row in aims(runs) if "order_unaware" in row.measure]
    assert (row.keyshift, row.other) == ([10, 40], [100, 400])
    assert row.ratio == pytest.approx(0.1)


def test_a_run_that_is_not_correct_meets_no_aim():
    assert found(run("fluid", verdict="bad")) == {}
    assert found(run("fluid"), run("order_unaware", verdict="bad")) == {
        "spike of fluid, against P99 before": (1.5, True)
    }


def test_a_figure_that_is_not_known_is_in_no_comparison():
    assert found(run("lazy", p99_ms=None)) == {}
    assert found(run("all_at_once", completion_s=None, copy_s=0.5)) == {}


def test_completion_is_compared_with_a_bare_copy_whole_and_without_alignment():
    assert found(run("all_at_once", copy_s=0.5)) == {
        "completion of all_at_once, against a bare copy": (1.5, True),
        "of it transfer and install, against the same": (0.8, None),
    }
    missed = found(run("all_at_once", copy_s=0.4))
    assert missed["completion of all_at_once, against a bare copy"][1] is False


def test_the_hand_over_is_transfer_and_install():
    assert hand_over_s(run("fluid")) == pytest.approx(0.4)
    assert hand_over_s(run("fluid", completion_s=None)) is None


def test_every_preset_gets_the_load_of_the_issue_and_time_for_all_its_steps():
    for name, spec in specs_of(named(strategies.names()), bench.load()).items():
        job, workload, scenario = spec.job, spec.workload, spec.scenario
        assert (spec.strategy.name, spec.run.repetitions) == (name, 3)
        assert workload.keys * workload.state_bytes == 256 * MIB
        assert (workload.skew, job.slots) == (0.8, 8)
        assert (scenario.trigger, scenario.affected) == ("shuffle", workload.key_groups // 2)
        assert job.routers * job.slots * 1000 / spec.run.frame_ms < 400, "more rows than two cores take"
        start = spec.start()
        steps = len(make_plan(spec.point(), start, spec.target(start), [1.0] * len(start.owner)).steps)
        assert spec.run.seconds - scenario.trigger_s >= STEP_S * steps + SETTLE_S


def test_the_load_is_quick_or_changed_if_asked_for():
    quick = make_spec(bench.load(quick=True))
    assert quick.workload.keys * quick.workload.state_bytes == 64 * MIB
    assert quick.run.repetitions == 1
    assert make_spec(bench.load(["slots=4", "keys=99"], quick=True)).workload.keys == 99


def test_a_bare_copy_is_made_of_what_all_at_once_has_moved_and_the_first_does_not_count(monkeypatch):
    took = iter([9.0, 0.3, 0.1, 0.2])
    ring = SimpleNamespace(copy_s=lambda size: next(took) * size)
    monkeypatch.setattr(bench, "open_ring", lambda slots: nullcontext(ring if slots == 8 else None))
    copies, moved = bench.BareCopies(), SimpleNamespace(bytes_moved=10)
    for strategy, status in (("fluid", "ok"), ("all_at_once", "bad"), ("all_at_once", "ok")):
        manifest = {"strategy": strategy, "status": status, "summary": moved, "parameters": {"slots": 8}}
        copies.after(SimpleNamespace(run_id=f"{strategy}, {status}", **manifest))
    assert copies.seconds == {"all_at_once, ok": 2.0}


@pytest.fixture
def collected(monkeypatch):
    """A command whose runs are those of the list, of one repetition."""
    rows: list[dict] = []

    def collect(specs, **_):
        study = Study({}, specs)
        study.rows = lambda: [row | {"run_id": str(number)} for number, row in enumerate(rows)]
        return study

    monkeypatch.setattr(bench, "collect", collect)
    return rows


def test_the_command_says_whether_the_aims_are_met_and_its_exit_status_does_too(collected, capsys):
    collected[:] = [run("fluid", spike_ms=10), run("order_unaware", spike_ms=100)]
    for spike_ms, status, said in ((10, 0, "met"), (90, 1, "missed")):
        collected[0]["spike_ms"] = spike_ms
        with pytest.raises(bench.typer.Exit) as left:
            bench.bench(["fluid", "order_unaware"], quick=True)
        lines = capsys.readouterr().out.splitlines()
        assert left.value.exit_code == status
        assert [line.split()[1:4] for line in lines[1:3]] == [["fluid", "ok", "1"], ["order_unaware", "ok", "1"]]
        assert [line.split()[-1] for line in lines if " against " in line][-1] == said


def test_a_run_that_is_bad_is_exit_status_1(collected):
    collected[:] = [run("fluid", spike_ms=10, verdict="bad")]
    with pytest.raises(bench.typer.Exit) as left:
        bench.bench(["fluid"], quick=True)
    assert left.value.exit_code == 1


def test_the_report_has_each_run_with_its_notes_what_was_aimed_at_and_who_died(monkeypatch, tmp_path):
    died = {"order_unaware": "the query has ended; see /srv/logs/spark.log"}
    study = Study({"fluid": [(small_store.run(notes=["a note"]), {})], "order_unaware": []}, {}, died)
    monkeypatch.setattr(bench, "collect", lambda specs, **_: study)
    with pytest.raises(bench.typer.Exit) as left:
        bench.bench([*study.runs], quick=True, out=tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert (left.value.exit_code, report["died"]) == (1, {"order_unaware": "the query has ended; see <path>"})
    assert [(row["strategy"], row["notes"]) for row in report["runs"]] == [("fluid", ["a note"])]
    assert [aim["measure"] for aim in report["aims"]] == ["spike of fluid, against P99 before"]


def test_what_cannot_be_done_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(BadInput, match=r"--out .*folder does not exist"):
        bench.bench(out=tmp_path / "missing" / "out.json")
    with pytest.raises(BadInput, match="did you mean 'fluid'"):
        bench.bench(["fluidd"])
    with pytest.raises(BadInput, match="raise frame_ms"):
        bench.bench(quick=True, settings=["frame_ms=1"])
