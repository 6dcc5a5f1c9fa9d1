"""The runs of a job without support for migration, beside ours: what being able to migrate costs when nothing does."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
from pyspark.sql import SparkSession

from keyshift.driver.spark import require_no_spark
from keyshift.experiment.spec import make_spec
from keyshift.folders import work_folder
from keyshift.lab.environment import require_possible_here
from keyshift.lab.judge.final_state import FinalState, StageEnd
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.lab.system import SystemUnderTest, job_config, job_traffic
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.notes import NoteKind
from keyshift.peers.counting import CountedByResults, require_only
from keyshift.peers.plain_job import BATCH_S, PlainJob, assignment
from keyshift.peers.runs import PeerLab, PeerSpec, local_spark, peer_lab, peer_spec, repetitions, run_peer, tidied
from keyshift.place.profile import LOCAL, SparkProfile, load_profile
from keyshift.results.verdict import Ownership
from keyshift.studies.study import Points, Study, collect, specs_of
from keyshift.traffic.traffic import Traffic
from keyshift.wire.config import JobConfig
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.micro import Micro
from keyshift.workloads.times import Times

START_S = 300.0  # from the begin of the first batch until the load begins, and until its last result
NAME = "no_support"  # of the point, and of the strategy in what is stored
ONLY: dict[str, Any] = {  # of what a run may be
    "backend": "memory",
    "replicas": 1,
    "slots_per_process": 1,
    "fault": "",
    "verify": "end",
}
NOTE = "a job without support for migration: nothing moves, and the verdict is about results, not about final state"


class UnreadMicro(Micro):
    """``micro`` of which nobody reads the final state."""

    name: ClassVar[str] = "micro"
    apart: ClassVar[bool] = True

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """Mistakes in results; see ``Workload.wrong``."""
        yield from self.wrong_results(events, results)


_UNREAD: dict[type, type[Any]] = {Micro: UnreadMicro, KeyCount: CountedByResults}


class PlainSystem(PlainJob, SystemUnderTest):
    """The plain job as a system of which nothing can be asked: it cannot move anything, and goes on. It stops at once:
    everything was answered before, and nothing is written down.
    """

    def __init__(self, spark: SparkSession, config: JobConfig, work: Path, traffic: Traffic) -> None:
        super().__init__(spark, config, work, BATCH_S, traffic)
        self._owned = assignment(config)
        self.notes: list[str] = []

    def recover(self) -> str:
        """Refuse: what its slots had is gone."""
        raise ServiceUnavailable("the job has died, and without support for migration it has no snapshot to go on from")

    @property
    def owners(self) -> dict[str, Collection[int]]:
        """The slots that own state: always the same."""
        return {self.config.stage: set(self._owned.owner)}

    def note(self, line: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Keep a line for the notes of the run, of whatever kind."""
        self.notes.append(line)

    def close(self) -> None:
        """End it, and remove what it has left."""
        self.stop()
        self.clean()

    def final_state(self) -> FinalState:
        """Describe the end of the job, without the state itself."""
        units = dict.fromkeys(range(len(self._owned.owner)), 0)
        begins = [self._owned.version]
        return FinalState(
            offsets={},
            parts=lambda timers, units: iter(()),
            stages=[StageEnd(self.config.stage, Ownership([self._owned]), begins=begins, unit_bytes=units, records=[])],
            revoked=(),
            notes=[*self.notes, NOTE],
        )


def plain_spec(common: Mapping[str, Any]) -> PeerSpec:
    """The spec of a run without support. Raises BadInput for what such a job does not do."""
    # The strategy says nothing here. It has the slots that the others have until something moves.
    nothing = {"strategy": "all_at_once", "snapshot_s": 0.0, "slots_max": 0}
    nothing |= {"trigger": "none", "then": "", "moves": ""}
    make_spec({**common, "strategy": "all_at_once"})  # what it leaves out may be wrong
    spec = make_spec({**common, **nothing})
    require_only(spec, ONLY, "a job without support")
    unread = _UNREAD.get(type(spec.workload))  # of others the final state is needed, if there is any
    workload = unread(**spec.workload.model_dump()) if unread else spec.workload
    operators = [stage.operator() for stage in workload.stages]
    stateless = all(not operator.state_schema.names for operator in operators)
    plain = len(operators) == len(workload.sources) == 1 and not any(each.uses_time for each in operators)
    if not plain or not (stateless or unread):
        raise BadInput(
            f"workload = {workload.name}: a job without support is compared with keycount, micro, and queries without "
            "state (query = q1 or q2 of nexmark), only"
        )
    if not stateless and spec.run.load_s > BATCH_S - START_S:
        raise BadInput(
            f"seconds = {spec.run.seconds:g}: a job without support has its state for one batch of {BATCH_S:g} s; "
            f"warm-up and measurement may take {BATCH_S - START_S:g} s"
        )
    return peer_spec(spec, NAME, workload)


def measure_beside_plain(
    points: Points,
    common: Mapping[str, Any] | None = None,
    profile: str = "",
    plain: Points = MappingProxyType({NAME: {}}),
) -> Study:
    """The runs of ``points``, each in a job of its own, see ``study.measure``; before them those of ``plain``, points
    of the job without support.

    Raises what ``measure`` does, and BadInput for what that job does not do, before anything is started.
    """
    common = common or {}
    ours = specs_of(points, common)
    specs = {name: plain_spec({**common, **given}) for name, given in plain.items()}
    if specs and load_profile(profile).spark.master != LOCAL:
        raise BadInput(
            f"profile = {profile!r}: a job without support runs in Spark of one process: `--profile local`, or leave "
            f"{', '.join(specs)} out (no_support or native = False in notebooks)"
        )
    place = require_possible_here([*specs.values(), *ours.values()], profile)
    beside = _measure_plain(specs, profile, place.spark) if specs else Study({}, {})
    study = beside | collect(ours, profile)
    study.require_good()
    return study


def _measure_plain(specs: Mapping[str, PeerSpec], profile: str, spark_profile: SparkProfile) -> Study:
    """Make the runs in one Spark session, one after the other; all may have died."""
    require_no_spark()
    study, cores = Study({name: [] for name in specs}, {**specs}), max(spec.cores for spec in specs.values())
    with (
        peer_lab(profile) as lab,
        work_folder(lab.home, "plain-") as work,
        local_spark(cores, lab.home, lab.say, spark_profile.options()) as spark,
    ):
        for name, spec in specs.items():
            for each in repetitions(spec):
                study.add(name, lab.store, partial(run_peer, each, lab, partial(_prepared, each, spark, lab, work)))
    return study


@contextmanager
def _prepared(spec: PeerSpec, spark: SparkSession, lab: PeerLab, work: Path, run_id: str) -> Iterator[RunLoop]:
    config, reporter = job_config(spec, run_id, lab.endpoints, None), Reporter(lab.say)
    traffic = job_traffic(spec.workload, config, config.slots, work, reporter.second)
    system = PlainSystem(spark, config, work, traffic)
    with tidied(system.close, traffic, lab.say):
        yield RunLoop(spec, system, traffic, reporter, lambda: None, scenario_script)
