"""What a made-up run writes for Prometheus, and what of it others read."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from keyshift.experiment.spec import make_spec
from keyshift.lab import run_metrics
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_metrics import of_runs, written
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import Second
from keyshift.traffic.feed import Before, Progress
from waits import until

ACTIVITY = "keyshift_run_activity"


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(run_metrics, "EVERY_S", 0.01)
    said = []
    return SimpleNamespace(
        spec=make_spec({"workload": "keycount"}),
        strategy="fluid",
        feed=SimpleNamespace(sent=900, before=Before(100), progress=[], offered=None),
        traffic=SimpleNamespace(received=950, seconds=[Second(6, 7), Second(7, 480, 5.0, 17.0)]),
        deaths=[],
        reporter=Reporter(said.append),
        said=said,
    )


def files(home):
    return sorted(path.name for path in (home / "metrics").glob("*"))


def samples(families):
    """Values by name and run; the activity is the name of the one that is."""
    found = {}
    for each in (sample for family in families for sample in family.samples):
        if each.name != ACTIVITY:
            found[each.name, each.labels["run"]] = each.value
        elif each.value:
            found[ACTIVITY, each.labels["run"]] = each.labels[ACTIVITY]
    return found


def told(home):
    """What the files say now."""
    text = "".join(path.read_text() for path in (home / "metrics").glob("*.prom"))
    return samples(text_string_to_metric_families(text))


def of_run(**values):
    return {(f"keyshift_run_{name}", "run-1"): value for name, value in values.items()}


def test_a_file_says_how_a_run_is_as_long_as_it_goes_on(run, tmp_path):
    same = of_run(info=1, events_offered_total=1000, results=950)
    first = same | of_run(offered_rate=500, deaths_total=0, results_rate=480, activity="warming_up")
    first |= of_run(p50_seconds=0.005, p99_seconds=0.017)
    run.feed.progress += [Progress(at, events, 0) for at, events in ((6.0, 0), (7.0, 400), (8.0, 900))]
    with written("run-1", run, tmp_path):
        until(lambda: told(tmp_path))
        assert told(tmp_path) == first
        (info,) = [each for each in of_runs(tmp_path) if each.name == "keyshift_run_info"]
        assert info.samples[0].labels == {"run": "run-1", "workload": "keycount", "strategy": "fluid"}
        run.feed.offered = 1000
        run.traffic.seconds.append(Second(8, 0))
        run.reporter.enter(Doing(Activity.CATCHING_UP))
        run.deaths.append(8.5)
        later = same | of_run(offered_rate=0, deaths_total=1, results_rate=0, activity="catching_up")  # and no result
        until(lambda: told(tmp_path) == later)
    assert files(tmp_path) == [] and run.said == []


def test_a_run_that_is_interrupted_leaves_no_file(run, tmp_path):
    with pytest.raises(KeyboardInterrupt), written("run-1", run, tmp_path):
        until(lambda: told(tmp_path))
        raise KeyboardInterrupt
    assert files(tmp_path) == [] and [*of_runs(tmp_path)] == []


def test_of_several_runs_each_metric_is_told_once_and_what_a_process_that_is_gone_has_left_goes(run, tmp_path):
    (tmp_path / "metrics").mkdir()
    left = [tmp_path / "metrics" / name for name in ("run-left.prom", "run-left.prom.1.2")]
    for path in left:
        path.write_text('keyshift_run_results{run="left"} 1.0\n')
    assert [*of_runs(tmp_path)] == [] and files(tmp_path) == []
    left[0].touch()
    with ExitStack() as stack:
        for run_id in ("run-1", "run-2"):
            stack.enter_context(written(run_id, run, tmp_path))
        until(lambda: not left[0].exists())  # though nobody reads
        until(lambda: {of for _, of in samples(of_runs(tmp_path))} == {"run-1", "run-2"})
        text = generate_latest(SimpleNamespace(collect=lambda: of_runs(tmp_path))).decode()
    assert text.count("# TYPE keyshift_run_deaths_total counter\n") == text.count(f"# TYPE {ACTIVITY} gauge\n") == 1


def test_a_disk_that_does_not_take_them_is_told_once_and_the_run_goes_on(run, tmp_path):
    (tmp_path / "metrics").touch()
    with written("run-1", run, tmp_path):
        until(lambda: run.said)
    (line,) = run.said
    assert line.startswith("metrics of this run are not written: ") and str(tmp_path / "metrics") in line
