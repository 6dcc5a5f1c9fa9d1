"""What Prometheus reads of a run while it goes on: a file in ``metrics`` of the state folder, as the textfile collector
of node_exporter takes it. The endpoint of a batch or of JupyterLab has it, too. A job in the background has one of its
own, and no file.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from keyshift.folders import work_folder, work_in_use
from keyshift.lab.run_loop import RunLoop
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.notes import Activity
from keyshift.model.records import Second
from keyshift.progress import Say
from keyshift.traffic.feed import Feed

METRICS = "metrics"  # in the state folder
SUFFIX = ".prom"
EVERY_S = 1.0


class RunMetrics(Collector):
    """The metrics of a run, which is read anew each time; for any thread."""

    def __init__(self, run_id: str, run: RunLoop) -> None:
        self._run_id, self._run = run_id, run

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``."""
        run, seconds = self._run, self._run.traffic.seconds
        last = seconds[-1] if seconds else Second(0, 0)
        info = GaugeMetricFamily("keyshift_run_info", "the run under way", labels=("run", "workload", "strategy"))
        info.add_metric((self._run_id, run.spec.workload.name, run.strategy), 1)
        yield info
        if run.feed is not None:
            offered = run.feed.sent + run.feed.before.events
            yield self._counted("keyshift_run_events_offered", "events sent to Kafka", offered)
            yield self._now("keyshift_run_offered_rate", "events of the last second", _offered_rate(run.feed))
        yield self._counted("keyshift_run_deaths", "deaths of the query, none of replicas", len(run.deaths))
        # No counter: what came out of an attempt that died counts no more. Prometheus would see one that began anew.
        yield self._now("keyshift_run_results", "results that count so far", run.traffic.received)
        yield self._now("keyshift_run_results_rate", "results of the last second", last.results)
        if last.p50_ms is not None and last.p99_ms is not None:
            yield self._now("keyshift_run_p50_seconds", "median latency of the last second", last.p50_ms / 1000)
            yield self._now("keyshift_run_p99_seconds", "P99 of the latency of the last second", last.p99_ms / 1000)
        activity = StateSetMetricFamily("keyshift_run_activity", "what is done now", labels=("run",))
        activity.add_metric((self._run_id,), states_at(run.reporter.doing.activity))
        yield activity

    def _counted(self, name: str, meaning: str, count: int) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=("run",))
        family.add_metric((self._run_id,), count)
        return family

    def _now(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=("run",))
        family.add_metric((self._run_id,), value)
        return family


def states_at(now: Activity) -> dict[str, bool]:
    """The activities, as Prometheus names them, and which one it is ``now``."""
    return {each.value.replace(" ", "_"): each is now for each in Activity}


def _offered_rate(feed: Feed) -> int:
    """Count the events of the last second of which the generators have told; none behind the end of the load."""
    told = list(feed.progress)[-2:] if feed.offered is None else []
    return told[-1].events - told[0].events if told else 0


@contextmanager
def written(run_id: str, run: RunLoop, home: Path) -> Iterator[None]:
    """Write the metrics of ``run`` meanwhile, once a second; in a thread of its own, as a run waits for a recovery. If
    they cannot be written, that is told once, and the run goes on without them.
    """
    ended = threading.Event()
    given = RunMetrics(run_id, run), home, ended, run.reporter.say
    thread = threading.Thread(target=_write, args=given, name="keyshift-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(metrics: RunMetrics, home: Path, ended: threading.Event, say: Say) -> None:
    try:
        with work_folder(home, "run-") as work:  # as long as there is one of its name, a process is behind the file
            (home / METRICS).mkdir(exist_ok=True)
            _files(home)  # nobody else may ever look
            file = home / METRICS / f"{work.name}{SUFFIX}"
            try:
                over = False
                while not over:
                    write_to_textfile(str(file), metrics)
                    over = ended.wait(EVERY_S)
            finally:
                file.unlink(missing_ok=True)
    except (OSError, ServiceUnavailable) as error:
        say(f"metrics of this run are not written: {error}")


def of_runs(home: Path) -> Iterator[Metric]:
    """Collect what runs under way tell in files of the state folder ``home``, each metric once. Raises OSError."""
    found: dict[str, Metric] = {}
    for file in _files(home):
        with suppress(OSError):  # it has ended meanwhile
            for each in text_string_to_metric_families(file.read_text(encoding="utf-8")):
                of_all = found.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                of_all.samples += each.samples
    yield from found.values()


def _files(home: Path) -> list[Path]:
    """The files of runs under way. Those of processes that are gone are removed. Raises OSError."""
    files = [*(home / METRICS).glob(f"run-*{SUFFIX}*")]  # first: whoever has written one by now has a folder already
    in_use = {folder.name for folder in work_in_use(home)}
    for file in files:
        if file.name.partition(".")[0] not in in_use:
            file.unlink(missing_ok=True)
    return [file for file in files if file.suffix == SUFFIX and file.exists()]
