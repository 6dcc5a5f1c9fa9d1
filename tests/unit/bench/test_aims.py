"""What runs of a batch say of the aims, on ones made up for it; and that its load is what it claims."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import small_store

from bench import aims as bench
from bench.aims import aims, hand_over_s
from keyshift.model.errors import KeyshiftError
from keyshift.planner import make_plan, strategies
from keyshift.studies.batch import load_batch
from keyshift.studies.dry_run import asked_of

MIB = 2**20
STEP_S, SETTLE_S = 0.25, 8.0  # of measured time: for each step, and to recover


def run(preset: str, repetition: int = 0, spike_ms: float = 30.0, **values: Any) -> dict:
    phases = {"transfer": 0.3, "install": 0.1, "align": 0.2}
    row = small_store.row(preset, parameters={"seed": 1 + repetition})
    return row | {"spike_ms": spike_ms, "completion_s": 0.75, "phases": phases, "floor_s": 0.5} | values


def found(*rows: dict) -> dict[str, tuple[float | None, bool | None]]:
    return {row.measure: (row.ratio, row.met) for row in aims(rows)}


def test_the_spike_is_compared_with_its_own_past_and_with_the_naive_presets():
    rows = found(run("fluid", spike_ms=30), run("order_unaware", spike_ms=100), run("stop_restart", spike_ms=3000))
    spike = "spike of fluid, against"
    of_others = {f"{spike} that of order_unaware": (0.3, False), f"{spike} that of stop_restart": (0.01, True)}
    assert rows == {f"{spike} P99 before": (1.5, True)} | of_others


def test_repetitions_are_compared_with_their_neighbours_and_those_without_one_left_out():
    runs = [run("fluid", n, spike_ms=10 * 2**n) for n in range(3)]
    runs += [run("order_unaware", n, spike_ms=100 * 2**n) for n in (0, 2)]
    (row,) = [row for row in aims(runs) if "order_unaware" in row.measure]
    assert (row.keyshift, row.other) == ([10, 40], [100, 400])
    assert row.ratio == pytest.approx(0.1)


def test_a_run_that_is_not_correct_meets_no_aim_and_a_figure_that_is_not_known_is_in_no_comparison():
    assert found(run("fluid", verdict="bad")) == found(run("lazy", p99_ms=None)) == {}
    assert found(run("fluid", incomplete=True)) == {}, "with the units that stayed its spike might be higher"
    assert found(run("all_at_once", completion_s=None)) == found(run("all_at_once", floor_s=None)) == {}
    of_its_own = {"spike of fluid, against P99 before": (1.5, True)}
    assert found(run("fluid"), run("order_unaware", verdict="bad")) == of_its_own


def test_completion_is_compared_with_the_floor_whole_and_without_alignment():
    parts = {"of it transfer and install, against the same": (0.8, None)}
    assert found(run("all_at_once")) == {"completion of all_at_once, against the floor": (1.5, True)} | parts
    missed = found(run("all_at_once", floor_s=0.4))
    assert missed["completion of all_at_once, against the floor"][1] is False
    assert hand_over_s(run("fluid", completion_s=None)) is None


def test_every_preset_gets_the_load_of_the_issue_and_time_for_all_its_steps(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    (values,) = load_batch(bench.BATCH).sets()
    assert values["one_job"] is False, "each run has its own"
    specs = asked_of(bench.ROOT / "notebooks" / "compare" / "01_compare_presets.ipynb", values).specs
    assert [spec.strategy.name for spec in specs] == strategies.names()
    for spec in specs:
        job, workload, scenario = spec.job, spec.workload, spec.scenario
        assert spec.run.repetitions == 3
        assert workload.keys * workload.state_bytes == 256 * MIB
        assert (workload.skew, job.slots) == (0.8, 8)
        assert (scenario.trigger, scenario.affected) == ("shuffle", workload.key_groups // 2)
        assert job.routers * job.slots * 1000 / spec.run.frame_ms < 400, "more rows than two cores take"
        start = spec.start()
        steps = len(make_plan(spec.point(), start, spec.target(start), [1.0] * len(start.owner)).steps)
        assert spec.run.seconds - scenario.trigger_s >= STEP_S * steps + SETTLE_S


@pytest.fixture
def stored(monkeypatch):
    """A command that finds the runs of this list in two executions of the batch."""
    runs: list[Any] = []

    def ended(*_):
        halves = {"one": runs[::2], "other": runs[1::2]}.items()
        return {name: SimpleNamespace(verdicts={each.run_id: each.status for each in half}) for name, half in halves}

    def get_manifests(run_ids):
        return [next(each for each in runs if each.run_id == run_id) for run_id in run_ids]

    monkeypatch.setattr(bench, "open_services", lambda *_, **__: nullcontext())
    monkeypatch.setattr(bench, "Files", lambda *_: None)
    monkeypatch.setattr(bench, "ended", ended)
    monkeypatch.setattr(bench, "ResultStore", lambda _: SimpleNamespace(get_manifests=get_manifests))
    return runs


def test_the_command_says_whether_the_aims_are_met_and_its_exit_status_does_too(stored, capsys):
    same = {"seed": 1}
    for spike_ms, status, said in ((10.0, 0, "met"), (90.0, 1, "missed")):
        stored[:] = [small_store.run(0, "fluid", parameters=same, spike_ms=spike_ms)]
        stored.append(small_store.run(1, "order_unaware", parameters=same, spike_ms=100.0))
        with pytest.raises(bench.typer.Exit) as left:
            bench.bench()
        out, err = capsys.readouterr()
        lines = out.splitlines()
        assert left.value.exit_code == status
        assert [line.split()[1:4] for line in lines[1:3]] == [["fluid", "ok", "1"], ["order_unaware", "ok", "1"]]
        assert [line.split()[-1] for line in lines if " against " in line] == [said, said]
        assert "2 runs, the last of which ended at 2026-01-01 12:01 UTC" in err


def test_without_runs_the_command_says_who_makes_them(stored):
    with pytest.raises(KeyshiftError, match=r"no run .* is stored: `make bench-strategies` makes them"):
        bench.bench()
