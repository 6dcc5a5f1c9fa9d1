"""What the benchmark of all strategies says of runs, on runs made up for it; and that its runs are what it claims."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bench import strategies as bench
from bench.aims import Run, aims, dirty_points, fit, hand_over_table, preset_table
from bench.measurements import table
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput, MigrationFailed
from keyshift.planner import make_plan, strategies

MIB = 2**20


def run(preset: str, repetition: int = 0, spike_ms: float = 30.0, copy_s: float | None = None, **values: Any) -> Run:
    phases = {"transfer": 0.3, "install": 0.1, "align": 0.2}
    summary = {"verdict": "ok", "p99_ms": 20.0, "spike_ms": spike_ms, "completion_s": 0.75, "phases": phases}
    summary |= {"bytes_moved": 8 * MIB, "bytes_minimum": 8 * MIB, "bytes_copied": None, "silence_ms": 50.0}
    return Run(preset, repetition, summary | {"floor_s": 0.25} | values, copy_s=copy_s)


def found(*runs: Run) -> dict[str, tuple[float | None, bool | None]]:
    return {row.measure: (row.ratio, row.met) for row in aims(runs)}


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
    assert found(Run("fluid", 0, error="no answer")) == {}
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


def test_the_table_of_aims_says_whether_they_are_met():
    lines = table(aims([run("fluid", spike_ms=30), run("order_unaware", spike_ms=100)])).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["met", "missed"]


def test_the_table_of_presets_has_medians_ranges_bytes_and_every_verdict():
    runs = [run("fluid", 0, spike_ms=30), run("fluid", 1, spike_ms=40), run("fluid", 2, spike_ms=90)]
    runs += [run("rhino", 0, bytes_copied=16 * MIB), run("rhino", 1, verdict="bad"), Run("rhino", 2, error="gone")]
    runs += [Run("drrs", 0, error="gone")]
    head, fluid, rhino, drrs = preset_table(runs).splitlines()
    assert head.split()[:3] == ["preset", "P99", "before"]
    assert fluid.split() == [
        *("fluid", "20", "40", "30-90", "2.00", "1.50-4.50", "0.75", "0.75-0.75", "0.25", "8", "8", "50", "ok")
    ]
    assert rhino.split()[:4] == ["rhino", "20", "30", "30-30"]
    assert "16" in rhino.split()
    assert rhino.endswith("1 ok, 1 bad, 1 died")
    assert drrs.split() == ["drrs", "died"]


def test_the_line_through_hand_overs_finds_what_they_were_made_from():
    points = [(mib * MIB, 0.020 + 0.005 * mib) for mib in (1.0, 10.0, 50.0)]
    line = fit(points)
    assert line is not None
    assert (line.fixed_ms, line.ms_per_mib, line.explained) == pytest.approx((20, 5, 1))
    bent = fit([*points, (50.0 * MIB, 2.0)])
    assert bent is not None and bent.explained < 0.9
    assert fit(points[:1]) is None
    assert fit([points[0], points[0]]) is None


def dirty(mib: float, seconds: float, **values: Any) -> Run:
    return run("replicated", bytes_moved=mib * MIB, phases={"transfer": seconds, "install": 0.0}, **values)


def test_hand_overs_are_listed_by_dirty_bytes_with_the_line_and_the_growth():
    runs = [dirty(4, 0.060), dirty(1, 0.015), dirty(2, 9.0, verdict="bad")]
    assert dirty_points(runs) == [(1 * MIB, 0.015), (4 * MIB, 0.060)]
    text = hand_over_table(runs, minimum_bytes=8 * MIB).splitlines()
    assert [line.split() for line in text[1:3]] == [["1.0", "12", "%", "15", "15.0"], ["4.0", "50", "%", "60", "15.0"]]
    assert text[3] == (
        "hand-over = 0 ms + 15.00 ms per dirty MiB (R² 1.00); 4.0 times the bytes took 4.0 times as long"
    )
    assert "too few" in hand_over_table(runs[:1], minimum_bytes=8 * MIB)


def test_every_preset_gets_the_load_of_the_issue_and_time_for_all_its_steps():
    for name in strategies.names():
        spec = bench.spec_of(bench.Load(), name)
        job, workload, scenario = spec.job, spec.workload, spec.scenario
        assert workload.keys * workload.state_bytes == 256 * MIB
        assert (workload.skew, job.slots) == (0.8, 8)
        assert (scenario.trigger, scenario.affected) == ("shuffle", workload.key_groups // 2)
        assert job.routers * job.slots * 1000 / spec.run.frame_ms < 400, "more rows than two cores take"
        start = spec.start()
        steps = len(make_plan(spec.point(), start, spec.target(start), [1.0] * len(start.owner)).steps)
        assert spec.run.seconds - scenario.trigger_s >= bench.STEP_S * steps + bench.SETTLE_S


def test_hand_overs_differ_in_nothing_but_how_many_keys_get_dirty():
    first, *others = bench.hand_over_specs(bench.Load())
    assert first.point().replicate == 1
    assert first.job.copy_every_s > first.run.seconds, "a later round would clean what got dirty"
    assert others
    assert all(make_spec(spec.parameters() | {"rate": first.run.rate}) == first for spec in others)
    assert len({spec.run.rate for spec in [first, *others]}) == len(others) + 1


class Died:
    """A lab in which one strategy never survives."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def run(self, spec):
        self.asked.append((spec.strategy.name, spec.workload.seed))
        raise MigrationFailed("phase 'transfer': slot 3 is missing")


def test_presets_take_turns_with_other_events_each_time_and_one_that_dies_ends_nothing():
    lab, load = Died(), replace(bench.Load(), repetitions=2)
    specs = [bench.spec_of(load, name) for name in ("fluid", "lazy")]
    runs = list(bench.run_presets(lab, load, specs))  # type: ignore[arg-type]
    assert lab.asked == [("fluid", 1), ("lazy", 1), ("fluid", 2), ("lazy", 2)]
    assert [(r.preset, r.repetition, r.verdict) for r in runs][1:3] == [("lazy", 0, "died"), ("fluid", 1, "died")]
    assert "slot 3 is missing" in runs[0].error


def test_a_run_as_json_keeps_its_summary_and_what_was_derived_from_it():
    raw = json.loads(json.dumps(run("all_at_once", copy_s=0.5).to_json()))
    assert raw["summary"]["spike_ms"] == 30
    assert (raw["verdict"], raw["hand_over_s"], raw["copy_s"]) == ("ok", pytest.approx(0.4), 0.5)


def options(**values: Any) -> dict[str, Any]:
    usual = {"preset": None, "quick": True, "mib": None, "slots": 8, "frame_ms": 50.0, "rate": 2000.0}
    return usual | {"repetitions": None, "out": None, "figure": None} | values


def test_what_cannot_be_done_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(BadInput, match=r"--figure .*folder does not exist"):
        bench.bench(**options(figure=tmp_path / "missing" / "pareto.png"))
    with pytest.raises(BadInput, match="did you mean 'fluid'"):
        bench.bench(**options(preset=["fluidd"]))
    with pytest.raises(BadInput, match="raise frame_ms"):
        bench.bench(**options(frame_ms=1.0))
