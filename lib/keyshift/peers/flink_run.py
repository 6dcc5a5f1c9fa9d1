"""The runs of a Flink job that are compared with ours: same load, same Kafka, same machine, same measures."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import MIB
from keyshift.lab.environment import open_services, require_possible_here
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.model.errors import BadInput
from keyshift.peers.flink import TASK_HEAP_MIB, flink
from keyshift.peers.flink_client import FlinkClient
from keyshift.peers.flink_job import FlinkCount, FlinkJob
from keyshift.peers.runs import PeerSpec, peer_spec, repeated, run_peer
from keyshift.place.profile import load_profile
from keyshift.progress import Say, progress
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore
from keyshift.services.stack import Stack
from keyshift.studies.study import Study, measure, specs_of
from keyshift.traffic.topics import Topic
from keyshift.traffic.traffic import Traffic

Points = Mapping[str, Mapping[str, Any]]
NAME = "flink_restart"  # of the point, and of the strategy in what is stored
ONLY: dict[str, Any] = {  # of what a run may be; names in this order, as those behind may be unknown without
    "workload": "keycount",
    "backend": "memory",
    "replicas": 1,
    "trigger": "scale",
    "then_slots": "",
    "fault": "",
    "verify": "end",
    "snapshot_s": 0.0,
    "work_us": 0.0,
}
MOST_STATE = TASK_HEAP_MIB * MIB // 4  # of the heap: a restart reads all of it, and rows are objects
HERE_ONLY = "the embedded services and a Spark of this machine: use `--profile local`"


def flink_spec(common: Mapping[str, Any]) -> PeerSpec:
    """The spec of a run of Flink's job. Raises BadInput for what that job does not do."""
    spec = make_spec({**common, "strategy": "stop_restart"})
    given = spec.parameters()
    for name in spec.unsettled:
        raise BadInput(f"{name} = auto: it is chosen by what a load costs keyshift's job; give a number beside Flink's")
    for name, value in ONLY.items():
        if given[name] != value:
            raise BadInput(f"{name} = {given[name]!r}: Flink's job is compared with {name} = {value!r} only")
    workload = FlinkCount(**spec.workload.model_dump())
    if (state := workload.keys * workload.state_bytes) > MOST_STATE:
        raise BadInput(
            f"keys = {workload.keys} of state_bytes = {workload.state_bytes} are {state // MIB} MiB of state; Flink's "
            f"task manager is started with room for {MOST_STATE // MIB} MiB here"
        )
    return peer_spec(spec, NAME, workload)


def measure_beside_flink(points: Points, common: Mapping[str, Any], profile: str = "") -> Study:
    """The runs of ``points``, each in a job of its own, see ``study.measure``; behind them those of ``flink_restart``.

    Flink's are made first: without its jars nothing is measured. Raises what ``measure`` and ``measure_flink`` do; what
    is not possible is refused before anything is started.
    """
    ours = specs_of(points, common)
    _require_possible([flink_spec(common), *ours.values()], profile)
    beside = measure_flink(common, profile)
    return measure(points, common, profile, one_job=False) | beside


def measure_flink(common: Mapping[str, Any], profile: str = "") -> Study:
    """The runs of one point, ``flink_restart``: a Flink job that counts keys, and is stopped with a savepoint and
    started from it with ``to_slots``.

    ``common``: as for ``measure``. The cluster stays for all repetitions, each of which has a job of its own.
    Raises BadInput before anything is started, ServiceUnavailable if Flink's jars cannot be had, KeyshiftError if all
    runs died.
    """
    spec = flink_spec(common)
    _require_possible([spec], profile)
    home, slots = Stack().home, max(*spec.slots_of.values(), spec.scenario.to_slots)
    with progress(None) as say, open_services(profile, say) as endpoints, flink(home, slots, say) as client:
        store = ResultStore(endpoints)
        return repeated({NAME: spec}, store, lambda each: run_flink(each, client, endpoints, store, home, say))


def _require_possible(specs: Sequence[RunSpec], profile: str) -> None:
    place = load_profile(profile)
    if place.services != "embedded" or place.spark.on_kubernetes:
        raise BadInput(f"profile = {profile!r}: Flink is started beside {HERE_ONLY}")
    require_possible_here(specs, profile, ["Flink"])


def run_flink(
    spec: PeerSpec, client: FlinkClient, endpoints: Endpoints, store: ResultStore, home: Path, say: Say
) -> Manifest:
    """One run, stored whatever its verdict, or if it died."""
    return run_peer(
        spec,
        store,
        home,
        say,
        lambda run_id: _prepared(spec, client, endpoints, run_id, home, say),
        versions={"flink": client.version()},
        told=lambda metrics: with_jvm(metrics, "flink_jvm"),
    )


def with_jvm(metrics: pa.Table, name: str) -> pa.Table:
    """The table with another name for the JVMs: the sampler takes any for Spark's."""
    names = pc.replace_substring_regex(metrics["instance"].cast(pa.string()), "^spark_jvm$", name)
    place = metrics.schema.get_field_index("instance")
    return metrics.set_column(place, metrics.schema.field(place), names.cast(metrics.schema.field(place).type))


@contextmanager
def _prepared(
    spec: RunSpec, client: FlinkClient, endpoints: Endpoints, run_id: str, home: Path, say: Say
) -> Iterator[RunLoop]:
    events = Topic.at(endpoints, f"{run_id}-events", spec.job.routers)
    results = Topic.at(endpoints, f"{run_id}-results")
    reporter = Reporter(say)
    with tempfile.TemporaryDirectory(prefix="flink-run-", dir=home, ignore_cleanup_errors=True) as work:
        output = Path(work, "results.parquet")
        traffic = Traffic(spec.workload, [events], results, output, reporter.second, as_lines=True)
        with closing(traffic), closing(FlinkJob(spec, client, events, results)) as system:
            yield RunLoop(spec, system, traffic, reporter, lambda: None, scenario_script)
