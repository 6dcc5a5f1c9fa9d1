"""The runs of another system than keyshift's job, with the same traffic and measures, stored as ours are."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from keyshift.driver.spark import session, stop_spark
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec
from keyshift.folders import work_folder
from keyshift.lab.ending import all_of
from keyshift.lab.environment import open_services
from keyshift.lab.machine import bare_copy
from keyshift.lab.recording import Recording
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import MakeScript, RunLoop
from keyshift.lab.run_metrics import written
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.peers.counting import CountingJob, CountingQuery
from keyshift.place.session import spark_files
from keyshift.program import interrupts_wait
from keyshift.progress import Say, progress
from keyshift.results.manifest import Manifest, new_run_id
from keyshift.results.store import ResultStore
from keyshift.services.jars import jars
from keyshift.services.stack import Stack
from keyshift.traffic.topics import Topic
from keyshift.traffic.traffic import Traffic
from keyshift.workloads import Workload


@dataclass(frozen=True)
class PeerSpec(RunSpec):
    """The spec of a run of the system ``peer``, which is the strategy in what is stored."""

    peer: str = ""

    def parameters(self) -> dict[str, Any]:
        """All parameters of the run by name; see ``RunSpec``."""
        return super().parameters() | {"strategy": self.peer}


def peer_spec(spec: RunSpec, peer: str, workload: Workload) -> PeerSpec:
    """``spec`` for ``peer``, with a workload that knows what can be judged of it."""
    parts = {name: getattr(spec, name) for name in RunSpec.__dataclass_fields__}
    return PeerSpec(**parts | {"workload": workload}, peer=peer)


class PeerLab(NamedTuple):
    """Where peers run: services, the store of what they leave, the state folder, and who hears what is being done."""

    endpoints: Endpoints
    store: ResultStore
    home: Path
    say: Say


@contextmanager
def peer_lab(profile: str) -> Iterator[PeerLab]:
    """Open a lab with the services of ``profile``; see ``open_services``."""
    with progress(None) as say, open_services(profile, say) as endpoints:
        yield PeerLab(endpoints, ResultStore(endpoints), Stack().home, say)


def repetitions(spec: PeerSpec) -> list[PeerSpec]:
    """The runs of a point: with other seeds than the first one."""
    return [cast(PeerSpec, spec.repeated(number)) for number in range(spec.run.repetitions)]


def run_peer(
    spec: PeerSpec,
    lab: PeerLab,
    prepared: Callable[[str], AbstractContextManager[RunLoop]],
    versions: Mapping[str, str] | None = None,
    told: Callable[[pa.Table], pa.Table] = lambda metrics: metrics,
    beside: Callable[[], Mapping[int, str]] = dict,
) -> Manifest:
    """Make one run, stored whatever its verdict, or if it died.

    ``prepared``: gives the run of an id, ready to be executed. ``told``: gives the table of metrics as it is to be
    stored. ``beside``: processes of ours that are neither services nor the job's, with their names.
    """
    run_id = new_run_id(spec.workload.name, spec.peer)
    speed = bare_copy.bytes_per_s(lab.home / "bare_copy.json")
    recording = Recording(lab.store, lab.say, spec, run_id, spec.parameters(), speed, versions=versions)
    ended_by: BaseException | None = None
    try:
        with prepared(run_id) as run:
            try:
                services = Stack(lab.home).pids
                run.services = lambda: {**services(), **beside()}  # else what they use would be others', or the job's
                run.metrics = partial(written, run_id, run, lab.home)
                found = run.execute()
                tables = found.tables | {"metrics": told(found.tables["metrics"])}
                return recording.ended(found._replace(tables=tables), [])
            except BaseException as error:
                ended_by = error
                raise
    except BaseException as error:
        recording.died(ended_by or error, [])  # an interrupt while it was tidied up is not the reason
        raise


@contextmanager
def tidied(close_job: Callable[[], None], traffic: Traffic, say: Say) -> Iterator[None]:
    """Leave nothing of a run behind; what fails of that is told, and what was measured is right all the same."""
    try:
        yield
    finally:
        with interrupts_wait():
            all_of({"job": close_job, "topics": traffic.close}, say)


class OpenEngine(NamedTuple):
    """An engine that is open, whose jobs count keys. ``query``: makes one for a run, in a folder that is removed behind
    it, with the topics of its events and results. ``run``: ``run_peer``, with what there is to tell of the engine.
    """

    query: Callable[[PeerSpec, Path, Topic, Topic], CountingQuery]
    run: Callable[[PeerSpec, PeerLab, Callable[[str], AbstractContextManager[RunLoop]]], Manifest] = run_peer


def run_counting(
    spec: PeerSpec, lab: PeerLab, opened: OpenEngine, make_script: MakeScript = scenario_script
) -> Manifest:
    """Make one run of this script in an engine that is ``opened``; see ``run_peer``."""
    return opened.run(spec, lab, partial(_counting, spec, lab, opened, make_script))


@contextmanager
def _counting(
    spec: PeerSpec, lab: PeerLab, opened: OpenEngine, make_script: MakeScript, run_id: str
) -> Iterator[RunLoop]:
    events = Topic.at(lab.endpoints, f"{run_id}-events", spec.routers)
    results = Topic.at(lab.endpoints, f"{run_id}-results")
    reporter = Reporter(lab.say)
    with work_folder(lab.home, "peer-") as work:
        output = work / "results.parquet"
        traffic = Traffic(spec.workload, [events], results, output, reporter.second, as_lines=True)
        system = CountingJob(spec, opened.query(spec, work, events, results), events, results)
        with tidied(system.close, traffic, lab.say):
            yield RunLoop(spec, system, traffic, reporter, lambda: None, make_script)


@contextmanager
def local_spark(cores: int, home: Path, say: Say, options: Mapping[str, Any]) -> Iterator[SparkSession]:
    """A Spark of one process, for peers that run in it. Raises ServiceUnavailable."""
    work = spark_files(home)
    say(f"starting Spark, local[{cores}]")
    spark = session(f"local[{cores}]", jars("spark", say), work, home / "spark.log", options)
    try:
        yield spark
    finally:
        with interrupts_wait():
            stop_spark(spark)
