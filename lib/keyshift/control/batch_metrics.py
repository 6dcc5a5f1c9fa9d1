"""What Prometheus reads of batches while they are executed: what is done, failed and left, the verdicts of runs, and
how runs under way are. Beside JupyterLab there are runs, and no batch.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keyshift.control.server import Server, guarded_app, listen
from keyshift.lab.run_metrics import of_runs
from keyshift.studies.batch import PreparedBatch
from keyshift.studies.batch_report import NOT_RUN, STATUSES, Done, status_of


class BatchMetrics(Collector):
    """The metrics of batches that are executed one after the other. ``seen`` is told by who executes them, ``collect``
    is for any thread. ``home``: the state folder, in which runs, each in the process of a notebook, write how they are.

    Records of earlier executions count, so that a batch which goes on does not begin at zero: all are gauges.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._batches: dict[str, tuple[PreparedBatch, Done]] = {}
        self._last = 0.0

    def seen(self, prepared: PreparedBatch, done: Done) -> None:
        """Hear what has ended of a batch until now, by the id of the execution."""
        self._last = time.time()
        self._batches = self._batches | {prepared.batch.name: (prepared, dict(done))}

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``."""
        if self._batches:
            yield from self._of_batches()
        with suppress(OSError):  # of batches there is something to say all the same
            yield from of_runs(self._home)

    def _of_batches(self) -> Iterator[Metric]:
        executions = _gauge("executions", "executions by what came of them", "status")
        remaining = _gauge("remaining_executions", "executions that are to come: not run yet, or failed")
        seconds = _gauge("seconds", "time that the executions which have ended took")
        verdicts = _gauge("verdicts", "runs of the executions which have ended, by their verdict", "verdict")
        for name, (prepared, done) in self._batches.items():
            counts = Counter(status_of(done, execution) for execution in prepared.executions)
            for status in STATUSES:
                executions.add_metric((name, status.replace(" ", "_")), counts[status])
            remaining.add_metric((name,), counts[NOT_RUN] + counts["failed"])
            seconds.add_metric((name,), sum(60 * record.minutes for record in done.values()))
            found = Counter(verdict for record in done.values() for verdict in record.verdicts.values())
            for verdict in ("ok", "bad"):
                verdicts.add_metric((name, verdict), found[verdict])
        yield from (executions, remaining, seconds, verdicts)
        yield GaugeMetricFamily("keyshift_batch_last_end_seconds", "an execution ended, or a batch began", self._last)


def _gauge(name: str, meaning: str, *labels: str) -> Any:
    return GaugeMetricFamily(f"keyshift_batch_{name}", meaning, labels=("batch", *labels))


@contextmanager
def served(metrics: BatchMetrics, host: str, port: int, token: str) -> Iterator[None]:
    """Answer ``GET /metrics`` meanwhile, to who has the ``token``. Raises BadInput if the port cannot be had."""
    with closing(listen(port, host)) as listener:
        server = Server(guarded_app("keyshift batch", token, metrics), listener)
        try:
            yield
        finally:
            server.stop()
